"""What the GPU operations of a trace add up to, and why the GPU was idle between them. Pure; all times in ns.

The span goes from the start of the first to the end of the last GPU operation, and is the same for every device of a
trace; sums over several devices have `device_ns`, span times devices, as their denominator. Whatever overlaps counts
once. The order of the records changes nothing.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.trace import Kind, Launch, Operation
from gpu_profile.summary import Evidence

#: A shorter gap is the hardware's way from one operation to the next: HTA's `consecutive_kernel_delay`.
KERNEL_WAIT_NS: Final = 30
#: How long the host may take between operations, before the launching call, for the framework's own work on each
#: operation; HTA reports operations whose launch takes longer than this as outliers. The rest is something else.
PER_LAUNCH_NS: Final = 100_000

_KINDS: Final = tuple(Kind)
_CODES: Final = {kind: code for code, kind in enumerate(_KINDS)}
#: Sets of operations whose unions the sums are made of.
_UNIONS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "busy": _KINDS,
    "kernels": (Kind.KERNEL,),
    "comm": (Kind.COMMUNICATION,),
    "kernels or comm": (Kind.KERNEL, Kind.COMMUNICATION),
    "no transfer": (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY, Kind.SET),
    "transfer": (Kind.TRANSFER,),
    "copy": (Kind.TRANSFER, Kind.COPY),
}
_NONE: Final = np.iinfo(np.int64).max
_Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time by cause.

    `host_wait_ns`: the call that launched the next operation began after the last one had ended, so there was nothing
    to do. `kernel_wait_ns`: gaps below 30 ns that are no host wait. `other_ns`: the operation was launched in time and
    waited for something else, such as an event of another stream. `unknown_ns`: the trace has no call for it. After
    the last operation of a device, to the end of the span, nothing was launched: that is `host_wait_ns`, too.
    `launch_ns` is the part of `host_wait_ns` from the call on, and of the time before it at most 100 µs each.
    """

    host_wait_ns: int = 0
    kernel_wait_ns: int = 0
    other_ns: int = 0
    unknown_ns: int = 0
    launch_ns: int = 0

    @property
    def total_ns(self) -> int:
        """All idle time."""
        return self.host_wait_ns + self.kernel_wait_ns + self.other_ns + self.unknown_ns

    def __add__(self, other: Idle) -> Idle:
        return Idle(
            self.host_wait_ns + other.host_wait_ns,
            self.kernel_wait_ns + other.kernel_wait_ns,
            self.other_ns + other.other_ns,
            self.unknown_ns + other.unknown_ns,
            self.launch_ns + other.launch_ns,
        )


@dataclass(frozen=True, slots=True)
class StreamActivity:
    """One stream, between its own first and last operation: `busy_ns` + `idle.total_ns` = `span_ns`."""

    device: int
    stream: int | str
    operations: int
    span_ns: int
    busy_ns: int
    idle: Idle


@dataclass(frozen=True, slots=True)
class Activity:
    """A trace's GPU operations in sums over its devices.

    `communication_ns`: the union of collectives; `overlap_ns` is its part beside kernels of another kind.
    `transfer_ns`: the union of copies over a link; `exposed_transfer_ns` is its part beside nothing else. `copy_ns`:
    the union of copies of both kinds. `work_ns`: what else the GPU was busy with: kernels, sets, copies within it. So
    `work_ns + exposed_communication_ns + exposed_transfer_ns = busy_ns`, and `busy_ns + idle.total_ns = device_ns`.
    `mean_kernel_ns`: of kernels and collectives; None without any.
    """

    operations: int
    counts: Mapping[Kind, int]
    devices: tuple[int, ...]
    start_ns: int
    end_ns: int
    busy_ns: int
    communication_ns: int
    overlap_ns: int
    transfer_ns: int
    exposed_transfer_ns: int
    copy_ns: int
    mean_kernel_ns: float | None
    launches: int
    idle: Idle
    streams: tuple[StreamActivity, ...]

    @property
    def span_ns(self) -> int:
        """From the start of the first to the end of the last GPU operation."""
        return self.end_ns - self.start_ns

    @property
    def device_ns(self) -> int:
        """The span times the number of devices."""
        return self.span_ns * len(self.devices)

    @property
    def exposed_communication_ns(self) -> int:
        """Communication that no kernel of another kind hides."""
        return self.communication_ns - self.overlap_ns

    @property
    def work_ns(self) -> int:
        """Busy time that is neither exposed communication nor an exposed transfer."""
        return self.busy_ns - self.exposed_communication_ns - self.exposed_transfer_ns

    @property
    def overlap_ratio(self) -> float | None:
        """The share of the communication beside kernels of another kind; None without communication."""
        return self.overlap_ns / self.communication_ns if self.communication_ns else None


class _Columns:
    """Records as they come, in 33 bytes an operation and 16 a launch."""

    def __init__(self) -> None:
        self.kinds, self.streams = array("b"), array("l")
        self.starts, self.ends, self.causes = array("q"), array("q"), array("q")
        self.calls, self.called = array("q"), array("q")
        self.ids: dict[tuple[int, int | str], int] = {}

    def add(self, record: Operation | Launch) -> None:
        if isinstance(record, Launch):
            self.calls.append(record.correlation)
            self.called.append(record.start_ns)
            return
        self.kinds.append(_CODES[record.kind])
        self.streams.append(self.ids.setdefault((record.device, record.stream), len(self.ids)))
        self.starts.append(record.start_ns)
        self.ends.append(record.end_ns)
        # No call has the id 0.
        self.causes.append(record.correlation or 0)

    def launched(self) -> _Times:
        """When the call of each operation began; `_NONE` where there is no such call."""
        calls, called = np.asarray(self.calls, np.int64), np.asarray(self.called, np.int64)
        causes = np.asarray(self.causes, np.int64)
        if not len(calls):
            return np.full(len(causes), _NONE, np.int64)
        order = np.lexsort((called, calls))
        calls, called = calls[order], called[order]
        # The first of those that share an id.
        at = np.minimum(np.searchsorted(calls, causes), len(calls) - 1)
        return np.where(calls[at] == causes, called[at], _NONE)


