"""One execution of a region, from its start on the host to its last mark on the device."""

from __future__ import annotations

from gpu_profile.join import Activity
from gpu_profile.samples import Interval
from gpu_profile.streams import Stream


class Execution:
    """Mutable while it runs, written by the thread that runs it; read by the join afterwards.

    `end_ns` is 0 until the region has ended. `stream` and the marks are None where nobody can tell device intervals.
    """

    __slots__ = (
        "device", "end_mark", "end_ns", "failed", "items", "name", "parent", "span_id", "start_mark", "start_ns",
        "stream", "trace_id",
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
        self.start_mark: object = None
        self.end_mark: object = None

    @property
    def host(self) -> Interval:
        """The interval by the host's clock; only for an execution that has ended."""
        return Interval(self.start_ns, self.end_ns)

    def on_device(self) -> tuple[int, int | None] | None:
        """When its stream passed its first and last mark; the second is None while it has not, all if not the first."""
        if self.stream is None or self.start_mark is None:
            return None
        start = self.stream.resolve(self.start_mark)
        if start is None:
            return None
        end = None if self.end_mark is None else self.stream.resolve(self.end_mark)
        return start, end

    def interval(self) -> Interval | None:
        """The interval that joins use: the device's where there is one. None while it is not known yet."""
        if not self.end_ns:
            return None
        if self.stream is None:
            return self.host
        known = self.on_device()
        if known is None or known[1] is None:
            return None
        return Interval(known[0], known[1], "device")

    def activity(self, device: str) -> Activity | None:
        """Its activity on `device` as far as it is known now; None if it was, or is so far, not active there."""
        parent = None if self.parent is None else id(self.parent)
        if self.stream is not None:
            known = self.on_device() if self.stream.device_uuid == device else None
            return None if known is None else Activity(id(self), parent, self.name, known[0], known[1])
        if self.device is not None and self.device != device:
            return None
        return Activity(id(self), parent, self.name, self.start_ns, self.end_ns or None)
