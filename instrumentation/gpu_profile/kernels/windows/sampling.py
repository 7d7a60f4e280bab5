"""Sampling of a running service: now and then a window around a region, which records its kernels at a known cost.

Off unless `sample_regions` is called. A window costs the region that opens it the start of the profiler (0.3 ms on a
CPU, which are not counted as the region's), and the recording of its operations. It costs the region that closes it a
wait for the GPU and some microseconds per operator. `Sampling.stats` reports the totals. Records are read in a thread
of their own, which takes Python's lock from the others for a while: half a second per 100,000 operators.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import random
import sys
import threading
from collections.abc import Callable
from math import inf
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.kernels.claim import Claim, forget_in_children
from gpu_profile.kernels.sources.opening import check_spec, open_source
from gpu_profile.kernels.sources.source import ProfilerSource
from gpu_profile.kernels.sources.torch_source import TorchSource, first_line, waits_for_gpu, warm_up
from gpu_profile.kernels.windows.sample import SamplingStats, WindowSample, release_spans
from gpu_profile.kernels.windows.window import OPEN, WindowContent
from gpu_profile.regions.running import Running
from gpu_profile.regions.session import process
from gpu_profile.units import seconds

_log = logging.getLogger("gpu_profile")

#: Windows that fail one after another until sampling ends.
MOST_FAILURES: Final = 3
#: Interval at which the sampling's thread checks whether a window has been open for too long.
CHECK_S: Final = 1.0
#: The pause is longer by a random share up to this one, so that windows do not keep step with the service.
JITTER: Final = 0.1
_STOP_S: Final = 2.0


class Sampling:
    """The sampling that `sample_regions` has started: `stop()` ends it, `stats` reports its counts and costs.

    Its thread prepares a window now and then (`arm`), waits until regions have opened and closed it, and reads it.
    """

    def __init__(
        self,
        *,
        every_s: float = 60.0,
        window_s: float = 0.5,
        source: str = "auto",
        clock: Clock = SYSTEM_CLOCK,
        opener: Callable[[str], ProfilerSource] | None = None,
    ) -> None:
        self.stats = SamplingStats()
        self._every_s, self._window_s, self._spec = every_s, window_s, source
        self._clock, self._opener = clock, opener or _open_warm
        self._sample: WindowSample | None = None
        self._in_a_row = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        forget_in_children(self)

    @property
    def running(self) -> bool:
        """Whether more windows are to come."""
        return not self._ended.is_set()

    def start(self) -> None:
        """Sample from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="gpu-profile-kernels", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s = random.uniform(0.0, self._every_s)  # noqa: S311 - nothing secret about it
        while self.running and not self._clock.wait(self._ended, pause_s):
            sample = self.arm()
            if sample is not None:
                while not self._clock.wait(sample.over, CHECK_S):
                    sample.close_late()
                self.read()
            pause_s = self._every_s * random.uniform(1.0, 1.0 + JITTER)  # noqa: S311

    def arm(self) -> WindowSample | None:
        """Let the next outermost region open a window. None if that is not possible now."""
        if not process.may_sample():
            self._end()
            return None
        if OPEN.holder is not None or (self._spec != "cupti" and waits_for_gpu()):
            return None
        try:
            source = self._opener(self._spec)
        except Exception as error:  # noqa: BLE001 - the service goes on after any error
            if self._spec != "auto" or not _torch_may_come():
                self._fail(error)
            return None
        sample = self._sample = WindowSample(source, window_s=self._window_s, clock=self._clock, stats=self.stats)
        if not self.running:  # `stop` was called, perhaps before it could see the sample
            sample.end()
            return None
        return sample

    def read(self) -> None:
        """Join the records of a closed window, and pass the results to executions, their spans and regions."""
        content = None if self._sample is None else self._sample.outcome()
        if isinstance(content, Exception):
            self._fail(content)
        if not isinstance(content, WindowContent):
            return
        began_ns = self._clock.now_ns()
        try:
            self._publish(content)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            release_spans(content.executions)
            self.stats.read_s += seconds(self._clock.now_ns() - began_ns)

    def _publish(self, content: WindowContent) -> None:
        report = content.report()
        if content.source.problem:
            self._fail(UsageError(content.source.problem))
            return
        self.stats.windows += 1
        self.stats.executions += len(content.executions)
        self.stats.left_out += content.left_out
        self._in_a_row = 0
        if report.on_host:  # a CPU's operators are no kernels
            self.stats.host_only += 1
            return
        regions = report.executions()
        stamps = report.kernel_stamps({i: execution.start_ns for i, execution in enumerate(content.executions, 1)})
        for number, execution in enumerate(content.executions, 1):
            region = regions.get(number)
            # An execution that outlasted the window was recorded only in part.
            if region is None or not 0 < execution.end_ns <= content.end_ns or not isinstance(execution, Running):
                continue
            work = execution.kernels = region.work()
            execution.kernel_stamps = stamps.get(number)
            execution.awaits_kernels = False
            execution.session.joiner.take_kernels(execution.name, work)

    def _fail(self, error: BaseException) -> None:
        self.stats.failures += 1
        self._in_a_row += 1
        if self._in_a_row >= MOST_FAILURES:
            _log.warning(
                "gpu-profile: kernels are sampled no more, since %d windows failed one after another: %s",
                self._in_a_row,
                first_line(error),
            )
            self._end()
        elif self.stats.failures == 1:
            _log.warning("gpu-profile: a sample of kernels failed, and others will follow: %s", first_line(error))

    def stop(self) -> None:
        """Open no more windows; an open one is closed and read. Returns after that, or after 2 s."""
        self._end()
        if self._sample is not None:
            self._sample.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_S)
        self.read()

    def _end(self) -> None:
        """Open no more windows; from now on another sampling may start."""
        self._ended.set()
        _SAMPLING.release(self)

    def forget(self) -> None:
        """In a forked child the thread is gone, and the window is the parent's."""
        self._ended = threading.Event()
        self._ended.set()
        self._sample = None


