"""Sums of a trace's GPU operations, and why the GPU was idle between them. Pure; all times in ns.

The span goes from the start of the first to the end of the last GPU operation, and is the same for every device of a
trace. Sums over several devices have `device_ns`, span times devices, as their denominator. Time in which operations
overlap counts once. The order of the records changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.kernels.joining.columns import CODES, KINDS, Numbers, RecordArrays
from gpu_profile.kernels.joining.idle import Idle, idle_between
from gpu_profile.kernels.joining.intervals import Cover
from gpu_profile.kernels.joining.work import OperationTable, gpu_work
from gpu_profile.kernels.records import Kind, Record
from gpu_profile.kernels.sums import TimeSums
from gpu_profile.regimes.evidence import Evidence

#: Kinds of operations by the union that the sums use.
_UNIONS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "busy": KINDS,
    "kernels": (Kind.KERNEL,),
    "comm": (Kind.COMMUNICATION,),
    "kernels or comm": (Kind.KERNEL, Kind.COMMUNICATION),
    "no transfer": (Kind.KERNEL, Kind.COMMUNICATION, Kind.COPY, Kind.SET),
    "transfer": (Kind.TRANSFER,),
    "copy": (Kind.TRANSFER, Kind.COPY),
}


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
class Activity(TimeSums):
    """A trace's GPU operations in sums over its devices.

    `communication_ns`: the union of collectives. `overlap_ns` is its part beside kernels of another kind.
    `transfer_ns`: the union of copies over a link. `exposed_transfer_ns` is its part beside nothing else. `copy_ns`:
    the union of copies of both kinds. `work_ns`: the rest of the busy time: kernels, sets, copies within a GPU. So
    `work_ns + exposed_communication_ns + exposed_transfer_ns = busy_ns`, and `busy_ns + idle.total_ns = device_ns`.
    `mean_kernel_ns`: mean duration of kernels and collectives; None without any.
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


def measure(records: Iterable[Record]) -> Activity | None:
    """Sum up the GPU operations; None if the records contain none. Reads the records once, in any order."""
    columns = RecordArrays(records)
    work, _ = gpu_work(columns)
    return activity_of(columns, work)


def activity_of(columns: RecordArrays, work: OperationTable) -> Activity | None:
    """As `measure`, from columns and their operations after the join with calls."""
    if not len(work.starts):
        return None
    kinds, streams, starts, ends, launched = work.kinds, work.streams, work.starts, work.ends, work.launched
    start, end = int(starts[0]), int(ends.max())
    keys = columns.streams
    devices = tuple(sorted({device for device, _ in keys}))
    sums = Counter[str]()
    idle = Idle()
    for device in devices:
        here = work.devices == device
        codes, begins, finishes = kinds[here], starts[here], ends[here]
        for name, members in _UNIONS.items():
            among = np.isin(codes, [CODES[kind] for kind in members])
            sums[name] += Cover(begins[among], finishes[among]).length
        idle += idle_between(begins, finishes, launched[here], start, end)
    kernel = np.isin(kinds, [CODES[Kind.KERNEL], CODES[Kind.COMMUNICATION]])
    return Activity(
        operations=len(starts),
        counts={kind: int((kinds == code).sum()) for kind, code in CODES.items()},
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
        launches=len(columns.calls.ids),
        idle=idle,
        streams=tuple(
            _stream(key, starts[streams == number], ends[streams == number], launched[streams == number])
            for number, key in sorted(enumerate(keys), key=lambda item: (item[1][0], str(item[1][1])))
        ),
    )


def _stream(key: tuple[int, int | str], starts: Numbers, ends: Numbers, launched: Numbers) -> StreamActivity:
    first, last = int(starts[0]), int(ends.max())
    idle = idle_between(starts, ends, launched, first, last)
    return StreamActivity(*key, len(starts), last - first, Cover(starts, ends).length, idle)


def evidence(activity: Activity) -> Evidence:
    """The evidence for a regime, as shares of `device_ns`."""
    whole = activity.device_ns
    if not whole:
        return Evidence("kernels", {}, activity.operations, 0.0, reason="the trace's GPU operations take no time")
    return activity.evidence_over(whole, activity.mean_kernel_ns)
