"""Allocated bytes of each allocator over time, thinned for a plot or a counter track. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.kernels.joining.columns import Numbers
from gpu_profile.kernels.memory.region import AllocatorLevel

#: A bucket keeps three records, and a timeline its start.
_FEWEST: Final = 4


class MemorySteps(NamedTuple):
    """One allocator's level on one device: from `times[i]` (ns) on, `totals[i]` bytes were allocated.

    Not `absolute`: the total was never recorded, and the level is relative to its value before the first record.
    """

    source: str
    device: int
    absolute: bool
    times: Numbers
    totals: Numbers


def memory_timeline(
    levels: Iterable[AllocatorLevel], *, window: tuple[int, int] | None = None, points: int = 1000
) -> tuple[MemorySteps, ...]:
    """The levels as steps, in their order; at most `points` of them (at least 4) for each.

    `window`: only the time `[start, end)`, such as one execution of a region; by default all of it. The first step is
    the level before it. Records with a negative time are memory allocated before the recording began, and are part of
    that level. Each of several equal stretches of time keeps three levels: its lowest, its highest, so that no peak is
    lost, and its last, so that the level after it is right. ValueError if `points` is below 4.
    """
    if points < _FEWEST:
        raise ValueError(f"points must be at least {_FEWEST}, not {points}")
    steps = []
    for level in levels:
        first = 0 if window else int(level.times.searchsorted(0))
        start = window[0] if window else int(level.times[first]) if first < level.times.size else 0
        inside = slice(level.times.searchsorted(start), level.times.searchsorted(window[1]) if window else None)
        times = np.concatenate(([start], level.times[inside]))
        totals = np.concatenate((level.at(times[:1]), level.totals[inside]))
        kept = _thinned(times, totals, points)
        steps.append(MemorySteps(level.source, level.device, level.absolute, times[kept], totals[kept]))
    return tuple(steps)


def _thinned(times: Numbers, totals: Numbers, points: int) -> Numbers:
    """Indexes of the steps to keep, in order."""
    if times.size <= points:
        return np.arange(times.size)
    buckets = (points - 1) // 3
    # Python's integers for the edges: nanoseconds since the epoch times buckets do not fit into 64 bits.
    start, span = int(times[0]), int(times[-1]) - int(times[0]) + 1
    edges = np.array([start + span * bucket // buckets for bucket in range(buckets)], np.int64)
    firsts = np.unique(times.searchsorted(edges))
    lasts = np.append(firsts[1:], times.size) - 1
    part = np.repeat(np.arange(firsts.size), lasts - firsts + 1)
    # Sorted by bucket, then level: a bucket's first entry is its lowest level, its last entry the highest.
    order = np.lexsort((totals, part))
    return np.unique(np.concatenate(([0], order[firsts], order[lasts], lasts)))
