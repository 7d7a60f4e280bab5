"""Windows that open and close by themselves around a profiler's ranges, and the sums over them."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.kernels.claim import forget_in_children
from gpu_profile.kernels.gmp.results import ProfileType, Results
from gpu_profile.kernels.gmp.totals import RangeTotals
from gpu_profile.kernels.records import Record
from gpu_profile.kernels.sources.opening import check_spec, open_source
from gpu_profile.kernels.sources.source import ProfilerSource
from gpu_profile.kernels.sources.torch_source import TorchSource
from gpu_profile.kernels.windows.window import OPEN, Window, WindowContent
from gpu_profile.regions.session import process
from gpu_profile.units import nanoseconds

#: A window older than this multiple of its length closes even if ranges of other threads run.
MOST_WINDOWS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GmpSettings:
    """How a profiler records; see `GmpProfiler`. UsageError for an unknown source or numbers not above 0."""

    source: str = "auto"
    output: Path | None = Path("output")
    window_s: float = 10.0
    most_executions: int = 20_000
    name: str

    def __post_init__(self) -> None:
        check_spec(self.source)
        if not self.window_s > 0 or self.most_executions < 1:
            values = f"{self.window_s} and {self.most_executions}"
            raise UsageError(f"window_s and most_executions must be above 0, not {values}")


class Collecting:
    """Opens and closes windows around one profiler's ranges. The lock is held while one opens, closes or is read."""

    def __init__(self, settings: GmpSettings) -> None:
        self.settings = settings
        self.enabled = self._forked = False
        self._reset()
        forget_in_children(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._totals = RangeTotals()
        self._window: _OpenWindow | None = None
        #: Ranges that run, by the thread in which they began.
        self._running: Counter[int] = Counter()

    def enable(self) -> None:
        """Record from the next range on."""
        with self._lock:
            self.enabled, self._forked = True, False

    def disable(self) -> None:
        """Record no more."""
        with self._lock:
            self._close()
            self.enabled = False

    def begin(self, name: str, kind: ProfileType) -> int:
        """Called before a range begins; returns the argument of `end`."""
        thread = threading.get_ident()
        with self._lock:
            self._running[thread] += 1
            if self.enabled and not process.disabled:
                self._totals.names[kind].setdefault(name)
                if self._window is not None and self._window.can_retry and len(self._running) == 1:
                    self._close()  # a source that could not record may be able to by now
                if self._window is None:
                    self._open(kind)
                if self._window is not None:
                    self._note(self._window, name)
        return thread

    def _note(self, window: _OpenWindow, name: str) -> None:
        window.ranges += 1
        if window.bound and window.thread is not threading.current_thread():
            window.elsewhere.add(name)
            self._totals.problem(
                f"PyTorch's profiler recorded for the thread {window.thread.name} only: "
                "ranges in other threads have neither allocations nor CPU operators."
            )

    def end(self, thread: int) -> None:
        """Called after a range has ended."""
        with self._lock:
            self._running[thread] -= 1
            if self._running[thread] <= 0:  # below, if it began before a fork
                del self._running[thread]
            window = self._window
            if window is None or thread in self._running or not window.closes_here():
                return
            age_ns, window_ns = window.age_ns(), nanoseconds(self.settings.window_s)
            # A clock that was set back must not keep it open.
            due = not 0 <= age_ns <= window_ns or window.ranges > self.settings.most_executions
            at_once = window.urgent or not self.enabled
            if at_once or (due and (not self._running or not 0 <= age_ns <= MOST_WINDOWS * window_ns)):
                self._close()

    def results(self) -> Results:
        """All results until now; closes the window."""
        with self._lock:
            self._close()
            if self._forked:
                self._totals.problem("This process was forked: call init() in it to record its ranges.")
            results = self._totals.results()
            if self._window is None:
                return results
            line = (
                f"A window is open that only the thread {self._window.thread.name} can close: "
                "results since its opening are not included yet."
            )
            return replace(results, problems=(*results.problems, line))

    def forget(self) -> None:
        """A forked child has recorded nothing, and records nothing until it is enabled there."""
        self._forked, self.enabled = self._forked or self.enabled, False
        self._reset()

    # ------------------------------------------------------------------ windows

    def _open(self, kind: ProfileType) -> None:
        """Begin to record or, if that is not possible, at least to collect the host's time."""
        holder = OPEN.holder
        if holder is not None and holder.owner:
            self._totals.problem(
                f"{holder.owner} was recording when ranges of {self.settings.name} began: "
                "only one profiler of a process records at a time; disable() it or ask for its results first."
            )
            return
        try:
            self._window = _OpenWindow(self, self._source(kind))
        except Exception as error:  # noqa: BLE001 - no error of a source must fail the user's range
            self._totals.problem(f"Nothing recorded kernels: {_one_line(error)}")
            try:
                self._window = _OpenWindow(self, _NullSource())
            except Exception as another:  # noqa: BLE001 - as above
                self._totals.problem(f"Ranges were not collected: {_one_line(another)}")

    def _source(self, kind: ProfileType) -> ProfilerSource:
        in_main_thread = threading.current_thread() is threading.main_thread()
        # Results of a thread that is not the main one are likely requested by another thread, after its end.
        all_threads = not in_main_thread and kind is not ProfileType.MEMORY
        return open_source(self.settings.source, all_threads=all_threads)

    def _close(self) -> None:
        """End the window, if one is open and this thread can, and add its content to the sums."""
        window = self._window
        if window is None or not window.closes_here():
            return
        self._window = None
        try:
            content = window.stop()
        except Exception as error:  # noqa: BLE001 - as above
            self._totals.problem(f"The records of {window.ranges} ranges were lost: {_one_line(error)}")
            return
        try:
            report = content.report()
        except Exception as error:  # noqa: BLE001 - as above
            self._totals.problem(f"The records of {window.ranges} ranges could not be read: {_one_line(error)}")
            return
        recorded = not isinstance(window.source, _NullSource)
        memory = recorded and not window.all_threads
        self._totals.add(report, recorded=recorded, memory=memory, elsewhere=window.elsewhere)
        if window.source.problem:
            self._totals.problem(window.source.problem)


class _OpenWindow:
    """An open window: its source, its start, and how many ranges have begun in it. It also ends with its profiler."""

    def __init__(self, owner: Collecting, source: ProfilerSource) -> None:
        self.source = source
        self._torch = "torch" in sys.modules
        # Room for a range with many others inside: the window stays open until it ends.
        most, self._clock = 2 * owner.settings.most_executions, process.settings().clock
        self._window = Window(source, clock=self._clock, most_executions=most, owner=owner.settings.name).start()
        self.thread = threading.current_thread()
        self.ranges = 0
        #: Ranges outside the one thread that is fully recorded.
        self.elsewhere: set[str] = set()
        # At the end of the process the window is not needed any more, and a GPU may not answer.
        self._abandoned = weakref.finalize(owner, _abandon, self._window)
        self._abandoned.atexit = False

    @property
    def can_retry(self) -> bool:
        """Whether nothing records, and PyTorch has been imported since."""
        return isinstance(self.source, _NullSource) and not self._torch and "torch" in sys.modules

    @property
    def urgent(self) -> bool:
        """Whether it must close while its thread lives, which may end soon."""
        return self.bound and self.thread is not threading.main_thread()

    @property
    def bound(self) -> bool:
        """Whether it records the host's activity of one thread, which alone can close it."""
        return isinstance(self.source, TorchSource) and not self.source.all_threads

    @property
    def all_threads(self) -> bool:
        """Whether it records the host's activity of all threads, except for allocations."""
        return isinstance(self.source, TorchSource) and self.source.all_threads

    def closes_here(self) -> bool:
        """Whether this thread can close it, or its own thread has ended."""
        return not self.bound or self.thread is threading.current_thread() or not self.thread.is_alive()

    def age_ns(self) -> int:
        """The time since it was opened."""
        return self._clock.now_ns() - self._window.start_ns

    def stop(self) -> WindowContent:
        """End it and return its content."""
        self._abandoned.detach()
        return self._window.stop()


def _abandon(window: Window) -> None:
    window.owner = ""  # in case that it cannot be closed here: its owner is gone
    with suppress(Exception):
        window.stop()


class _NullSource:
    """A source of no records, for a window that collects the host's time."""

    name = "nobody"
    problem = ""
    dropped: int | None = None
    pushes = False

    def start(self) -> None:
        """No effect."""

    def stop(self) -> Iterable[Record]:
        """No records."""
        return ()

    def push(self, range_id: int) -> None:
        """No effect."""

    def pop(self) -> None:
        """No effect."""


def _one_line(error: Exception) -> str:
    """An error's message in one line, with its class unless it is a GpuProfileError."""
    text = str(error) if isinstance(error, GpuProfileError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
