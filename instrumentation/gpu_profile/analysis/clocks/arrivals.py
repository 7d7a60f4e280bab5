"""The rank for which the others wait: the last one to enter, how late, and since when. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from gpu_profile.analysis.chance import normal_quantile
from gpu_profile.analysis.clocks.alignment import NodeClocks
from gpu_profile.analysis.clocks.meetings import Meetings, meetings
from gpu_profile.analysis.runs import Runs
from gpu_profile.history.timeline import Floats
from gpu_profile.units import NS_PER_S

#: Stretches of the run that are compared to find the beginning.
_STRETCHES: Final = 20
#: The probability that one of equal ranks counts as late.
_CHANCE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A region in which ranks wait for one another, and the rank that enters last most often.

    `share` of the `count` meetings it is the last. `late_s` is the median of its delay after the median of the ranks,
    with a half-width from the clocks. `since_ns`: when the delay began; None if it was there from the beginning. `late`
    says whether the delay is more than chance and clocks explain.
    """

    rank: int
    share: float
    count: int
    late_s: float
    half_width_s: float
    late: bool
    since_ns: int | None = None


def arrivals(met: Meetings, base_ns: int, clocks: NodeClocks) -> Arrivals | None:
    """The last rank in meetings that are relative to `base_ns`; None if the ranks' clocks cannot be compared."""
    if not clocks.one_clock:
        return None
    entries = met.entries[:, np.isfinite(met.entries).all(axis=0)]
    if entries.shape[1] < 1:
        return None
    late_ns = entries - np.median(entries, axis=0)
    last = np.bincount(late_ns.argmax(axis=0), minlength=len(met.ranks)) / entries.shape[1]
    row = int(last.argmax())
    rank = int(met.ranks[row])
    delay_ns = float(np.median(late_ns[row]))
    half_ns = _half_width(rank, clocks)
    late = bool(_often(float(last[row]), len(met.ranks), entries.shape[1]) and delay_ns > half_ns)
    begin = _begin(late_ns[row], delay_ns) if late else None
    since_ns = None if begin is None else base_ns + round(float(entries[row, begin]))
    return Arrivals(rank, float(last[row]), entries.shape[1], delay_ns / NS_PER_S, half_ns / NS_PER_S, late, since_ns)


def _often(share: float, ranks: int, count: int) -> bool:
    """Whether a rank is the last one in a share of `count` meetings that is nearer to always than to chance.

    The share is also larger than that of any of equal ranks by chance.
    """
    by_chance = 1 / ranks
    error = sqrt(by_chance * (1 - by_chance) / count)
    return share > max((1 + by_chance) / 2, by_chance + normal_quantile(_CHANCE / ranks) * error)


def region_meetings(region: str, runs: Runs, clocks: NodeClocks) -> Meetings | None:
    """The executions of a region as meetings, relative to its first start; None without ranks."""
    if runs.ranks is None:
        return None
    base = int(runs.starts_ns[0])
    hosts = [] if clocks.one_clock else list(dict.fromkeys(clocks.job.hosts.values()))
    times: dict[int, tuple[Floats, Floats]] = {}
    numbers: dict[int, int] = {}
    for rank in np.unique(runs.ranks[runs.ranks >= 0]).tolist():
        own = runs.ranks == rank
        starts, ends = runs.on_starts_ns[own], runs.on_ends_ns[own]
        order = np.argsort(starts, kind="stable")
        times[rank] = (starts[order] - base).astype(np.float64), (ends[order] - base).astype(np.float64)
        numbers[rank] = hosts.index(clocks.job.hosts[rank]) if hosts and rank in clocks.job.hosts else 0
    return meetings(region, times, numbers, {})


def _half_width(rank: int, clocks: NodeClocks) -> float:
    """The error of the rank's delay by the clocks: the larger one of its own and the others' median, in ns."""
    halves: Mapping[str, float] = {host: offset.half_width_ns for host, offset in clocks.offsets.items()}
    own = halves.get(clocks.job.hosts.get(rank, ""), 0.0)
    rest = [halves.get(host, 0.0) for other, host in clocks.job.hosts.items() if other != rank]
    beside = clocks.job.hosts.get(rank)
    # Ranks on one node share its clock and its error.
    if all(host == beside for host in clocks.job.hosts.values()):
        return 0.0
    return max(own, float(np.median(rest)) if rest else 0.0)


def _begin(late_ns: Floats, delay_ns: float) -> int | None:
    """The meeting from which on the delay stayed above half of its median; None if from the first."""
    begin: int | None = None
    for part in np.array_split(np.arange(len(late_ns)), min(_STRETCHES, len(late_ns))):
        if np.median(late_ns[part]) <= delay_ns / 2:
            begin = None
        elif begin is None:
            begin = int(part[0])
    return begin or None
