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
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.units import NS_PER_S, si

#: A jump exceeds this, in ns, and the scatter of the exits by this factor. `estimate` covers smaller ones. Ours.
_LEAST_NS: Final = 1e6
_SCATTER: Final = 20.0
#: Parts of a jump exceed this share of that.
_PARTS: Final = 4
#: A jump of this many median deviations of the time between two meetings shows which clock was set. Ours.
_SURELY: Final = 8.0
#: The most jumps of a clock in a run. More are no clock that someone set. Ours.
_MOST: Final = 3
_MINUTE_S: Final = 60


class ClockJump(NamedTuple):
    """A clock that was set `by_ns` ahead (below 0: back). `at_ns` is the last meeting before, by the clock itself.

    Not `sure`: of two clocks, the other may have been set the other way instead."""

    by_ns: float
    at_ns: float
    sure: bool = True

    def text(self, base_ns: int) -> str:
        """When it was set, and how far; `base_ns` is added to its time."""
        moment = datetime.fromtimestamp((base_ns + self.at_ns) / NS_PER_S, UTC)
        direction = "" if not self.sure else " ahead" if self.by_ns > 0 else " back"
        return f"was set{direction} by {length_text(abs(self.by_ns) / NS_PER_S)} after {moment:%H:%M:%S} UTC"


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
    # Of two clocks, the one with the more usual time between two meetings was not set there.
    odd, two = np.abs(elapsed - np.median(elapsed, axis=1)[:, None]), len(numbers) == 2
    gained = elapsed - (elapsed[::-1] if two else np.median(elapsed, axis=0))
    surely = _SURELY * float(np.median(odd)) if two else 0.0
    entries, left = met.entries.copy(), met.exits.copy()
    by_clock: dict[int, list[ClockJump]] = {}
    for row, number in enumerate(numbers):
        runs = [run for run in _runs(gained[row]) if not two or odd[row, run].sum() > odd[1 - row, run].sum()]
        if not runs or len(runs) > _MOST:
            continue
        ranks = met.clocks == number
        for place in np.concatenate(runs).tolist():
            later = there[place] + 1
            entries[ranks, later:] -= gained[row, place]
            left[ranks, later:] -= gained[row, place]
        sums = [(float(gained[row, run].sum()), float(exits[row, there[run[0]]])) for run in runs]
        by_clock[number] = [ClockJump(by_ns, at_ns, abs(by_ns) > surely) for by_ns, at_ns in sums]
    if not by_clock:
        return met, {}
    even = replace(met, entries=entries, exits=left)
    return (even, by_clock) if even.waits else (met, {})


def _runs(gained: Floats) -> list[Ints]:
    """The places of each jump, from the time that a clock gained on others between every two meetings.

    A clock that is set between its ranks' exits from one meeting jumps in several parts. If a rank leaves one meeting
    late, the parts add up to nothing, except at the end.
    """
    limit = max(_LEAST_NS, _SCATTER * float(np.median(np.abs(gained))))
    places = np.flatnonzero(np.abs(gained) > limit / _PARTS)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
    return [run for run in runs if abs(float(gained[run].sum())) > limit and run[-1] < len(gained) - 1]


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
