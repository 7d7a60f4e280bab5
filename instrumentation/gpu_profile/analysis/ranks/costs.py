"""The costs of an execution of a region on each rank, and for the whole job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Final

import numpy as np

from gpu_profile.analysis.runs import Runs
from gpu_profile.history.timeline import Ints
from gpu_profile.join.summary import RegionSummary
from gpu_profile.recording import ProcessInfo
from gpu_profile.recording.nccl_inspector import Collective
from gpu_profile.units import NS_PER_S

#: An execution contains a call that it began at most this long after, by the precision of the plugin's clock.
_MICROSECOND_NS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RankCosts:
    """The costs of one execution of a region: means of the measured ones. None: not measured.

    `communication_s` is the time in which a collective ran; `exposed_s` its part without another kernel beside it,
    `waiting_s` its part before the last rank's kernel began. `collectives` is their number, by NCCL Inspector.
    `utilization` is FLOPs per second over the `ceiling` of the machine in FLOP/s (MFU). `energy_j` contains the
    regions inside it.
    """

    communication_s: float | None = None
    exposed_s: float | None = None
    waiting_s: float | None = None
    collectives: float | None = None
    utilization: float | None = None
    ceiling: float | None = None
    energy_j: float | None = None

    @property
    def measured(self) -> bool:
        """Whether there is any value."""
        return any(getattr(self, each.name) is not None for each in fields(self))

    @property
    def some(self) -> bool:
        """Whether any value is above 0."""
        return any(getattr(self, each.name) for each in fields(self))


class RankCollectives:
    """NCCL Inspector's collectives by rank, in the order of their calls. Times are by one clock for all."""

    def __init__(self, collectives: Sequence[Collective], processes: Sequence[ProcessInfo]) -> None:
        ranks = {(each.host, each.pid): each.rank for each in processes if each.rank is not None}
        starts: dict[tuple[str, str, int], list[int]] = {}
        for each in collectives:
            starts.setdefault((each.communicator, each.function, each.number), []).append(each.start_ns)
        rows: dict[int, list[tuple[int, int, int, int]]] = {}
        #: Collectives of processes that the recording lacks.
        self.foreign = 0
        for each in collectives:
            if (rank := ranks.get((each.host, each.pid))) is None:
                self.foreign += 1
                continue
            met = starts[each.communicator, each.function, each.number]
            last = max(met) if len(met) == each.size else -1
            waits = -1 if last < 0 else min(last, each.end_ns) - each.start_ns
            rows.setdefault(rank, []).append((each.launched_ns, each.start_ns, each.end_ns, waits))
        self._rows: Mapping[int, Ints] = {rank: np.array(sorted(own), np.int64) for rank, own in rows.items()}

    def costs(self, rank: int, starts: Ints, ends: Ints) -> tuple[float, float, float | None] | None:
        """Collectives, seconds in them and seconds of waiting, for one of a rank's executions.

        A collective belongs to the execution during which it was called. None without a file of the rank. Waiting is
        None if other ranks' files are missing.
        """
        rows = self._rows.get(rank)
        if rows is None or not len(starts):
            return None
        order = np.argsort(starts, kind="stable")
        begins, until = starts[order], np.maximum.accumulate(ends[order])
        place = np.searchsorted(begins, rows[:, 0] + _MICROSECOND_NS, side="right") - 1
        inside = rows[(place >= 0) & (rows[:, 0] <= until[place.clip(0)])]
        waits = inside[:, 3]
        waiting = None if len(waits) and (waits < 0).any() else float(waits.sum()) / NS_PER_S / len(starts)
        return len(inside) / len(starts), _covered_ns(inside[:, 1:3]) / NS_PER_S / len(starts), waiting


def _covered_ns(edges: Ints) -> int:
    """The time that intervals cover together."""
    if not len(edges):
        return 0
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    reached = np.maximum.accumulate(edges[:, 1])
    begins = np.maximum(edges[:, 0], np.concatenate((edges[:1, 0], reached[:-1])))
    return int((reached - begins).clip(0).sum())


def rank_costs(runs: Runs, rank: int, summary: RegionSummary | None, collectives: RankCollectives | None) -> RankCosts:
    """The costs on one rank. `summary` is the region's on the rank's own GPU."""
    operations, kernels = (runs.rank_work or {}).get(rank, (None, None))
    communication_s = exposed_s = waiting_s = number = None
    if kernels is not None and kernels.executions:
        communication_s = kernels.communication_ns / NS_PER_S / kernels.executions
        exposed_s = (kernels.communication_ns - kernels.overlap_ns) / NS_PER_S / kernels.executions
    if collectives is not None and runs.ranks is not None:
        own = runs.ranks == rank
        measured = collectives.costs(rank, runs.starts_ns[own], runs.ends_ns[own])
        if measured is not None:
            number, inspected_s, waiting_s = measured
            communication_s = inspected_s if communication_s is None else communication_s
    return RankCosts(
        communication_s,
        exposed_s,
        waiting_s,
        number,
        None if operations is None else operations.utilization,
        None if operations is None else operations.ceiling,
        None if summary is None else summary.call_energy_j,
    )


def job_costs(ranks: Iterable[RankCosts]) -> RankCosts:
    """The costs of all ranks: the sum of energies, the means of the rest. None where a rank has none."""
    every = list(ranks)
    means = _combined(every, fmean)
    return replace(means, energy_j=None if means.energy_j is None else means.energy_j * len(every))


def extreme_costs(ranks: Iterable[RankCosts]) -> tuple[RankCosts, RankCosts]:
    """The least and the most of each cost. None where a rank has none."""
    every = list(ranks)
    return _combined(every, min), _combined(every, max)


def _combined(ranks: Sequence[RankCosts], combine: Callable[[Sequence[float]], float]) -> RankCosts:
    values: dict[str, float | None] = {}
    for each in fields(RankCosts):
        own = [getattr(costs, each.name) for costs in ranks]
        values[each.name] = combine(own) if own and all(value is not None for value in own) else None
    return RankCosts(**values)
