"""Recordings of real GPUs as workloads: what the programs of tests/gpu did, and which verdicts are right.

The accepted verdicts follow from the programs (tests/gpu/programs.py, truth.py, joint.py) and the READMEs beside the
recordings. Without the signals of GPM, the same recordings say what coarse sensors would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.regime_workloads import MIXED, SPINNING, UNKNOWN
from gpu_profile.analysis.devices import timeline_of
from gpu_profile.catalogue import Tier, signal
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Timeline
from gpu_profile.recording import Recording, read_recording
from gpu_profile.regimes.evidence import Basis

_DATA: Final = Path(__file__).parents[1] / "data" / "hardware"
#: The region that stands for a whole program whose regions are too short for a verdict of their own.
_WHOLE: Final = "*"


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A region of a recording; `*` is the whole program."""

    recording: str
    region: str
    accepted: frozenset[str]
    why: str

    @property
    def name(self) -> str:
        """Its name in the table."""
        return f"{self.recording}:{self.region}"

    def right(self, basis: str) -> frozenset[str]:
        """The right verdicts by evidence of a basis."""
        return self.accepted | {UNKNOWN} if basis == "coarse" else self.accepted


_SOLO: Final[Mapping[str, tuple[str, str]]] = {
    "solo.gemm_bf16": (
        "COMPUTE_BOUND",
        "the tensor pipe is active in nine tenths of the busy time, at the power limit",
    ),
    "solo.gemm_fp32": ("COMPUTE_BOUND", "the FP32 lanes issue in 75 % of cycles, as much as this kernel ever reaches"),
    "solo.copy": ("MEMORY_BOUND", "86 to 89 % of the bandwidth"),
    "solo.reduce": ("MEMORY_BOUND", "83 % of the bandwidth with short gaps"),
    "solo.tiny": ("OVERHEAD_BOUND HOST_BOUND", "1,024 elements, a launch each 9 µs"),
    "solo.gather": ("LATENCY_BOUND UNKNOWN", "rows in random order by few warps: a quarter of the bandwidth"),
}
_TABLE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "h100/solo": _SOLO,
    "h200/solo": _SOLO,
    "h100/others": {
        "others.from_host": ("TRANSFER_BOUND", "pinned copies all the time, 59 GB/s"),
        "others.spinning": (f"{SPINNING} {UNKNOWN}", "a kernel of one thread that only waits"),
        "others.mixed": (f"{MIXED} BALANCED {UNKNOWN}", "products beside copies on another stream"),
        "others.starved": ("HOST_BOUND IDLE", "a product, then a sleep of 2 ms: work in 6 % of the time"),
        "others.idle": ("IDLE HOST_BOUND", "the host sleeps; the device worked in other regions"),
    },
    "h200/phases": {
        "phases.alone_forward": (f"COMPUTE_BOUND {MIXED}", "products and attention, at the power limit"),
        "phases.alone_backward": (f"COMPUTE_BOUND {MIXED}", "the same, backwards"),
        "phases.alone_optimizer": ("MEMORY_BOUND", "AdamW reads and writes states: 62 % of the bandwidth, few FLOPs"),
    },
    "h100/joint/transfer": {_WHOLE: ("TRANSFER_BOUND", "pinned copies of 64 MiB in and out by turns")},
    "h100/joint/tiny": {_WHOLE: ("OVERHEAD_BOUND HOST_BOUND", "1,024 elements, launched one by one")},
    "h100/joint/inference": {
        _WHOLE: ("HOST_BOUND OVERHEAD_BOUND", "six layers from Python, a wait for each step: busy in 0.17 of the time")
    },
    "h100/joint/training": {
        _WHOLE: ("HOST_BOUND OVERHEAD_BOUND", "a small transformer from Python: busy in 0.15 of the time")
    },
    "h100/joint/products": {
        _WHOLE: (f"COMPUTE_BOUND {MIXED}", "products on tensor cores and on FP32 lanes by turns, next to no memory")
    },
    "h100/joint/memory": {
        _WHOLE: (f"MEMORY_BOUND {MIXED} {UNKNOWN}", "copies at full bandwidth and a gather at a quarter by turns")
    },
    "h100/joint/mixed": {_WHOLE: (f"{MIXED} {UNKNOWN}", "products on two pipes, copies and a gather by turns")},
    "h100/joint/starved": {_WHOLE: ("HOST_BOUND", "the same with pauses: nothing queued for 0.6 of the time")},
}  # fmt: skip


def recorded_workloads() -> tuple[RecordedWorkload, ...]:
    """All of them."""
    return tuple(
        RecordedWorkload(where, region, frozenset(words.split()), why)
        for where, regions in _TABLE.items()
        for region, (words, why) in regions.items()
    )


def recording_of(where: str, basis: Basis) -> tuple[Timeline, Recording]:
    """The device's history by the signals of a basis, and the recording that it is from."""
    recording = read_recording(_DATA / where)
    (device,) = recording.devices
    columns = {
        key: column
        for key, column in recording.samples[device.uuid].items()
        if basis == "counters" or signal(key).tier is not Tier.GPM
    }
    return timeline_of(device, columns, []), recording


def interval_of(work: RecordedWorkload, recording: Recording) -> Interval:
    """The longest execution of the workload's region; all executions for a whole program."""
    spans = [span for span in recording.spans if work.region in (span.name, _WHOLE) and span.name != "warm"]
    if work.region == _WHOLE:
        return Interval(min(span.start_ns for span in spans), max(span.end_ns for span in spans))
    longest = max(spans, key=lambda span: span.end_ns - span.start_ns)
    return Interval(longest.start_ns, longest.end_ns)
