"""One window of a sampling: an outermost region opens it, and its end or the end of a later one closes it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpu_profile.clock import Clock
from gpu_profile.kernels.executions import ExecutionWatch, running_from
from gpu_profile.kernels.sources.source import ProfilerSource, WrongThreadError
from gpu_profile.kernels.windows.window import OPEN, Window, WindowContent
from gpu_profile.regions.execution import Execution
from gpu_profile.units import nanoseconds, seconds

#: Seconds until the sampling's own thread closes a window that no region has closed.
LONGEST_S: Final = 10.0
#: Executions in one window; further ones are counted as left out. Each takes half a millisecond to sum up.
MOST_EXECUTIONS: Final = 2_000


@dataclass(slots=True)
class SamplingStats:
    """Counts and costs of sampling so far. `host_only` windows saw no GPU operation; `skipped` ones met an open window.

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


class WindowSample:
    """A window that is due, then open, then `over`.

    It is due from the beginning: the next outermost region of any thread opens it. It closes at the end of an outermost
    region of the same thread, once it is `window_s` old.
    """

    def __init__(self, source: ProfilerSource, *, window_s: float, clock: Clock, stats: SamplingStats) -> None:
        self.over = threading.Event()
        self._stats = stats
        self._least_ns = nanoseconds(window_s)
        self._longest_ns = nanoseconds(max(LONGEST_S, 2 * window_s))
        self._clock = clock
        self._window = Window(source, clock=clock, awaits=True, most_executions=MOST_EXECUTIONS)
        self._thread_id = 0
        self._outcome: WindowContent | Exception | None = None
        # Regions do not wait for it: the second to come has nothing to do. Reentrant, since a signal's handler may run
        # a region.
        self._lock = threading.RLock()
        self._due = True
        self._watch = ExecutionWatch(self)
        self._watch.begin()

    def begun(self, execution: Execution, *, nested: bool) -> None:
        """An execution has begun: if it is an outermost one, and the window is due, open it."""
        if not (self._due and nested and _is_outermost(execution)) or not self._lock.acquire(blocking=False):
            return
        try:
            if self._due:
                self._due = False
                self._open()
        finally:
            self._lock.release()

    def _open(self) -> None:
        began_ns = self._clock.now_ns()
        if OPEN.holder is not None:
            self._stats.skipped += 1
            self._finish()
            return
        try:
            self._window.start()
        except Exception as error:  # noqa: BLE001 - it must not fail the user's region
            self._outcome = error
            self._finish()
            return
        self._stats.start_s += seconds(self._window.start_ns - began_ns)
        self._thread_id = threading.get_ident()

    def ended(self, execution: Execution) -> None:
        """Close the window if this ends an outermost execution of its thread, and it is old enough."""
        in_its_thread = self._window.is_open and threading.get_ident() == self._thread_id
        if in_its_thread and _is_outermost(execution) and not 0 <= self._age_ns() < self._least_ns:
            self._close()

    def close_late(self) -> None:
        """Close a window that no end of a region has closed in time."""
        # A clock that was set back must not keep it open.
        if self._window.is_open and not 0 <= self._age_ns() < self._longest_ns:
            self._close()

    def _age_ns(self) -> int:
        return self._clock.now_ns() - self._window.start_ns

    def _close(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._window.is_open:
                return
            began_ns = self._clock.now_ns()
            try:
                self._outcome = self._window.stop()
            except WrongThreadError:  # it stays open, until a region of its own thread ends
                return
            except Exception as error:  # noqa: BLE001 - as above
                release_spans(self._window.executions)
                self._outcome = error
            self._stats.stop_s += seconds(self._clock.now_ns() - began_ns)
            self._finish()
        finally:
            self._lock.release()

    def end(self) -> None:
        """Close it now, if this thread can; no region opens it any more."""
        with self._lock:
            self._due = False
            self._close()
            if not self._window.is_open:
                self._finish()

    def _finish(self) -> None:
        """Watch regions no more."""
        self._watch.end()
        self.over.set()

    def outcome(self) -> WindowContent | Exception | None:
        """The window's content, or the error. None if it was not opened, is open, or was returned before."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
        return outcome


def _is_outermost(execution: Execution) -> bool:
    return next(running_from(execution.parent), None) is None


def release_spans(executions: Iterable[Execution]) -> None:
    """Release the spans of these executions, which waited for the window."""
    for execution in executions:
        execution.awaits_kernels = False
