"""Compares the ranks of one job region by region: the slowest rank, and its excess. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import median
from typing import Final

import numpy as np

from gpu_profile.analysis.chance import normal_quantile
from gpu_profile.analysis.clocks.alignment import NodeClocks
from gpu_profile.analysis.clocks.arrivals import Arrivals, arrivals, region_meetings
from gpu_profile.analysis.clocks.jobs import ranks_text
from gpu_profile.analysis.ranks.causes import LateCause, Lateness, RankGpu, lateness, since
from gpu_profile.analysis.ranks.costs import RankCollectives, RankCosts, job_costs, rank_costs
from gpu_profile.analysis.runs import Runs
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import ProcessInfo
from gpu_profile.units import NS_PER_S, si

#: Ranks count as equal if their mean times differ by less than this share.
NEAR: Final = 0.05
#: The probability that the fastest and the slowest of equal ranks differ.
_CHANCE: Final = 0.05
#: Names of regions in which ranks wait, even if too few executions show it.
_COLLECTIVE: Final = re.compile(r"all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|barrier|nccl", re.IGNORECASE)
#: The largest job of which the missing ranks are listed.
_MOST_NAMED: Final = 100_000


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
    costs: RankCosts = field(default_factory=RankCosts)


@dataclass(frozen=True, slots=True)
class RegionRanks:
    """A region on the ranks that ran it, two or more, by rank."""

    region: str
    ranks: tuple[RankUse, ...]
    #: Why the slowest one is late. None unless they differ, and where ranks wait.
    late: Lateness | None = None
    #: Whether the ranks wait for one another in it. The slowest rank has then waited longest.
    waits: bool = False
    #: The last rank to enter, where ranks wait and their clocks can be compared.
    arrivals: Arrivals | None = None

    @property
    def fastest(self) -> RankUse:
        """The rank with the least mean time."""
        return min(self.ranks, key=lambda use: use.mean_s)

    @property
    def slowest(self) -> RankUse:
        """The rank with the greatest mean time."""
        return max(self.ranks, key=lambda use: use.mean_s)

    @property
    def costs(self) -> RankCosts:
        """The costs of an execution on all ranks."""
        return job_costs(use.costs for use in self.ranks)

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
        # The extremes of many ranks are far apart by chance: they are the most different of all pairs.
        pairs = len(self.ranks) * (len(self.ranks) - 1) / 2
        return high.mean_s - low.mean_s > normal_quantile(_CHANCE / pairs) * sqrt(low.error_s**2 + high.error_s**2)


@dataclass(frozen=True, slots=True)
class RankSources:
    """Where the comparison takes facts of ranks from, beside their executions.

    `gpus` and `summaries` are by rank, for ranks with a GPU of their own.
    """

    clocks: NodeClocks = field(default_factory=NodeClocks)
    gpus: Callable[[str, Runs], Mapping[int, RankGpu]] = lambda _region, _runs: {}
    summaries: Callable[[str], Mapping[int, RegionSummary]] = lambda _region: {}
    collectives: RankCollectives | None = None


def by_rank(runs: Mapping[str, Runs], sources: RankSources, notes: list[str]) -> tuple[RegionRanks, ...]:
    """The regions that ran on two ranks or more, in the order of `runs`. `notes` gets a line about short recordings."""
    result: list[RegionRanks] = []
    short: dict[str, tuple[int, str]] = {}
    for name, whole in runs.items():
        mine, unequal = shared_time(whole, sources.clocks.one_clock)
        uses = tuple(_uses(mine))
        if len(uses) < 2:
            continue
        if unequal:
            short[name] = sum(use.calls for use in uses), unequal
        summaries = sources.summaries(name)
        costs = {use.rank: rank_costs(whole, use.rank, summaries.get(use.rank), sources.collectives) for use in uses}
        region = RegionRanks(name, tuple(replace(use, costs=costs[use.rank]) for use in uses))
        met = region_meetings(name, mine, sources.clocks)
        if met is not None and met.waits:
            last = arrivals(met, int(mine.starts_ns[0]), sources.clocks)
            region = replace(region, waits=True, arrivals=last)
        elif _COLLECTIVE.search(name):
            region = replace(region, waits=True)
        elif region.differ:
            region = replace(region, late=_late(region, mine, sources.gpus(name, mine)))
        result.append(region)
    if short:
        name = max(short, key=lambda name: short[name][0])
        notes.append(f"{name}: {short[name][1]}")
    return tuple(result)


def shared_time(runs: Runs, one_clock: bool) -> tuple[Runs, str]:
    """The executions in the time that all ranks recorded, and a line about the ranks with fewer than others.

    Ranks with less than half of the usual time are left out. All executions count if ranks have equally many, or if
    their times cannot be compared.
    """
    if runs.ranks is None:
        return runs, ""
    ranks, counts = np.unique(runs.ranks[runs.ranks >= 0], return_counts=True)
    if len(ranks) < 2 or len(set(counts.tolist())) == 1:
        return runs, ""
    spans = {
        rank: (int(own.min()), int(own.max()))
        for rank in ranks.tolist()
        for own in [runs.starts_ns[runs.ranks == rank]]
    }
    usual = median([last - first for first, last in spans.values()])
    kept = dict(spans)
    while len(kept) > 2 and _both(kept) < usual / 2:
        del kept[min(kept, key=lambda rank: kept[rank][1] - kept[rank][0])]
    most = int(counts.max())
    fewer = [rank for rank, count in zip(ranks.tolist(), counts.tolist(), strict=True) if count < most]
    line = f"{ranks_text(fewer)} recorded fewer than the {most:,} executions of the others: cut off, late or restarted"
    if not one_clock or _both(kept) < usual / 2:
        return runs, line
    first, last = max(edges[0] for edges in kept.values()), min(edges[1] for edges in kept.values())
    within = np.isin(runs.ranks, list(kept)) & (runs.starts_ns >= first) & (runs.starts_ns <= last)
    left_out = [rank for rank in spans if rank not in kept]
    without = f", without {ranks_text(left_out)}" if left_out else ""
    line += f"; compared over the {si((last - first) / NS_PER_S, 's')} that ranks have in common{without}"
    arrays = ("starts_ns", "ends_ns", "on_starts_ns", "on_ends_ns", "joined_ns", "ranks")
    return runs._replace(**{name: getattr(runs, name)[within] for name in arrays}), line


def _both(spans: Mapping[int, tuple[int, int]]) -> int:
    return min(last for _, last in spans.values()) - max(first for first, _ in spans.values())


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
    absent = [rank for rank in range(min(size, _MOST_NAMED)) if rank not in there]
    which = f" ({ranks_text(absent)})" if size <= _MOST_NAMED else ""
    return f"{len(there)} of {size} ranks are in the recording: the others ran elsewhere or recorded no region{which}"
