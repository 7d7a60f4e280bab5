"""One execution of a region, from its start on the host to its last mark on the device."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from contextlib import suppress
from typing import Final

from gpu_profile.catalogue.samples import Interval
from gpu_profile.recording.kernel_stamps import KernelStamps
from gpu_profile.regimes.kernel_work import AttributeValue, KernelWork
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions.streams import UNMARKED, Stream

#: The results of a profiler's window for an execution are waited for at most this long after its end.
AWAIT_S: Final = 10.0


class Execution:
    """One run of a region. The thread that runs it writes it; the join reads it afterwards.

    `start_ns` is 0 before the region has begun and `end_ns` until it has ended. `device` names its devices, as
    `Visible.resolve` takes them; None: the process's default. `stream` is None where device intervals are unavailable.
    Marks and `on_device_ns` exist only with a stream. `on_device_ns`: when the device passed each mark, None until the
    mark is resolved.
    """

    # Attributes that most executions never set are class defaults: setting them would add much to a region's cost.
    __slots__ = ("__dict__", "end_ns", "name", "parent", "start_ns")

    items: float | None = None
    device: Hashable = None
    failed: bool = False
    #: By how much the clock was set ahead during it, or back if negative. Its end may then be before its start.
    skipped_ns: int = 0
    #: How many executions it represents: above 1 where others were not sampled.
    represents: int = 1
    span_id: int = 0
    trace_id: int = 0
    #: Whether its span is exported.
    sampled: bool = False
    #: The measurements of the profiler of operations within it.
    operation: RegionOperation | None = None
    #: Its kernels and copies, from a profiler's records.
    kernels: KernelWork | None = None
    #: The times of the kernels that it launched itself, for a recording.
    kernel_stamps: KernelStamps | None = None
    #: Whether `kernels` is pending: a window of the profiler in which it ran is not read yet.
    awaits_kernels: bool = False
    stream: Stream | None = None
    start_mark: object
    end_mark: object
    on_device_ns: tuple[int | None, int | None]

    name: str
    parent: Execution | None
    start_ns: int
    end_ns: int

    def __init__(
        self, name: str, parent: Execution | None = None, items: float | None = None, device: Hashable = None
    ) -> None:
        self.name = name
        self.parent = parent
        self.start_ns = self.end_ns = 0
        if items is not None:
            self.items = items
        if device is not None:
            self.device = device

    def mark_start(self, stream: Stream) -> None:
        """Record the start mark on `stream`. An execution that names no device is on the stream's."""
        self.start_mark, self.end_mark, self.on_device_ns = stream.record(), None, (None, None)
        if self.device is None:
            self.device = stream.device_uuid
        self.stream = stream

    def at(self, start_ns: int, end_ns: int) -> Execution:
        """An execution of another process that ran then. This one has no times, and represents many."""
        made = Execution(self.name, device=self.device)
        made.start_ns, made.end_ns = start_ns, end_ns
        if self.failed:
            made.failed = True
        if self.represents != 1:
            made.represents = self.represents
        return made

    @property
    def host(self) -> Interval:
        """The host interval. Valid only after the execution has ended."""
        return Interval(self.begun_ns, self.end_ns)

    @property
    def begun_ns(self) -> int:
        """The start on the host. By the later setting of the clock, if that was set back meanwhile."""
        return self.start_ns + min(0, self.skipped_ns)

    @property
    def length_ns(self) -> int:
        """The time that passed on the host. Valid only after the execution has ended."""
        return max(0, self.end_ns - self.start_ns - self.skipped_ns)

    def profiled(self) -> dict[str, AttributeValue]:
        """The results of both profilers, as span attributes."""
        if self.operation is None and self.kernels is None:
            return {}  # nearly always
        profiles = (each for each in (self.operation, self.kernels) if each is not None)
        return {name: value for each in profiles for name, value in each.attributes().items()}

    def on_device(self) -> tuple[int, int | None] | None:
        """`(start_ns, end_ns)`: when the device passed its marks. `end_ns` is None until the last mark is passed.

        None without a stream, and until the first mark is passed.
        """
        stream = self.stream
        if stream is None:
            return None
        first, last = self.start_mark, self.end_mark  # read before the times: resolving both deletes the marks
        start, end = self.on_device_ns
        if start is None or end is None:
            try:
                start = stream.resolve(first) if start is None else start
                end = None if start is None or last is None else stream.resolve(last)
                # If the clock was set in between, the length is unknown: it becomes 0.
                end = end if start is None or end is None else max(start, end)
            except Exception:  # noqa: BLE001 - a framework's broken event: the host interval replaces it
                self.stream = None
                return None
            if end is not None or self.on_device_ns[1] is None:  # another thread may have resolved both meanwhile
                self.on_device_ns = start, end
            if end is not None:
                self.start_mark = self.end_mark = None  # events are scarce
        return None if start is None else (start, end)

    def interval(self) -> Interval | None:
        """The interval that is joined: the device's with a stream, else the host interval. None while pending."""
        if not self.end_ns:
            return None
        passed = self.on_device()
        if self.stream is None:
            return self.host
        return None if passed is None or passed[1] is None else Interval(passed[0], passed[1], "device")

    def active(self) -> tuple[int, int | None] | None:
        """`(start_ns, end_ns)` on its device, or on the host without a stream.

        `end_ns` is None while it runs. None before it has started there.
        """
        passed = self.on_device()
        if self.stream is not None:
            return passed
        return (self.begun_ns, self.end_ns or None) if self.start_ns else None

    def nearest(self, present: Container[int]) -> int | None:
        """The `id` of the innermost ancestor in `present`. Ancestors on other devices, or over, may be in between."""
        ancestor = self.parent
        while ancestor is not None and id(ancestor) not in present:
            ancestor = ancestor.parent
        return None if ancestor is None else id(ancestor)


def resolve_together(executions: Iterable[Execution]) -> set[int]:
    """Resolve the marks of executions that have ended, for streams that can resolve many at once.

    Returns the `id` of each execution whose marks the device has not passed. Any other execution without both times was
    not resolved here: resolve its marks singly.
    """
    by_stream: dict[int, list[tuple[Execution, object, object]]] = {}
    for execution in executions:
        stream = execution.stream
        if stream is None:
            continue
        # Read before the times: another thread may resolve both marks, which deletes them.
        first, last = execution.start_mark, execution.end_mark
        if execution.on_device_ns[1] is None and first is not UNMARKED and last is not UNMARKED:
            by_stream.setdefault(id(stream), []).append((execution, first, last))
    pending: set[int] = set()
    for group in by_stream.values():
        with suppress(Exception):  # the caller then resolves each mark singly, and sees its error
            moments = group[0][0].stream.moments  # type: ignore[union-attr]
            ends = moments([last for _, _, last in group])
            starts = moments([first for _, first, _ in group])
            for (execution, _, _), start, end in zip(group, starts, ends, strict=True):
                if start is None or end is None:
                    pending.add(id(execution))
                else:
                    execution.on_device_ns = start, max(start, end)
                    execution.start_mark = execution.end_mark = None
    return pending
