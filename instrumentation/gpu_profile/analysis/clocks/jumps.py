"""Clocks that were set during the run, from meetings: one clock's time jumps between two of them. Pure.

A pause of a rank alone also lets its time jump ahead of the others'. So a jump counts only if the ranks wait for one
another in the meetings once it is taken out.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.clocks.meetings import LEAST, Meetings
from gpu_profile.history.timeline import Ints
from gpu_profile.units import NS_PER_S, si

#: A jump exceeds this, in ns, and the scatter of the exits by this factor. `estimate` covers smaller ones. Ours.
_LEAST_NS: Final = 5e7
_SCATTER: Final = 20.0
#: The most jumps of a clock in a run. More are no clock that someone set. Ours.
_MOST: Final = 3
_MINUTE_S: Final = 60


class ClockJump(NamedTuple):
    """A clock that was set `by_ns` ahead (below 0: back). `at_ns` is the last meeting before, by the clock itself."""

    by_ns: float
    at_ns: float

    def text(self, base_ns: int) -> str:
        """When it was set, and how far; `base_ns` is added to its time."""
        moment = datetime.fromtimestamp((base_ns + self.at_ns) / NS_PER_S, UTC)
        direction = "ahead" if self.by_ns > 0 else "back"
        return f"was set {direction} by {length_text(abs(self.by_ns) / NS_PER_S)} after {moment:%H:%M:%S} UTC"


def without_jumps(met: Meetings) -> tuple[Meetings, dict[int, list[ClockJump]]]:
    """The meetings as if no clock had been set, and the jumps by clock. Unchanged if the ranks do not meet then."""
    numbers = np.unique(met.clocks).tolist()
    by_rank = np.diff(met.exits, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a meeting without the clock's ranks
        elapsed = np.array([np.nanmedian(by_rank[met.clocks == number], axis=0) for number in numbers])
        exits = np.array([np.nanmin(met.exits[met.clocks == number], axis=0) for number in numbers])
    there = np.flatnonzero(np.isfinite(elapsed).all(axis=0))
    if len(numbers) < 2 or len(there) < 2 * LEAST:
        return met, {}
    elapsed = elapsed[:, there]
    # The clock with the most usual time between two meetings was not set there.
    odd = np.abs(elapsed - np.median(elapsed, axis=1)[:, None])
    usual = elapsed[odd.argmin(axis=0), np.arange(elapsed.shape[1])]
    entries, left = met.entries.copy(), met.exits.copy()
    by_clock: dict[int, list[ClockJump]] = {}
    for row, number in enumerate(numbers):
        gained = elapsed[row] - usual
        limit = max(_LEAST_NS, _SCATTER * float(np.median(np.abs(gained))))
        places = np.flatnonzero(np.abs(gained) > limit).tolist()
        if not places or len(places) > _MOST:
            continue
        ranks = met.clocks == number
        for place in places:
            later = there[place] + 1
            entries[ranks, later:] -= gained[place]
            left[ranks, later:] -= gained[place]
        by_clock[number] = [ClockJump(float(gained[i]), float(exits[row, there[i]])) for i in places]
    if not by_clock:
        return met, {}
    even = replace(met, entries=entries, exits=left)
    return (even, by_clock) if even.waits else (met, {})


def in_order(edges: Ints) -> Ints:
    """The starts and ends `[K, 2]` of one rank's executions, in the order in which they ran.

    They come as they were recorded. That order counts where a clock was set back: many executions then begin before one
    that was recorded earlier. Else the order of starts counts, since a few records may have waited for a profiler.
    """
    starts = edges[:, 0]
    back = np.flatnonzero(np.diff(starts) < 0)
    followed = all(len(after := starts[i + 1 : i + 1 + LEAST]) == LEAST and after.max() < starts[i] for i in back)
    return edges if len(back) <= _MOST and followed else edges[np.argsort(starts, kind="stable")]


def length_text(seconds: float) -> str:
    """A time to the millisecond, in hours and minutes too if it has some."""
    seconds = round(seconds, 3) if seconds >= _MINUTE_S else seconds
    if seconds < _MINUTE_S:
        return si(seconds, "s", 4)
    minutes, rest = divmod(seconds, _MINUTE_S)
    hours, minutes = divmod(minutes, _MINUTE_S)
    return f"{hours:.0f} h {minutes:.0f} min {rest:.3f} s" if hours else f"{minutes:.0f} min {rest:.3f} s"
