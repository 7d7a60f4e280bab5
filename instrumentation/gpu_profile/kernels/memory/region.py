"""Memory that a region took and gave back. Pure; times in ns, sizes in bytes."""

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

    `peak_bytes` is the most that the allocator had given out at any moment of the executions, whoever asked for it;
    `rise_bytes` the most that it was above what it had been when the execution began. None: not recorded. On the host
    (device -1) PyTorch knows only of memory that was taken while a profiler ran.
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
    """What one allocator had given out on one device: `totals[i]` bytes after the i-th of its records.

    `times` are in order; records of one moment stay in the order in which they came. `before` is the level before the
    first of them. `absolute`: at least one record tells the total; otherwise all is relative to `before`, which is 0.
    """

    source: str
    device: int
    absolute: bool
    before: int
    times: Numbers
    totals: Numbers

    def at(self, moments: Numbers) -> Numbers:
        """The level that held just before each moment."""
        after = self.times.searchsorted(moments)
        return np.where(after, self.totals[after - 1], self.before)

    def highest(self, starts: Numbers, ends: Numbers) -> Numbers:
        """The highest level in each window `[start, end)`, with the one that held when it began."""
        low, high = self.times.searchsorted(starts), self.times.searchsorted(ends)
        highest, some = self.at(starts), high > low
        if some.any():
            highest[some] = np.maximum(highest[some], _highest(self.totals, low[some], high[some]))
        return highest


def levels_of(columns: RecordArrays) -> tuple[AllocatorLevel, ...]:
    """The levels of every source and device, sorted. Work in proportion to the records: do it once for many regions.

    A total that a record does not tell is rebuilt from the bytes of the records since, or until, one that does. If no
    record tells it, all of them start from 0. Records that the profiler lost make what was rebuilt wrong.
    """
    allocations, found = columns.allocations, []
    for source, device, mine in _allocators(allocations, columns.names):
        order = np.flatnonzero(mine)
        order = order[np.argsort(allocations.times[order], kind="stable")]
        told, moved = allocations.totals[order], allocations.bytes[order]
        totals, known = np.cumsum(moved), told != NONE
        if known.any():
            last = np.maximum.accumulate(np.where(known, np.arange(known.size), known.argmax()))
            totals += (told - totals)[last]
        before = int(totals[0] - moved[0])
        found.append(AllocatorLevel(source, device, bool(known.any()), before, allocations.times[order], totals))
    return tuple(found)


def region_memory(
    columns: RecordArrays, members: Numbers, starts: Numbers, ends: Numbers, levels: Sequence[AllocatorLevel]
) -> tuple[RegionMemory, ...]:
    """What one region did to the memory of every source and device, sorted; those with nothing to tell are left out.

    `members` are the indexes of the region's own allocations, which alone are counted. Its outermost executions were
    in `[start, end)` on the host and may overlap: peak and rise are the highest over all of them. Without executions
    neither is known; without totals the peak is not. `levels` are those of all allocations.
    """
    mine = Allocations._make(column[members] for column in columns.allocations)
    within = {(source, device): mine.bytes[part] for source, device, part in _allocators(mine, columns.names)}
    found = []
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
            found.append(RegionMemory(level.source, level.device, *sums, peak, rise))
    return tuple(found)


def merge(one: Sequence[RegionMemory], other: Sequence[RegionMemory]) -> tuple[RegionMemory, ...]:
    """The same region's memory in two recordings: counts add up, peak and rise are the highest that were recorded.

    One of each source and device, sorted.
    """
    ours, theirs = ({(each.source, each.device): each for each in part} for part in (one, other))
    found = merged(ours, theirs, _sum)
    return tuple(found[key] for key in sorted(found))


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
    """Source, device and which records are theirs; sorted."""
    found = []
    for code in np.unique(allocations.sources):
        of_source = allocations.sources == code
        found += [
            (names[code], device, of_source & (allocations.devices == device))
            for device in np.unique(allocations.devices[of_source]).tolist()
        ]
    return sorted(found, key=lambda row: row[:2])


def _highest(totals: Numbers, low: NDArray[np.intp], high: NDArray[np.intp]) -> Numbers:
    """The highest of `totals[low:high]` for each pair, none of which is empty.

    Windows overlap at will, so looking at each one's records in turn could take the product of both numbers. The
    records are cut at the windows' edges instead, each piece is looked at once, and the pieces of a window are two
    runs of a power of two of pieces (a sparse table).
    """
    edges = np.unique(np.concatenate((low, high)))
    runs = [np.maximum.reduceat(totals[: edges[-1]], edges[:-1])]
    while (length := 1 << len(runs)) <= runs[0].size:
        shorter = runs[-1]
        runs.append(np.maximum(shorter[: -(length >> 1)], shorter[length >> 1 :]))
    first, last = edges.searchsorted(low), edges.searchsorted(high)
    powers = np.frexp(last - first)[1] - 1
    found = np.empty(low.size, np.int64)
    for power, run in enumerate(runs):
        here = powers == power
        found[here] = np.maximum(run[first[here]], run[last[here] - (1 << power)])
    return found
