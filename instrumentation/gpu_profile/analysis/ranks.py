"""Compares the ranks of one job region by region: the slowest rank, and its excess. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median
from typing import Final

import numpy as np

from gpu_profile.analysis.causes import LateCause, Lateness, RankGpu, lateness, since
from gpu_profile.analysis.runs import Runs
from gpu_profile.recording import ProcessInfo

#: Ranks whose mean times differ by less than this share count as equal.
NEAR: Final = 0.05
#: The least distance of the fastest and the slowest rank, in standard errors: 95 % of equal ranks are closer.
_SURE: Final = 1.96


@dataclass(frozen=True, slots=True)
class RankUse:
    """The time of a region on one rank, in seconds on the host. `error_s` is the standard error of the mean.

    `error_s` is None with a single execution.
    """

    rank: int
    calls: int
    total_s: float
    mean_s: float
    p95_s: float
    error_s: float | None


@dataclass(frozen=True, slots=True)
class RegionRanks:
    """A region on the ranks that ran it, two or more, by rank."""

    region: str
    ranks: tuple[RankUse, ...]
    #: Why the slowest one is late. None unless they differ.
    late: Lateness | None = None

    @property
    def fastest(self) -> RankUse:
        """The rank with the least mean time."""
        return min(self.ranks, key=lambda use: use.mean_s)

    @property
    def slowest(self) -> RankUse:
        """The rank with the greatest mean time."""
        return max(self.ranks, key=lambda use: use.mean_s)

    @property
    def mean_s(self) -> float:
        """The mean of the ranks' means."""
        return sum(use.mean_s for use in self.ranks) / len(self.ranks)

    @property
    def excess(self) -> float:
        """The share of the fastest rank's time by which the slowest one takes longer."""
        return self.slowest.mean_s / self.fastest.mean_s - 1 if self.fastest.mean_s > 0 else 0.0

    @property
    def differ(self) -> bool:
        """Whether the slowest rank takes longer than the fastest by more than `NEAR` and than chance explains."""
        low, high = self.fastest, self.slowest
        if self.excess < NEAR:
            return False
        if low.error_s is None or high.error_s is None:
            return True
        return high.mean_s - low.mean_s > _SURE * sqrt(low.error_s**2 + high.error_s**2)


def by_rank(
    runs: Mapping[str, Runs], gpus: Callable[[str], Mapping[int, RankGpu]] = lambda _: {}
) -> tuple[RegionRanks, ...]:
    """The regions that ran on two ranks or more, in the order of `runs`.

    `gpus` returns the GPUs of a region's ranks, as far as each rank has its own.
    """
    regions = (RegionRanks(region, tuple(_uses(mine))) for region, mine in runs.items())
    return tuple(
        replace(each, late=_late(each, runs[each.region], gpus(each.region))) if each.differ else each
        for each in regions
        if len(each.ranks) > 1
    )


def _late(region: RegionRanks, runs: Runs, gpus: Mapping[int, RankGpu]) -> Lateness:
    slowest = region.slowest
    others = [use for use in region.ranks if use is not slowest]
    beside = [gpus[use.rank] for use in others if use.rank in gpus]
    since_ns = since(runs, slowest.rank, NEAR)
    if slowest.rank not in gpus or not beside:
        return Lateness(LateCause.UNKNOWN, "", since_ns)
    typical_s = median([use.mean_s for use in others])
    return Lateness(*lateness(gpus[slowest.rank], beside, slowest.mean_s, typical_s), since_ns)


def _uses(runs: Runs) -> Iterator[RankUse]:
    if runs.ranks is None:
        return
    lengths = runs.durations_s
    for rank in np.unique(runs.ranks).tolist():
        if rank < 0:
            continue
        own = lengths[runs.ranks == rank]
        error = float(own.std(ddof=1)) / sqrt(len(own)) if len(own) > 1 else None
        yield RankUse(rank, len(own), float(own.sum()), float(own.mean()), float(np.quantile(own, 0.95)), error)


def missing(processes: Sequence[ProcessInfo], runs: Mapping[str, Runs]) -> str:
    """A line if some ranks of the job recorded no region. Empty if all did, or no process recorded the job's size."""
    there = {rank for mine in runs.values() if mine.ranks is not None for rank in np.unique(mine.ranks).tolist()} - {-1}
    size = max((process.world_size or 0 for process in processes if process.rank in there), default=0)
    if len(there) >= size or size < 2:
        return ""
    return f"{len(there)} of {size} ranks are in the recording: the others ran elsewhere or recorded no region"