def _torch_may_come() -> bool:
    """Whether PyTorch is installed, and the program has not imported it so far."""
    return "torch" not in sys.modules and importlib.util.find_spec("torch") is not None


def _open_warm(spec: str) -> ProfilerSource:
    """A source that any thread may stop, where there is one. The cost of PyTorch's first start arises here."""
    source = open_source(spec, all_threads=True)
    if isinstance(source, TorchSource):
        warm_up()
    return source


#: The one sampling of this process.
_SAMPLING: Final[Claim[Sampling]] = Claim()


@atexit.register
def _at_exit() -> None:
    """A window must not be open when PyTorch is unloaded."""
    if _SAMPLING.holder is not None:
        _SAMPLING.holder.stop()


def sample_regions(*, every_s: float = 60.0, window_s: float = 0.5, source: str = "auto") -> Sampling:
    """Record the kernels of regions of this process now and then, until `stop()` of the returned object.

    At most once in `every_s` seconds, and first at a random moment of these, a window opens when an outermost region
    begins (a `with` block or a decorated function, not a handle or a generator). It closes at that region's end. If the
    region takes less than `window_s`, it closes at the end of a later one of the same thread; after `LONGEST_S` in any
    case. The results of each execution go into its span, which waits for them, into the region's metrics and its
    verdict. `source` is `auto`, `torch` or `cupti`, as for `record`. While PyTorch has not used its GPU, there are no
    windows; nor, with `auto` and without CUPTI, while it is installed and not imported.

    Closing a window waits for the GPU, as its profiler does. The first window that fails is logged; after three in a
    row sampling ends with a warning. Forked children do not sample. PyTorch's allocations are not recorded, because
    PyTorch records them for single threads only.
    Raises UsageError for times that are not positive, an unknown source, or if this process samples already.
    """
    if not (0 < every_s < inf and 0 < window_s < inf):
        raise UsageError(f"every_s and window_s are positive, not {every_s} and {window_s}")
    check_spec(source)
    sampling = Sampling(every_s=every_s, window_s=window_s, source=source)
    if not _SAMPLING.take(sampling):
        raise UsageError("kernels of regions are sampled already: stop that sampling first")
    sampling.start()
    return sampling
