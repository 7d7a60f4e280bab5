"""Memory that a region allocated and freed. Pure; times in ns, sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.joining.columns import NONE, Allocations, Numbers, RecordArrays
from gpu_profile.kernels.sums import merged


@dataclass(frozen=True, slots=True)
class RegionMemory:
    """One allocator's work for one region on one device.

    `peak_bytes` is the allocator's highest level (allocated bytes, by any caller) during the executions. `rise_bytes`
    is its greatest rise above the level at an execution's start. None: not recorded. On the host (device -1) PyTorch
    counts only memory that was allocated while a profiler ran.
    """

    source: str
    device: int
    allocations: int
    allocated_bytes: int
    frees: int
    freed_bytes: int
    peak_bytes: int | None
    rise_bytes: int | None


class AllocatorLevel(NamedTuple):
    """One allocator's level on one device: `totals[i]` bytes were allocated after its i-th record.

    `times` are in order; records of one moment keep their order. `before` is the level before the first record.
    `absolute`: at least one record has a total; otherwise all levels are relative to `before`, which is 0.
    """

    source: str
    device: int
    absolute: bool
    before: int
    times: Numbers
    totals: Numbers

    def at(self, moments: Numbers) -> Numbers:
        """The level just before each moment."""
        after = self.times.searchsorted(moments)
        return np.where(after, self.totals[after - 1], self.before)

    def highest(self, starts: Numbers, ends: Numbers) -> Numbers:
        """The highest level in each window `[start, end)`, including the level at its start."""
        low, high = self.times.searchsorted(starts), self.times.searchsorted(ends)
        highest, some = self.at(starts), high > low
        if some.any():
            highest[some] = np.maximum(highest[some], _highest(self.totals, low[some], high[some]))
        return highest


def levels_of(columns: RecordArrays) -> tuple[AllocatorLevel, ...]:
    """The levels of every source and device, sorted. The cost is linear in the records: call it once for many regions.

    A missing total is rebuilt from the bytes of the records since, or until, one with a total. If no record has one,
    all levels start from 0. Records that the profiler lost make rebuilt totals wrong.
    """
    allocations, levels = columns.allocations, []
    for source, device, members in _allocators(allocations, columns.names):
        order = np.flatnonzero(members)
        order = order[np.argsort(allocations.times[order], kind="stable")]
        recorded, moved = allocations.totals[order], allocations.bytes[order]
        totals, valid = np.cumsum(moved), recorded != NONE
        if valid.any():
            last = np.maximum.accumulate(np.where(valid, np.arange(valid.size), valid.argmax()))
            totals += (recorded - totals)[last]
        before = int(totals[0] - moved[0])
        levels.append(AllocatorLevel(source, device, bool(valid.any()), before, allocations.times[order], totals))
    return tuple(levels)


def region_memory(
    columns: RecordArrays, members: Numbers, starts: Numbers, ends: Numbers, levels: Sequence[AllocatorLevel]
) -> tuple[RegionMemory, ...]:
    """One region's memory of every source and device, sorted; without entries for unused ones.

    `members` are the indexes of the region's own allocations, which alone are counted. Its outermost executions were in
    `[start, end)` on the host and may overlap: peak and rise are the highest over all of them. Without executions both
    are None; without totals the peak is None. `levels` are the levels of all allocations.
    """
    own = Allocations._make(column[members] for column in columns.allocations)
    within = {(source, device): own.bytes[part] for source, device, part in _allocators(own, columns.names)}
    result = []
    for level in levels:
        moved = within.get((level.source, level.device), np.zeros(0, np.int64))
        taken, given = moved[moved > 0], moved[moved < 0]
        peak = rise = None
        if len(starts):
            highest = level.highest(starts, ends)
            rise = int((highest - level.at(starts)).max())
            peak = int(highest.max()) if level.absolute else None
        if moved.size or peak or rise:
            sums = taken.size, int(taken.sum()), given.size, -int(given.sum())
            result.append(RegionMemory(level.source, level.device, *sums, peak, rise))
    return tuple(result)


def merge(one: Sequence[RegionMemory], other: Sequence[RegionMemory]) -> tuple[RegionMemory, ...]:
    """The same region's memory in two recordings, sorted by source and device.

    Counts add up; peak and rise are the highest that were recorded.
    """
    ours, theirs = ({(each.source, each.device): each for each in part} for part in (one, other))
    both = merged(ours, theirs, _sum)
    return tuple(both[key] for key in sorted(both))


def _sum(one: RegionMemory, other: RegionMemory) -> RegionMemory:
    return RegionMemory(
        one.source,
        one.device,
        one.allocations + other.allocations,
        one.allocated_bytes + other.allocated_bytes,
        one.frees + other.frees,
        one.freed_bytes + other.freed_bytes,
        _most(one.peak_bytes, other.peak_bytes),
        _most(one.rise_bytes, other.rise_bytes),
    )


def _most(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _allocators(allocations: Allocations, names: Sequence[str]) -> list[tuple[str, int, NDArray[np.bool_]]]:
    """Source, device and the mask of their records; sorted."""
    result = []
    for code in np.unique(allocations.sources):
        of_source = allocations.sources == code
        result += [
            (names[code], device, of_source & (allocations.devices == device))
            for device in np.unique(allocations.devices[of_source]).tolist()
        ]
    return sorted(result, key=lambda row: row[:2])


def _highest(totals: Numbers, low: NDArray[np.intp], high: NDArray[np.intp]) -> Numbers:
    """The highest of `totals[low:high]` for each pair, none of which is empty.

    Windows may overlap in any way, so a scan of each window's records could take the product of both numbers. Instead,
    the records are cut at the windows' edges and each piece is scanned once. A window is then the union of two runs of
    a power of two of pieces (a sparse table).
    """
    edges = np.unique(np.concatenate((low, high)))
    runs = [np.maximum.reduceat(totals[: edges[-1]], edges[:-1])]
    while (length := 1 << len(runs)) <= runs[0].size:
        shorter = runs[-1]
        runs.append(np.maximum(shorter[: -(length >> 1)], shorter[length >> 1 :]))
    first, last = edges.searchsorted(low), edges.searchsorted(high)
    powers = np.frexp(last - first)[1] - 1
    result = np.empty(low.size, np.int64)
    for power, run in enumerate(runs):
        here = powers == power
        result[here] = np.maximum(run[first[here]], run[last[here] - (1 << power)])
    return result
