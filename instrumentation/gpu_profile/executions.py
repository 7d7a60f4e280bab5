"""One execution of a region, from its start on the host to its last mark on the device."""

from __future__ import annotations

from collections.abc import Container

from gpu_profile.activities import Activity
from gpu_profile.samples import Interval
from gpu_profile.streams import Stream


class Execution:
    """Mutable while it runs, written by the thread that runs it; read by the join afterwards.

    `start_ns` is 0 before the region has begun and `end_ns` until it has ended. `device` is the UUID of the device that
    is known to be used, None for the process's default. `stream` is None where nobody can tell device intervals; only
    with a stream are there marks, and `on_device_ns`, the moments at which they were passed as far as they are known.
    """

    __slots__ = (
        "device", "end_mark", "end_ns", "failed", "items", "name", "on_device_ns", "parent", "span_id",
        "start_mark", "start_ns", "stream", "trace_id",
    )  # fmt: skip

    def __init__(self, name: str, parent: Execution | None, items: float | None, device: str | None) -> None:
        self.name = name
        self.parent = parent
        self.items = items
        self.device = device
        self.start_ns = 0
        self.end_ns = 0
        self.failed = False
        self.span_id = 0
        self.trace_id = 0
        self.stream: Stream | None = None
        self.start_mark: object
        self.end_mark: object
        self.on_device_ns: tuple[int | None, int | None]

    def mark_start(self, stream: Stream) -> None:
        """Mark the stream's place now as the execution's start on its device."""
        self.start_mark, self.end_mark, self.on_device_ns = stream.record(), None, (None, None)
        self.device = stream.device_uuid
        self.stream = stream

    @property
    def host(self) -> Interval:
        """The interval by the host's clock; only for an execution that has ended."""
        return Interval(self.start_ns, self.end_ns)

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
            except Exception:  # noqa: BLE001 - a framework's broken event: the host's interval must do
                self.stream = None
                return None
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

    def activity(self, device: str) -> Activity | None:
        """Its activity on `device` as far as it is known now; None if it was, or is so far, not active there."""
        if self.device is not None and self.device != device:
            return None
        parent = None if self.parent is None else id(self.parent)
        known = self.on_device()
        if self.stream is not None:
            return None if known is None else Activity(id(self), parent, self.name, known[0], known[1])
        return Activity(id(self), parent, self.name, self.start_ns, self.end_ns or None)

    def nearest(self, present: Container[int]) -> int | None:
        """The innermost ancestor whose `id` is among those present: those between may be elsewhere, or over."""
        ancestor = self.parent
        while ancestor is not None and id(ancestor) not in present:
            ancestor = ancestor.parent
        return None if ancestor is None else id(ancestor)
