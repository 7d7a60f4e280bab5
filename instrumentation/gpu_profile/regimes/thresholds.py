"""The numbers behind verdicts, each with its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

from gpu_profile.regimes.evidence import Basis


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers in the rules. All are ratios above 0 and at most 1 unless they say otherwise.

    `idle_busy`: KempnerPulse's idle class, all activities below 5 %. `starved_busy`: the share of work in the sum of
    work and a wait below which the wait is the larger; the half is ours. `ceiling`, `balanced`: Nsight Compute's
    speed-of-light rule (latency bound below 60 %, balanced within 10 points). `half`: work that reaches less of both
    ceilings spends most of its time on something else. Between `half` and `ceiling` there is no verdict. `part`:
    below this share of both measured ceilings, neither explains an operation; ours. `dram_ceiling`: DCGM documents
    about 80 % of the DRAM activity as the practical maximum. `tensor_ceiling`: dcgmproftester saturates the tensor
    pipe at about 93 %. `broad_sm`: DCGM, SM activity of 80 % is necessary for effective use. `narrow_sm`:
    KempnerPulse's "busy, low SM". `used_sm`: DCGM, SM activity below 50 % is likely ineffective use; on fewer
    multiprocessors, latency does not explain the rest. `memory_sm`: this share of the multiprocessors is assumed to
    saturate device memory; ours. `few_warps`: with this share of the most warps resident or less, too few are there
    to hide latency: 0.02 to 0.17 in kernels that wait for memory on an H100 and an H200; ours. `pcie_ceiling`:
    headers of 20 to 28 bytes to 128 or 256 of payload leave about 85 % of the link's rate. `staged`: the share of the
    8 GB/s of copies from pageable memory, which a host thread stages, from which they may take all the time; ours.
    `both_ways`: a collective moves as much out as in; ours. `engine_ceiling`: a video engine above 80 % has little
    time without a frame; ours. `silent`: a counter below 5 % shows nothing that limits a busy GPU; ours.
    `spinning_busy`: a kernel that waits keeps the GPU busy all the time; ours. `quiet_power`: a GPU that waits draws
    little more than without work, 16 to 24 % of the limit on an H100, H200 and A100; ours. `mixed_part`: the least
    share of the lesser of two kinds of work; ours. `uneven`: a standard deviation of windows above this comes from
    phases, not from one kernel; ours. `nvlink_ceiling`: NCCL's all-reduce reaches about 80 % of the links' rate (bus
    bandwidths of some 235 of 300 GB/s on an A100, 370 of 450 on an H100). `nvlink_memory`: the share of DRAM
    bandwidth that full NVLinks take by themselves: sent data are read and received data are written; 19 % (H200) to
    33 % (V100) by data sheet. `hot_power`: work that memory limits draws more than 40 % of the power limit, copies 74
    to 82 % on an H100 and an H200. Some draws less (decoding on an H200: 20 to 43 %, arXiv 2605.11999), which gets no
    verdict; ours, coarse. `full_power`: this share of the limit is taken for arithmetic if memory is accessed for
    little of the time; ours, coarse. `touched`: work that memory limits accesses it for nearly all of the time, 97 to
    99 % of it on an H100 and an H200; ours, coarse. `limit_power`: from this share of the limit on, arithmetic that
    accesses memory all the time is as likely as memory-bound work; ours, coarse. `least_n`: the least number of
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
    few_warps: float = 0.35
    pcie_ceiling: float = 0.85
    staged: float = 0.6
    both_ways: float = 0.7
    engine_ceiling: float = 0.8
    silent: float = 0.05
    spinning_busy: float = 0.8
    quiet_power: float = 0.3
    mixed_part: float = 0.25
    uneven: float = 0.15
    nvlink_ceiling: float = 0.8
    nvlink_memory: float = 0.25
    hot_power: float = 0.4
    full_power: float = 0.7
    touched: float = 0.8
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

    def moved(self) -> Iterator[tuple[str, Thresholds]]:
        """A name, and the same with that threshold lower or higher by `MOVED`, at most 1; `least_n` by one."""
        for field in fields(self):
            value = getattr(self, field.name)
            for sign in (-1, 1):
                other: Any = min(1.0, value * (1 + sign * MOVED))
                if field.name == "least_n":
                    other = max(1, value + sign)
                yield field.name, replace(self, **{field.name: other})


@cache
def moved(thresholds: Thresholds) -> tuple[tuple[str, Thresholds], ...]:
    """`Thresholds.moved`, made once."""
    return tuple(thresholds.moved())


DEFAULT_THRESHOLDS: Final = Thresholds()

#: The thresholds that scale the scores; the others are compared with them.
SCALES: Final = frozenset(
    {"dram_ceiling", "tensor_ceiling", "nvlink_ceiling", "nvlink_memory", "pcie_ceiling", "memory_sm"}
)
#: A verdict of more confidence than `FIRM` stays if a threshold moves by 15 %. It is tried with a little more, since
#: values are rounded for it.
MOVED: Final = 0.17
FIRM: Final = 0.6
#: The highest confidence, by basis: the share of right verdicts far from every threshold.
BEST_CONFIDENCE: Final[dict[Basis, float]] = {"kernels": 0.95, "operation": 0.95, "counters": 0.97, "coarse": 0.95}
