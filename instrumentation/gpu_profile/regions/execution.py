"""One execution of a region, from its start on the host to its last mark on the device."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from contextlib import suppress
from typing import Final

from gpu_profile.catalogue.samples import Interval
from gpu_profile.regimes.kernel_work import AttributeValue, KernelWork
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions.streams import UNMARKED, Stream

#: Who waits for what a profiler's window says of an execution waits at most this long after its end.
AWAIT_S: Final = 10.0


class Execution:
    """Mutable while it runs, written by the thread that runs it; read by the join afterwards.

    `start_ns` is 0 before the region has begun and `end_ns` until it has ended. `device` names the devices that are
    known to be used, as `Visible.resolve` takes them; None for the process's default. `stream` is None where nobody can
    tell device intervals; only with a stream are there marks, and `on_device_ns`, the moments at which they were passed
    as far as they are known.
    """

    # What most executions never have is a default of the class: setting it would be a good part of what a region costs.
    __slots__ = ("__dict__", "end_ns", "name", "parent", "start_ns")

    items: float | None = None
    device: Hashable = None
    failed: bool = False
    span_id: int = 0
    trace_id: int = 0
    #: Whether a span of it is exported.
    sampled: bool = False
    #: What the profiler of operations measured within it.
    operation: RegionOperation | None = None
    #: What a profiler's records say of it.
    kernels: KernelWork | None = None
    #: Whether `kernels` is still to come: a window of the profiler in which it ran is not read yet.
    awaited: bool = False
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
        """Mark the stream's place now as the execution's start on its device, which is that of one that names none."""
        self.start_mark, self.end_mark, self.on_device_ns = stream.record(), None, (None, None)
        if self.device is None:
            self.device = stream.device_uuid
        self.stream = stream

    @property
    def host(self) -> Interval:
        """The interval by the host's clock; only for an execution that has ended."""
        return Interval(self.start_ns, self.end_ns)

    def profiled(self) -> dict[str, AttributeValue]:
        """What profilers told of it, as attributes of a span."""
        if self.operation is None and self.kernels is None:
            return {}  # nearly always
        told = (each for each in (self.operation, self.kernels) if each is not None)
        return {name: value for each in told for name, value in each.attributes().items()}

    def on_device(self) -> tuple[int, int | None] | None:
        """When its stream passed its first and last mark; the second is None while it has not, all if not the first."""
        stream = self.stream
        if stream is None:
            return None
        first, last = self.start_mark, self.end_mark  # read before the moments: marks go once those are known
        start, end = self.on_device_ns
        if start is None or end is None:
            try:
                start = stream.resolve(first) if start is None else start
                end = None if start is None or last is None else stream.resolve(last)
                # A clock that was set in between tells of no length.
                end = end if start is None or end is None else max(start, end)
            except Exception:  # noqa: BLE001 - a framework's broken event: the host's interval must do
                self.stream = None
                return None
            if end is not None or self.on_device_ns[1] is None:  # another thread may have found out more meanwhile
                self.on_device_ns = start, end
            if end is not None:
                self.start_mark = self.end_mark = None  # events are scarce
        return None if start is None else (start, end)

    def interval(self) -> Interval | None:
        """The interval that joins use: the device's where there is one. None while it is not known yet."""
        if not self.end_ns:
            return None
        known = self.on_device()
        if self.stream is None:
            return self.host
        return None if known is None or known[1] is None else Interval(known[0], known[1], "device")

    def active(self) -> tuple[int, int | None] | None:
        """When it was active as far as it is known now: the end is None while it is; None if it was not, so far."""
        known = self.on_device()
        if self.stream is not None:
            return known
        start_ns, end_ns = self.start_ns, self.end_ns
        return (start_ns, end_ns or None) if start_ns else None

    def nearest(self, present: Container[int]) -> int | None:
        """The innermost ancestor whose `id` is among those present: those between may be elsewhere, or over."""
        ancestor = self.parent
        while ancestor is not None and id(ancestor) not in present:
            ancestor = ancestor.parent
        return None if ancestor is None else id(ancestor)


def resolve_together(executions: Iterable[Execution]) -> set[int]:
    """Resolve the marks of executions that have ended, where their streams can resolve many at once.

    Returns the `id` of those whose marks the device has not passed. Others, without both moments, are yet to be asked.
    """
    by_stream: dict[int, list[tuple[Execution, object, object]]] = {}
    for execution in executions:
        stream = execution.stream
        if stream is None:
            continue
        # Marks go once both moments are known, which another thread may find out: so they are read first.
        first, last = execution.start_mark, execution.end_mark
        if execution.on_device_ns[1] is None and first is not UNMARKED and last is not UNMARKED:
            by_stream.setdefault(id(stream), []).append((execution, first, last))
    pending: set[int] = set()
    for group in by_stream.values():
        with suppress(Exception):  # each is asked by itself then, and fails by itself
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
