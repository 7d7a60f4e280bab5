"""Now and then, a window around a region of a running service: what its kernels did, at a cost that is known.

Off unless `sample_regions` is called. A window costs the region that it opens at the start of the profiler (0.3 ms on a
CPU, in which it is not counted), its operations what recording them takes, and the region that it closes at a
wait for the GPU and some microseconds per operator; `Sampling.stats` tells how much that was. Records are read in a
thread of their own, which takes Python's lock from the others for a while: half a second per 100,000 operators.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.kernels.sources.opening import check_spec, open_source
from gpu_profile.kernels.sources.source import Source, WrongThreadError
from gpu_profile.kernels.sources.torch_source import TorchSource, waits_for_gpu
from gpu_profile.kernels.windows import window as windows
from gpu_profile.kernels.windows.window import Taken, Window
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.running import Running
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.units import NS_PER_S, nanoseconds

_log = logging.getLogger("gpu_profile")

#: Windows that fail one after another until sampling ends.
MOST_FAILURES: Final = 3
#: A window that no region has closed by then is closed by the sampling's own thread.
LONGEST_S: Final = 10.0
#: How often its thread looks whether that is so.
CHECK_S: Final = 1.0
#: Windows come at random moments of this share of the pause, so as not to keep step with what the service does.
JITTER: Final = 0.1
#: Executions of which one window tells; more are counted as left out. Each takes half a millisecond to add up.
MOST_EXECUTIONS: Final = 2_000
_STOP_S: Final = 2.0


@dataclass(slots=True)
class SamplingStats:
    """What sampling did so far. `host_only` windows saw no GPU operation; `skipped` ones came upon another recording.

    Times are totals in seconds: `start_s` and `stop_s` in threads of the service, `read_s` in the sampling's own.
    """

    windows: int = 0
    failures: int = 0
    host_only: int = 0
    skipped: int = 0
    executions: int = 0
    left_out: int = 0
    start_s: float = 0.0
    stop_s: float = 0.0
    read_s: float = 0.0


class Sampling:
    """What `sample_regions` has started: `stop()` ends it, `stats` tells what it did and cost.

    A window is due (`arm`), is opened by the next outermost region that begins, and closed by the end of that or of a
    later one of the same thread; then it is read.
    """

    def __init__(
        self,
        *,
        every_s: float = 60.0,
        window_s: float = 0.5,
        source: str = "auto",
        clock: Clock = SYSTEM_CLOCK,
        opener: Callable[[str], Source] | None = None,
    ) -> None:
        self.stats = SamplingStats()
        self._every_s, self._window_s, self._spec = every_s, window_s, source
        self._clock, self._opener = clock, opener or _Opener()
        self._lock = threading.RLock()
        self._armed: Source | None = None
        self._window: Window | None = None
        self._thread_id = 0
        self._taken: Taken | None = None
        self._in_a_row = 0
        self._sessions: list[Session] = []
        self._ended, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether more windows are to come."""
        return not self._ended.is_set()

    # ------------------------------------------------------------------ the sampling's own thread

    def start(self) -> None:
        """Sample from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="gpu-profile-kernels", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s = random.uniform(0.0, self._every_s)  # noqa: S311 - nothing secret about it
        while self.running and not self._clock.wait(self._ended, pause_s):
            if self.arm():
                while not self._clock.wait(self._closed, CHECK_S):
                    self.close_late()
                self.read()
            pause_s = self._every_s * random.uniform(1.0, 1.0 + JITTER)  # noqa: S311

    def arm(self) -> bool:
        """Have the next outermost region open a window. False if there can be none now."""
        if not process.may_sample():
            self._ended.set()
            return False
        if windows.is_open() or (self._spec != "cupti" and waits_for_gpu()):
            return False
        try:
            source = self._opener(self._spec)
        except Exception as error:  # noqa: BLE001 - whatever it is, the service goes on
            if self._spec != "auto" or not _torch_may_come():
                self._fail(error)
            return False
        with self._lock:
            if not self.running:
                return False
            self._closed.clear()
            self._armed = source
        process.on_start(self._join)
        return True

    def close_late(self) -> None:
        """Close a window that no region's end has closed for long."""
        window = self._window
        if window is not None and self._is_late(window):
            self._close(window)

    def _is_late(self, window: Window) -> bool:
        longest_ns = nanoseconds(max(LONGEST_S, 2 * self._window_s))
        return not 0 <= self._clock.now_ns() - window.start_ns < longest_ns

    def read(self) -> None:
        """Join what a closed window took, and tell executions, their spans and regions."""
        with self._lock:
            taken, self._taken = self._taken, None
        if taken is None:
            return
        began_ns = self._clock.now_ns()
        try:
            self._tell(taken)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            _release(taken.executions)
            self.stats.read_s += (self._clock.now_ns() - began_ns) / NS_PER_S

    def _tell(self, taken: Taken) -> None:
        report = taken.report()
        if taken.problem:
            self._fail(UsageError(taken.problem))
            return
        self.stats.windows += 1
        self.stats.executions += len(taken.executions)
        self.stats.left_out += taken.left_out
        self._in_a_row = 0
        if report.on_host:  # a CPU's operators are no kernels
            self.stats.host_only += 1
            return
        found = report.executions()
        for number, execution in enumerate(taken.executions, 1):
            region = found.get(number)
            # Of one that ran on there is a part only.
            if region is None or not 0 < execution.end_ns <= taken.end_ns or not isinstance(execution, Running):
                continue
            work = execution.kernels = region.work()
            execution.awaited = False
            with execution.session.lock:
                execution.session.verdicts.take_kernels(execution.name, work)

    # ------------------------------------------------------------------ in the threads of regions

    def _join(self, session: Session) -> None:
        if self._armed is not None or self._window is not None:
            self._sessions.append(session)
            session.watch(self)

    def begun(self, execution: Execution, *, nested: bool) -> None:
        """An execution has begun: if it is an outermost one, and a window is due, open it."""
        if self._armed is None or not nested or not _is_outermost(execution):
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            source, self._armed = self._armed, None
            if source is not None:
                self._open(source)
        finally:
            self._lock.release()

    def _open(self, source: Source) -> None:
        if windows.is_open():
            self.stats.skipped += 1
            self._finish()
            return
        began_ns = self._clock.now_ns()
        window = Window(source, clock=self._clock, awaits=True, most_executions=MOST_EXECUTIONS)
        try:
            window.start()
        except Exception as error:  # noqa: BLE001 - it must not fail the user's region
            self._fail(error)
            self._finish()
            return
        self.stats.start_s += (window.start_ns - began_ns) / NS_PER_S
        self._window, self._thread_id = window, threading.get_ident()

    def ended(self, execution: Execution) -> None:
        """An execution has ended: if it is an outermost one of the window's thread, and that was long enough, close."""
        window = self._window
        if window is None or threading.get_ident() != self._thread_id or not _is_outermost(execution):
            return
        if self._clock.now_ns() - window.start_ns >= nanoseconds(self._window_s) or self._is_late(window):
            self._close(window)

    def _close(self, window: Window) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._window is not window:
                return
            began_ns = self._clock.now_ns()
            try:
                self._taken = window.stop()
            except WrongThreadError:
                return
            except Exception as error:  # noqa: BLE001 - as above
                _release(window.executions)
                self._fail(error)
            self.stats.stop_s += (self._clock.now_ns() - began_ns) / NS_PER_S
            self._window = None
            self._finish()
        finally:
            self._lock.release()

    def _finish(self) -> None:
        """The window is over: regions need not tell of themselves any more."""
        self._disarm()
        self._closed.set()

    def _disarm(self) -> None:
        process.off_start(self._join)
        self._armed = None
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.unwatch(self)

    # ------------------------------------------------------------------ the end

    def _fail(self, error: BaseException) -> None:
        self.stats.failures += 1
        self._in_a_row += 1
        if self._in_a_row >= MOST_FAILURES:
            _log.warning(
                "gpu-profile: kernels are sampled no more, since %d windows failed one after another: %s",
                self._in_a_row,
                _line(error),
            )
            self._ended.set()
        elif self.stats.failures == 1:
            _log.warning("gpu-profile: a sample of kernels failed, and others will follow: %s", _line(error))

    def stop(self) -> None:
        """Open no more windows; one that is open is closed and read. Returns after that, or after 2 s."""
        self._ended.set()
        with self._lock:
            self._armed = None
        window = self._window
        if window is not None:
            self._close(window)
        if self._window is None:
            self._finish()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S)
        self.read()
        _process.release(self)

    def forget(self) -> None:
        """In a forked child the thread is gone, and the window is the parent's."""
        self._lock = threading.RLock()
        self._ended.set()
        self._armed = self._window = self._taken = None


