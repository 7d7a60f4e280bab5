"""A stretch of time in which a profiler records and every region's executions are collected beside it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.kernels.claim import Claim
from gpu_profile.kernels.executions import MOST_EXECUTIONS, ExecutionWatch, running_from
from gpu_profile.kernels.records import Call, Range, Record
from gpu_profile.kernels.sources.opening import open_source
from gpu_profile.kernels.sources.source import ProfilerSource, WrongThreadError
from gpu_profile.kernels.views import KernelReport, report_of
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.running import begun

_log = logging.getLogger("gpu_profile")


@dataclass(frozen=True, slots=True, eq=False)
class WindowContent:
    """The content of a closed window. `executions` are in order of their starts; the first is range 1 of the records.

    The window was open from `start_ns` to `end_ns`, and ranges are clipped to it. `left_out` executions exceeded the
    limit.
    """

    source: ProfilerSource
    executions: tuple[Execution, ...]
    ranges: tuple[Range, ...]
    left_out: int
    start_ns: int
    end_ns: int
    _records: Iterable[Record]
    _threads: dict[int, int]

    def records(self) -> Iterator[Record]:
        """The profiler's records, once, and a range for each execution. UsageError where they cannot be read."""
        native = self._threads
        for record in self._records:
            if type(record) is Call and record.thread in native:
                yield record._replace(thread=native[record.thread])
            else:
                yield record
        yield from self.ranges

    def report(self) -> KernelReport:
        """The records joined with the executions; only once, as the records."""
        notes = {f"executions beyond {len(self.executions)} in a window": self.left_out} if self.left_out else {}
        report = report_of(self.records(), source=self.source.name, notes=notes)
        if self.source.problem:
            _log.warning("gpu-profile: %s", self.source.problem)
        return replace(report, dropped=self.source.dropped)


