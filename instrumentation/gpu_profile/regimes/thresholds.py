"""The numbers that verdicts rest on, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from gpu_profile.regimes.evidence import Basis


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers in the rules. All are ratios above 0 and at most 1 unless they say otherwise.

    `idle_busy`: KempnerPulse's idle class, all activities below 5 %. `starved_busy`: a wait that leaves work less than
    this share of the two together is the larger of them; the half is ours. `ceiling`, `balanced`: Nsight Compute's
    speed-of-light rule (latency bound below 60 %, balanced within 10 points). `half`: what reaches less of both
    ceilings spends the larger part of its time on something else; between the two nothing is said. `part`: an operation
    that reaches less of either measured ceiling is explained by neither; ours. `dram_ceiling`: DCGM documents about
    80 % of the DRAM activity as the practical maximum. `tensor_ceiling`: dcgmproftester saturates the tensor pipe at
    about 93 %. `broad_sm`: DCGM, SM activity of 80 % is necessary for effective use. `narrow_sm`: KempnerPulse's "busy,
    low SM". `used_sm`: DCGM, SM activity below 50 % is likely ineffective use; on fewer multiprocessors than that, what
    is missed cannot be laid on latency. `memory_sm`: this share of the multiprocessors
    is taken to saturate device memory; ours. `pcie_ceiling`: headers of 20 to 28 bytes to 128 or 256 of payload leave
    about 85 % of the link's rate. `nvlink_ceiling`: NCCL's all-reduce reaches about 80 % of what the links carry (bus
    bandwidths of some 235 of 300 GB/s on an A100, 370 of 450 on an H100). `nvlink_memory`: the share of DRAM bandwidth
    that full NVLinks take by themselves, for what is sent is read and what is received is written; 19 % (H200) to 33 %
    (V100) by data sheet. `hot_power`: half of a power limit is more than a stalled GPU draws, and more than some
    memory-bound work (decoding on an H200: 20 to 43 %, arXiv 2605.11999), of which nothing is said; ours, coarse.
    `full_power`: this share of the limit is taken for arithmetic if memory is touched for little of the time; ours,
    coarse. `limit_power`: from this share of the limit on, arithmetic that touches memory all the time is as likely as
    memory-bound work; ours, coarse. `least_n`: windows, or GPU operations of a trace, below which nothing is said; a
    whole number. `sure_margin`: the distance from a threshold at which a verdict is as sure as its basis allows.
    `least_margin`: at less than this no verdict rests on sensors, for that is how far their gains and the rates made of
    them are off. `well_fed`: in a trace, gpu-idle finds nothing to mend from this busy share on. `short_kernel`: in
    seconds, gpu-idle's mean kernel of launch-bound work, 25 µs. `grows`: an operation that takes less than 1.5 times as
    long for twice the work is bound by overhead, as in GPURegimeProfiler's test by doubling.
    """

    idle_busy: float = 0.05
    starved_busy: float = 0.5
    ceiling: float = 0.6
    half: float = 0.5
    part: float = 0.25
    balanced: float = 0.1
    dram_ceiling: float = 0.8
    tensor_ceiling: float = 0.93
    broad_sm: float = 0.8
    narrow_sm: float = 0.25
    used_sm: float = 0.5
    memory_sm: float = 0.5
    pcie_ceiling: float = 0.85
    nvlink_ceiling: float = 0.8
    nvlink_memory: float = 0.25
    hot_power: float = 0.5
    full_power: float = 0.7
    limit_power: float = 0.85
    least_n: int = 4
    sure_margin: float = 0.2
    least_margin: float = 0.02
    well_fed: float = 0.8
    short_kernel: float = 25e-6
    grows: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} must be positive, not {value}")
            if field.name != "least_n" and value > 1:
                raise ValueError(f"{field.name} is at most 1, not {value}")


DEFAULT_THRESHOLDS: Final = Thresholds()

#: How sure a verdict can be at most, by what it rests on: counters can miss a cause, utilisation nearly always does.
BEST_CONFIDENCE: Final[dict[Basis, float]] = {"kernels": 0.95, "operation": 0.95, "counters": 0.9, "coarse": 0.8}