def measure(records: Iterable[Operation | Launch]) -> Activity | None:
    """Add up what ran; None if no GPU operation is among the records. Reads them once, in any order."""
    columns = _Columns()
    for record in records:
        columns.add(record)
    return _sums(columns) if columns.starts else None


def _sums(columns: _Columns) -> Activity:
    kinds, streams = np.asarray(columns.kinds), np.asarray(columns.streams)
    starts, ends = np.asarray(columns.starts, np.int64), np.asarray(columns.ends, np.int64)
    launched = columns.launched()
    order = np.lexsort((ends, launched, starts))
    kinds, streams, starts, ends, launched = (c[order] for c in (kinds, streams, starts, ends, launched))
    start, end = int(starts[0]), int(ends.max())
    device_of = np.array([device for device, _ in columns.ids])
    devices = tuple(sorted(set(device_of.tolist())))
    sums = Counter[str]()
    idle = Idle()
    for device in devices:
        here = device_of[streams] == device
        what, a, b = kinds[here], starts[here], ends[here]
        for name, members in _UNIONS.items():
            among = np.isin(what, [_CODES[kind] for kind in members])
            sums[name] += _union(a[among], b[among])
        idle += _idle(a, b, launched[here], start, end)
    kernel = np.isin(kinds, [_CODES[Kind.KERNEL], _CODES[Kind.COMMUNICATION]])
    return Activity(
        operations=len(starts),
        counts={kind: int((kinds == code).sum()) for kind, code in _CODES.items()},
        devices=devices,
        start_ns=start,
        end_ns=end,
        busy_ns=sums["busy"],
        communication_ns=sums["comm"],
        overlap_ns=sums["kernels"] + sums["comm"] - sums["kernels or comm"],
        transfer_ns=sums["transfer"],
        exposed_transfer_ns=sums["busy"] - sums["no transfer"],
        copy_ns=sums["copy"],
        mean_kernel_ns=int((ends - starts)[kernel].sum()) / int(kernel.sum()) if kernel.any() else None,
        launches=len(columns.calls),
        idle=idle,
        streams=tuple(
            _stream(key, starts[streams == number], ends[streams == number], launched[streams == number])
            for key, number in sorted(columns.ids.items(), key=lambda item: (item[0][0], str(item[0][1])))
        ),
    )


def _stream(key: tuple[int, int | str], starts: _Times, ends: _Times, launched: _Times) -> StreamActivity:
    first, last = int(starts[0]), int(ends.max())
    idle = _idle(starts, ends, launched, first, last)
    return StreamActivity(*key, len(starts), last - first, _union(starts, ends), idle)


def _union(starts: _Times, ends: _Times) -> int:
    """How long at least one of the intervals lasts; they come sorted by their starts."""
    if not len(starts):
        return 0
    until = np.maximum.accumulate(ends)
    gaps = starts[1:] - until[:-1]
    return int(until[-1]) - int(starts[0]) - int(gaps[gaps > 0].sum())


def _idle(starts: _Times, ends: _Times, launched: _Times, first: int, last: int) -> Idle:
    """The gaps between `first` and `last` by their causes. Of operations that start together, the first launched."""
    until = np.concatenate(([first], np.maximum.accumulate(ends)[:-1]))
    gaps = starts - until
    some = gaps > 0
    gaps, until, starts, launched = gaps[some], until[some], starts[some], launched[some]
    unknown = launched == _NONE
    host = ~unknown & (launched > until)
    short = ~unknown & ~host & (gaps < KERNEL_WAIT_NS)
    # A call that seems to begin after its operation (clocks differ a little) leaves the whole gap before it.
    called = np.minimum(launched, starts)
    launch = starts - called + np.minimum(called - until, PER_LAUNCH_NS)
    # After a device's last operation nothing was launched any more.
    tail = last - int(ends.max())
    return Idle(
        host_wait_ns=int(gaps[host].sum()) + tail,
        kernel_wait_ns=int(gaps[short].sum()),
        other_ns=int(gaps[~unknown & ~host & ~short].sum()),
        unknown_ns=int(gaps[unknown].sum()),
        launch_ns=int(launch[host].sum()),
    )


def evidence(activity: Activity) -> Evidence:
    """What the regimes judge, as shares of `device_ns`; `kernel_s` is the mean kernel in seconds.

    Idle time whose cause the trace does not hold lowers the coverage; without any call of the host, only the busy time
    is known.
    """
    whole = activity.device_ns
    if not whole:
        return Evidence("kernels", {}, activity.operations, 0.0, reason="the trace's GPU operations take no time")
    idle = activity.idle
    values = {
        "busy": activity.busy_ns / whole,
        "work": activity.work_ns / whole,
        "communication": activity.exposed_communication_ns / whole,
        "transfer": activity.exposed_transfer_ns / whole,
    }
    if activity.launches:
        values["host_wait"] = idle.host_wait_ns / whole
        values["launch"] = idle.launch_ns / whole
        values["other_wait"] = (idle.kernel_wait_ns + idle.other_ns) / whole
    if activity.mean_kernel_ns is not None:
        values["kernel_s"] = activity.mean_kernel_ns / 1e9
    return Evidence("kernels", values, activity.operations, 1.0 - idle.unknown_ns / whole)