class Window:
    """Collects executions while `source` records; only one at a time in a process. May be opened again once stopped.

    Collects executions that begin in any thread, and the ones that run around `start`. `awaits`: the spans of collected
    executions are held back until `awaits_kernels` is set to False. `owner` is the opener's name in messages, if any.
    """

    def __init__(
        self,
        source: ProfilerSource,
        *,
        clock: Clock = SYSTEM_CLOCK,
        most_executions: int = MOST_EXECUTIONS,
        awaits: bool = False,
        owner: str = "",
    ) -> None:
        self.source = source
        self.owner = owner
        self.left_out = 0
        self.start_ns = 0
        self._clock = clock
        self._most = most_executions
        self._awaits = awaits
        # Reentrant, since a signal's handler may run a region.
        self._lock = threading.RLock()
        self._collecting = False
        self._numbers: dict[int, int] = {}
        self._executions: list[tuple[Execution, int]] = []
        self._threads: dict[int, int] = {}
        self._watch = ExecutionWatch(self)
        self._pushed = threading.local()

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The executions collected so far, in order."""
        return tuple(execution for execution, _ in self._executions)

    # ------------------------------------------------------------------ life

    def start(self) -> Self:
        """Open. UsageError if another window is open, GpuBackendError with the reason if the source cannot record."""
        if not OPEN.take(self):
            raise UsageError("kernels are being recorded already: only one window at a time is open in a process")
        try:
            self.source.start()
        except BaseException:
            OPEN.release(self)
            raise
        self._numbers, self._executions, self._threads = {}, [], {}
        self.left_out = 0
        self.start_ns = self._clock.now_ns()
        self._collecting = True
        for execution in reversed(list(running_from(begun.get()))):
            self._collect(execution)
        self._watch.begin()
        return self

    def stop(self) -> WindowContent:
        """Close. WrongThreadError if it stays open, because only the thread that started it may stop it;
        GpuBackendError if the source failed, and the window is closed.
        """
        if not self.is_open:
            raise UsageError("the window is not open: start it first")
        self._collecting, end_ns = False, self._clock.now_ns()
        try:
            records = self.source.stop()
        except WrongThreadError:
            self._collecting = True
            raise
        except BaseException:
            self._close()
            raise
        self._close()
        with self._lock:
            collected, self._executions = self._executions, []
            ranges = tuple(self._ranges(collected, end_ns))
        executions = tuple(execution for execution, _ in collected)
        return WindowContent(
            self.source, executions, ranges, self.left_out, self.start_ns, end_ns, records, self._threads
        )

    @property
    def is_open(self) -> bool:
        """Whether it is this process's open window."""
        return OPEN.holder is self

    def _close(self) -> None:
        self._collecting = False
        self._watch.end()
        OPEN.release(self)

    def _ranges(self, collected: list[tuple[Execution, int]], end_ns: int) -> Iterator[Range]:
        for number, (execution, thread) in enumerate(collected, 1):
            parent = execution.nearest(self._numbers)
            started = max(execution.start_ns, self.start_ns)
            ended = min(execution.end_ns or end_ns, end_ns)
            name, inside = execution.name, 0 if parent is None else self._numbers[parent]
            yield Range(name, thread, started, max(started, ended), number, inside)

    # ------------------------------------------------------------------ executions

    def begun(self, execution: Execution, *, nested: bool) -> None:
        """An execution has begun in this thread."""
        if not self._collecting:
            return
        number = self._collect(execution)
        # Executions that interleave in one thread fit no stack: they are matched by thread and time.
        if number and nested and self.source.pushes and not _in_event_loop():
            self._stack().append(number)
            self.source.push(number)

    def ended(self, execution: Execution) -> None:
        """An execution has ended, perhaps in another thread than it began in, or after the window."""
        if not self.source.pushes:
            return
        number, stack = self._numbers.get(id(execution)), self._stack()
        if number in stack:
            while stack:
                self.source.pop()
                if stack.pop() == number:
                    break

    def _collect(self, execution: Execution) -> int:
        """The execution's number; 0 if the limit is reached or the window closed."""
        thread = threading.get_native_id()
        with self._lock:
            if not self._collecting:
                return 0
            number = self._numbers.get(id(execution))
            if number is not None:
                return number
            if len(self._executions) >= self._most:
                self.left_out += 1
                return 0
            if thread not in self._threads:
                # Profilers identify a thread that is new to them by the lower half of its pthread's address.
                low = threading.get_ident() & 0xFFFF_FFFF
                self._threads |= {low: thread, low - (1 << 32): thread, thread: thread}
            self._executions.append((execution, thread))
            self._numbers[id(execution)] = number = len(self._executions)
            if self._awaits:
                execution.awaits_kernels = True
            return number

    def _stack(self) -> list[int]:
        """The ranges that were pushed in this thread."""
        stack: list[int] | None = getattr(self._pushed, "stack", None)
        if stack is None:
            stack = self._pushed.stack = []
        return stack


def _in_event_loop() -> bool:
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


#: The one window of this process that is open.
OPEN: Final[Claim[Window]] = Claim()


# ---------------------------------------------------------------------- for users


class Recording:
    """`with kernels.record() as recording: …`, then `recording.report`. See `record`."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._content: WindowContent | None = None
        self._report: KernelReport | None = None
        self._error: GpuProfileError | None = None

    def __enter__(self) -> Self:
        self._window.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._content = self._window.stop()
        except GpuProfileError as problem:  # `report` raises it: the block's own exception comes first
            self._error = problem

    @property
    def report(self) -> KernelReport:
        """The report, read and joined when first requested.

        Raises UsageError before the block has ended or if the records cannot be read, GpuBackendError if the profiler
        could not be stopped.
        """
        if self._error is not None:
            raise self._error
        if self._report is None:
            if self._content is None:
                raise UsageError("there is no report yet: the block that is recorded must end first")
            content, self._content = self._content, None
            try:
                self._report = content.report()
            except GpuProfileError as problem:
                self._error = problem
                raise
        return self._report


def record(source: str = "auto") -> Recording:
    """Record the kernels, copies and memory of the regions within a `with` block.

    `source` is `torch`, `cupti` or `auto` (PyTorch's profiler if the program has imported PyTorch, else CUPTI). At the
    end of the block PyTorch's profiler waits for the current GPU, and makes a context there as it always does. It
    records the operators and allocations of the block's own thread, and the GPU's work for all threads.
    Raises GpuBackendError if nothing can record, UsageError if something records already.
    """
    return Recording(Window(open_source(source)))
