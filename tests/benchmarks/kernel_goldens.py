"""Figures of recorded traces that other code found, and those by the definitions of a peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.rows import Row
from gpu_profile.kernels import Activity, Kind, Operation, Trace, measure
from gpu_profile.kernels.joining.intervals import Cover
from gpu_profile.kernels.records import Counted, Range, Record

TRACES: Final = Path(__file__).parents[1] / "data" / "traces"
_US: Final = 1000
#: Trace: operations, kernels, span, busy, communication and overlap in µs.
_SUMS: Final = {
    "hta/alexnet_a100": (98, 79, 12_920_244, 66_141, 0, 0),
    "hta/ddp_a100_nccl_rank0": (3774, 2700, 660_551, 157_500, 46_876, 7_317),
    "hta/mi250_minitoy_rocm62": (16, 14, 8_912, 149, 0, 0),
    "hta/multistream_event_sync_a100": (6, 3, 19_506, 372, 0, 0),
    "kineto/resnet50_workers0": (9096, 8772, 996_477, 603_558, 0, 0),
}
#: Trace and stream: waiting for the host, and for something else, in µs.
_IDLE: Final = {
    ("hta/alexnet_a100", 7): (12_855_007, 104),
    ("hta/alexnet_a100", 20): (12_011_718, 3),
    ("hta/ddp_a100_nccl_rank0", 7): (540_091, 2_150),
    ("hta/ddp_a100_nccl_rank0", 40): (583_924, 0),
    ("hta/mi250_minitoy_rocm62", 0): (8_763, 0),
    ("hta/multistream_event_sync_a100", 20): (32, 0),
    ("hta/multistream_event_sync_a100", 24): (0, 15),
    ("hta/multistream_event_sync_a100", 28): (0, 15),
    ("kineto/resnet50_workers0", 7): (382_676, 10_243),
}
#: What HTA 0.5.0 says of the trace with NCCL: idle and computing shares of the span, overlap of the communication.
_HTA: Final = (77.78, 17.26, 14.31)
_FLOPS: Final = 80_231_038_456
_DDP: Final = "hta/ddp_a100_nccl_rank0"
_COUNTERS: Final = "hta/alexnet_a100_cupti_counters"


def golden_rows() -> Iterator[Row]:
    """What must be equal, and where a peer's definition gives another number, both."""
    found = {name: _activity(Trace(_path(name))) for name in _SUMS}
    wrong = [name for name, known in _SUMS.items() if _sums(found[name]) != known]
    yield Row(
        f"operations, kernels, span, busy, communication and overlap of {len(_SUMS)} recorded traces",
        f"{len(_SUMS) - len(wrong)} of {len(_SUMS)} equal",
        "other code's figures",
        reach="all equal",
        ok=not wrong,
    )
    streams = {(name, s.stream): s.idle for name, activity in found.items() for s in activity.streams}
    split = {key: (round(streams[key].host_wait_ns / _US), round(streams[key].other_ns / _US)) for key in _IDLE}
    same = sum(split[key] == known for key, known in _IDLE.items())
    yield Row(
        f"idle time of {len(_IDLE)} streams by cause: waiting for the host, and for something else",
        f"{same} of {len(_IDLE)} equal",
        "other code's figures",
        reach="all equal",
        ok=same == len(_IDLE),
    )
    ours, theirs = _shares(Trace(_path(_DDP))), _shares(_as_hta(Trace(_path(_DDP))))
    yield Row(
        "idle, computing, and communication overlapped, of the trace with NCCL",
        "/".join(map(str, ours)) + " %: the whole trace, in ns",
        "/".join(map(str, theirs)) + " % by HTA's definition: no last step, times cut to whole µs",
        reach="by its definition, HTA's " + "/".join(map(str, _HTA)),
        ok=theirs == _HTA,
    )
    flops = sum(_flops(record) for record in Trace(_path(_COUNTERS)) if isinstance(record, Counted))
    yield Row(
        "FLOPs that the counters of a run add up to, a fused multiply-add counting 2",
        f"{flops:,.0f}",
        f"{_FLOPS:,}",
        reach="equal",
        ok=flops == _FLOPS,
    )


def _path(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


def _activity(records: Iterable[Record]) -> Activity:
    found = measure(records)
    if found is None:
        raise ValueError("a recorded trace holds GPU operations")
    return found


def _sums(activity: Activity) -> tuple[int, ...]:
    kernels = activity.counts[Kind.KERNEL] + activity.counts[Kind.COMMUNICATION]
    times = (activity.span_ns, activity.busy_ns, activity.communication_ns, activity.overlap_ns)
    return activity.operations, kernels, *(round(time / _US) for time in times)


def _as_hta(records: Iterable[Record]) -> list[Operation]:
    """HTA leaves the last step of a trace out, and rounds starts up and ends down to whole microseconds."""
    records = list(records)
    last = max(r.start_ns for r in records if isinstance(r, Range) and r.name == "ProfilerStep")
    kept = [r for r in records if isinstance(r, Operation) and r.start_ns < last]
    return [r._replace(start_ns=-(-r.start_ns // _US) * _US, end_ns=r.end_ns // _US * _US) for r in kept]


def _shares(records: Iterable[Record]) -> tuple[float, ...]:
    """Per cent: idle and computing of the span, communication that is overlapped of all communication."""
    records = list(records)
    activity = _activity(records)
    kernels = [r for r in records if isinstance(r, Operation) and r.kind is Kind.KERNEL]
    computing = Cover(np.array([r.start_ns for r in kernels]), np.array([r.end_ns for r in kernels])).length
    shares = (
        activity.idle.total_ns / activity.device_ns,
        computing / activity.device_ns,
        activity.overlap_ratio or 0.0,
    )
    return tuple(round(100 * share, 2) for share in shares)


def _flops(counted: Counted) -> float:
    return sum(value * (2 if "fma" in metric else 1) for metric, value in counted.values.items())
