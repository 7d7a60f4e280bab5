"""The ranks of a job in lines: mean times side by side, late ranks with their causes, and costs of an execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu_profile.analysis.clocks.arrivals import Arrivals
from gpu_profile.analysis.ranks.causes import Lateness
from gpu_profile.analysis.ranks.costs import RankCosts, extreme_costs
from gpu_profile.analysis.ranks.regions import RegionRanks
from gpu_profile.report import text_table
from gpu_profile.report.table import UNKNOWN, signed
from gpu_profile.units import NS_PER_S, counted, percent, si

#: With more ranks, a table shows the extremes only.
_MOST_RANKS: Final = 8
#: The most regions with a table of costs. The JSON has all.
_MOST_COSTS: Final = 3
#: Columns of costs, and the cell of a rank's costs in each.
_COSTS: Final[Mapping[str, Callable[[RankCosts], str]]] = {
    "communication": lambda costs: _time(costs.communication_s),
    "exposed": lambda costs: _time(costs.exposed_s),
    "waiting": lambda costs: _time(costs.waiting_s),
    "collectives": lambda costs: UNKNOWN if costs.collectives is None else f"{costs.collectives:.4g}",
    "MFU": lambda costs: UNKNOWN if costs.utilization is None else percent(costs.utilization),
    "ceiling": lambda costs: UNKNOWN if costs.ceiling is None else si(costs.ceiling, "FLOP/s"),
    "energy": lambda costs: UNKNOWN if costs.energy_j is None else si(costs.energy_j, "J"),
}


def rank_lines(regions: Sequence[RegionRanks], start_ns: int = 0) -> list[str]:
    """Mean times by rank of the regions in which ranks differ, how many do not, and why the slowest are: lines.

    `start_ns` is the recording's beginning.
    """
    if not regions:
        return []
    ranks = sorted({use.rank for each in regions for use in each.ranks})
    apart = [each for each in regions if each.differ]
    side_by_side = len(ranks) <= _MOST_RANKS
    between = [f"rank {rank}" for rank in ranks] if side_by_side else ["least"]
    columns = ("region", *between, "mean", *(() if side_by_side else ("most",)), "slowest", "than the fastest")
    lines = [_table_title(len(ranks), len(regions), len(apart))]
    if apart:
        lines += ["", text_table(columns, (_rank_row(each, ranks if side_by_side else ()) for each in apart))]
    lines += [_late_line(each, each.late, start_ns) for each in apart if each.late and each.late.facts]
    lines += [_arrival_line(each, each.arrivals, start_ns) for each in regions if each.arrivals and each.arrivals.late]
    for each in sorted(regions, key=_total_s, reverse=True)[:_MOST_COSTS]:
        lines += _cost_lines(each)
    return lines


def _late_line(region: RegionRanks, late: Lateness, start_ns: int) -> str:
    since = "" if late.since_ns is None else f", since {si((late.since_ns - start_ns) / NS_PER_S, 's')}"
    cause = str(late.cause).replace("_", " ")
    return f"{region.region}: rank {region.slowest.rank} is late{since}. Cause: {cause}; {late.facts}"


def _arrival_line(region: RegionRanks, arrivals: Arrivals, start_ns: int) -> str:
    since = "" if arrivals.since_ns is None else f", since {si((arrivals.since_ns - start_ns) / NS_PER_S, 's')}"
    error = f" ±{si(arrivals.half_width_s, 's', 2)}" if arrivals.half_width_s else ""
    return (
        f"{region.region}: the ranks wait in it for rank {arrivals.rank}, the last of {arrivals.count:,} times in "
        f"{percent(arrivals.share, 0)}, {si(arrivals.late_s, 's')}{error} after the median{since}"
    )


def _total_s(region: RegionRanks) -> float:
    return sum(use.total_s for use in region.ranks)


def _cost_lines(region: RegionRanks) -> list[str]:
    """A table of one region's costs, with the columns that any rank has; of many ranks the extremes only."""
    shown = [use for use in region.ranks if use.costs.measured]
    # A table of zeros is no news: the JSON has it.
    if not any(use.costs.some for use in shown):
        return []
    rows = [(f"rank {use.rank}", use.costs) for use in shown]
    if len(rows) > _MOST_RANKS:
        rows = [*zip(("least", "most"), extreme_costs(use.costs for use in region.ranks), strict=True)]
    job = region.costs
    rows += [("job", job)] if job.measured else []
    cells = {name: [cell(costs) for _, costs in rows] for name, cell in _COSTS.items()}
    kept = [name for name, column in cells.items() if any(cell != UNKNOWN for cell in column)]
    if not kept:
        return []
    table = ((label, *(cells[name][i] for name in kept)) for i, (label, _) in enumerate(rows))
    return ["", text_table((f"{region.region}, per call", *kept), table)]


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else si(seconds, "s")


def _table_title(ranks: int, regions: int, apart: int) -> str:
    if not apart:
        return (
            f"{ranks} ranks: each of {counted(regions, 'region takes', 'regions takes')} as long on one as on another"
        )
    rest = f"; {counted(regions - apart, 'other is', 'others are')} alike" if regions > apart else ""
    return f"{ranks} ranks, mean time per call of {counted(apart, 'region that differs', 'regions that differ')}{rest}"


def _rank_row(region: RegionRanks, ranks: Sequence[int]) -> tuple[str, ...]:
    by_rank = {use.rank: si(use.mean_s, "s") for use in region.ranks}
    low, high = si(region.fastest.mean_s, "s"), si(region.slowest.mean_s, "s")
    means = [by_rank.get(rank, UNKNOWN) for rank in ranks] if ranks else [low]
    most = () if ranks else (high,)
    return (
        region.region,
        *means,
        si(region.mean_s, "s"),
        *most,
        UNKNOWN if region.waits else f"rank {region.slowest.rank}",
        "they wait in it" if region.waits else _excess(region),
    )


def _excess(region: RegionRanks) -> str:
    return signed(region.excess) if region.excess < 1 else f"{1 + region.excess:.1f} ×"