def _is_outermost(execution: Execution) -> bool:
    """Whether no region runs around it; a span that is none may."""
    around = execution.parent
    while around is not None and (around.end_ns or not isinstance(around, Running)):
        around = around.parent
    return around is None


def _release(executions: Iterable[Execution]) -> None:
    """Let go of their spans."""
    for execution in executions:
        execution.awaited = False


def _torch_may_come() -> bool:
    """Whether PyTorch is installed, and the program has not imported it so far."""
    return "torch" not in sys.modules and importlib.util.find_spec("torch") is not None


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class _Opener:
    """Opens sources that any thread may stop, where there are such; PyTorch's first start is paid for here."""

    def __init__(self) -> None:
        self._warm = False

    def __call__(self, spec: str) -> Source:
        source = open_source(spec)
        if not isinstance(source, TorchSource):
            return source
        source = TorchSource(all_threads=True)
        if not self._warm:
            source.warm_up()
            self._warm = True
        return source


class _Process:
    """The one sampling of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sampling: Sampling | None = None

    def claim(self, sampling: Sampling) -> None:
        """It is the one; UsageError if another is."""
        with self.lock:
            if self.sampling is not None and self.sampling.running:
                raise UsageError("kernels of regions are sampled already: stop that sampling first")
            self.sampling = sampling

    def release(self, sampling: Sampling) -> None:
        """It is not any more."""
        with self.lock:
            if self.sampling is sampling:
                self.sampling = None

    def after_fork(self) -> None:
        """A child samples only if it is told to."""
        self.lock = threading.RLock()
        sampling, self.sampling = self.sampling, None
        if sampling is not None:
            sampling.forget()

    def at_exit(self) -> None:
        """A window must not be open when PyTorch goes."""
        if self.sampling is not None:
            self.sampling.stop()


_process: Final = _Process()
os.register_at_fork(after_in_child=_process.after_fork)
atexit.register(_process.at_exit)


def sample_regions(*, every_s: float = 60.0, window_s: float = 0.5, source: str = "auto") -> Sampling:
    """Record the kernels of regions of this process now and then, until `stop()` of what is returned.

    At most once in `every_s` seconds, and first at a random moment of these, a window opens when an outermost region
    begins (a `with` block or a decorated function, not a handle or a generator). It closes when that ends or, if that
    takes less than `window_s`, when a later one of the same thread does; after `LONGEST_S` in any case. What it saw of
    each execution goes into its span, which waits for it, into the region's metrics and its verdict. `source` is
    `auto`, `torch` or `cupti`, as for `record`. While PyTorch has not used its GPU, there are no windows; nor, with
    `auto` and without CUPTI, while it is installed and not imported.

    Closing a window waits for the GPU, as its profiler does. A window that fails is logged once; after three in a row
    sampling ends with a warning. Forked children do not sample. PyTorch's allocations are not recorded, as it has them
    of single threads only.
    Raises UsageError for times that are not positive, an unknown source, or if this process samples already.
    """
    if not (0 < every_s < inf and 0 < window_s < inf):
        raise UsageError(f"every_s and window_s are positive, not {every_s} and {window_s}")
    check_spec(source)
    sampling = Sampling(every_s=every_s, window_s=window_s, source=source)
    _process.claim(sampling)
    sampling.start()
    return sampling
