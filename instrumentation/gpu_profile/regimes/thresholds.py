"""The numbers behind verdicts, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from gpu_profile.regimes.evidence import Basis


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers in the rules. All are ratios above 0 and at most 1 unless they say otherwise.

    `idle_busy`: KempnerPulse's idle class, all activities below 5 %. `starved_busy`: the share of work in the sum of
    work and a wait below which the wait is the larger; the half is ours. `ceiling`, `balanced`: Nsight Compute's
    speed-of-light rule (latency bound below 60 %, balanced within 10 points). `half`: work that reaches less of both
    ceilings spends most of its time on something else. Between `half` and `ceiling` there is no verdict. `part`: below
    this share of both measured ceilings, neither explains an operation; ours. `dram_ceiling`: DCGM documents about
    80 % of the DRAM activity as the practical maximum. `tensor_ceiling`: dcgmproftester saturates the tensor pipe at
    about 93 %. `broad_sm`: DCGM, SM activity of 80 % is necessary for effective use. `narrow_sm`: KempnerPulse's "busy,
    low SM". `used_sm`: DCGM, SM activity below 50 % is likely ineffective use; on fewer multiprocessors, latency does
    not explain the rest. `memory_sm`: this share of the multiprocessors is assumed to saturate device memory; ours.
    `pcie_ceiling`: headers of 20 to 28 bytes to 128 or 256 of payload leave about 85 % of the link's rate.
    `nvlink_ceiling`: NCCL's all-reduce reaches about 80 % of the links' rate (bus bandwidths of some 235 of 300 GB/s on
    an A100, 370 of 450 on an H100). `nvlink_memory`: the share of DRAM bandwidth that full NVLinks take by themselves:
    sent data are read and received data are written; 19 % (H200) to 33 % (V100) by data sheet. `hot_power`: a stalled
    GPU draws less than half of its power limit. So does some memory-bound work (decoding on an H200: 20 to 43 %, arXiv
    2605.11999), which gets no verdict; ours, coarse. `full_power`: this share of the limit is taken for arithmetic if
    memory is accessed for little of the time; ours, coarse. `limit_power`: from this share of the limit on, arithmetic
    that accesses memory all the time is as likely as memory-bound work; ours, coarse. `least_n`: the least number of
    windows, or GPU operations of a trace, for a verdict; a whole number. `sure_margin`: the distance from a threshold
    at which a verdict has all the confidence of its basis. `least_margin`: below this margin there is no verdict from
    sensors: it is the error of their gains and rates. `well_fed`: in a trace, gpu-idle has no remedy from this busy
    share on. `short_kernel`: in seconds, gpu-idle's mean kernel of launch-bound work, 25 µs. `grows`: overhead bounds
    an operation that takes less than 1.5 times as long for twice the work, as in GPURegimeProfiler's doubling test.
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

#: The highest confidence, by basis: counters can miss a cause, utilisation nearly always does.
BEST_CONFIDENCE: Final[dict[Basis, float]] = {"kernels": 0.95, "operation": 0.95, "counters": 0.9, "coarse": 0.8}
