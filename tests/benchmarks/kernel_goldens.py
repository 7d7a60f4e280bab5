"""Figures of recorded traces that other code found, and those by the definitions of a peer."""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from support.traces import COUNTERS, DDP, IDLE, SUMS, US, activity_of, as_hta, flop_of, recorded, rounded

from benchmarks.rows import Row
from gpu_profile.kernels import Kind, Operation
from gpu_profile.kernels.joining.intervals import Cover
from gpu_profile.kernels.records import RangeCounters, Record

#: What HTA 0.5.0 says of the trace with NCCL: idle and computing shares of the span, overlap of the communication.
_HTA: Final = (77.78, 17.26, 14.31)
_FLOPS: Final = 80_231_038_456


def golden_rows() -> Iterator[Row]:
    """What must be equal, and where a peer's definition gives another number, both."""
    found = {name: activity_of(recorded(name)) for name in SUMS}
    wrong = [name for name, known in SUMS.items() if rounded(found[name]) != known]
    yield Row(
        f"operations, kernels, span, busy, communication and overlap of {len(SUMS)} recorded traces",
        f"{len(SUMS) - len(wrong)} of {len(SUMS)} equal",
        "other code's figures",
        reach="all equal",
        ok=not wrong,
    )
    streams = {(name, s.stream): s.idle for name, activity in found.items() for s in activity.streams}
    split = {key: (round(streams[key].host_wait_ns / US), round(streams[key].other_ns / US)) for key in IDLE}
    same = sum(split[key] == known for key, known in IDLE.items())
    yield Row(
        f"idle time of {len(IDLE)} streams by cause: waiting for the host, and for something else",
        f"{same} of {len(IDLE)} equal",
        "other code's figures",
        reach="all equal",
        ok=same == len(IDLE),
    )
    ours, theirs = _shares(recorded(DDP)), _shares(as_hta(recorded(DDP)))
    yield Row(
        "idle, computing, and communication overlapped, of the trace with NCCL",
        "/".join(map(str, ours)) + " %: the whole trace, in ns",
        "/".join(map(str, theirs)) + " % by HTA's definition: no last step, times cut to whole µs",
        reach="by its definition, HTA's " + "/".join(map(str, _HTA)),
        ok=theirs == _HTA,
    )
    flops = sum(flop_of(record.values) for record in recorded(COUNTERS) if isinstance(record, RangeCounters))
    yield Row(
        "FLOPs that the counters of a run add up to, a fused multiply-add counting 2",
        f"{flops:,.0f}",
        f"{_FLOPS:,}",
        reach="equal",
        ok=flops == _FLOPS,
    )


def _shares(records: Iterable[Record]) -> tuple[float, ...]:
    """Per cent: idle and computing of the span, communication that is overlapped of all communication."""
    records = list(records)
    activity = activity_of(records)
    kernels = [r for r in records if isinstance(r, Operation) and r.kind is Kind.KERNEL]
    computing = Cover(np.array([r.start_ns for r in kernels]), np.array([r.end_ns for r in kernels])).length
    shares = (
        activity.idle.total_ns / activity.device_ns,
        computing / activity.device_ns,
        activity.overlap_ratio or 0.0,
    )
    return tuple(round(100 * share, 2) for share in shares)
