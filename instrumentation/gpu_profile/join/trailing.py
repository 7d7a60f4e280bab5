"""Busy time from readings that each average over a window, with any time between them. Pure.

With `B(t)` the busy time up to `t`, a reading `u` of moment `m` states `B(m) - B(m - W) = W u`, to half a quantum.
Physics requires `0 <= B(y) - B(x) <= y - x` for `x <= y`. All of this has the form `B(y) <= B(x) + c`: a system of
difference constraints (Cormen et al., "Introduction to Algorithms", on shortest paths). The largest `B(b) - B(a)` is
therefore exactly the shortest path from `a` to `b`, and the smallest is minus the one from `b` to `a`. A cycle of
negative length means that no load gives these readings through such a window. The recurrence `B(m) = W u + B(m - W)` is
a path of this kind; so is "saturated at the end of the window, hence all through it".

Assumptions: values are rounded to the nearest quantum, a reading weighs its window evenly, and its moment lies within
the bounds given with it. Bounds hold for every load. Only the best guess within them assumes that loads change where
regions begin and end, not near it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.rows import Bools
from gpu_profile.history.timeline import Floats, Ints

#: Stamps are whole microseconds.
_STAMP_NS: Final = 1_000.0
#: The range of readings around an interval, in windows: each one further back adds a quantum of uncertainty.
WINDOWS_BEFORE: Final = 6
WINDOWS_AFTER: Final = 2
#: Shortest paths are done when a round gains less than this, far below the uncertainty of stamps.
_GAIN_NS: Final = 1.0
#: The residual, in quanta of a window, that rounding leaves of a load that changes only at an interval's edges.
_NOTHING: Final = 3


class Readings(NamedTuple):
    """Readings of one signal, oldest first, as arrays. Reading k is of a moment in `[earliest[k], latest[k]]`, ns, and
    the mean of the `windows[k]` ns before it. `shares` are 0-1, rounded to `quantum`.
    """

    earliest: Ints
    latest: Ints
    windows: Ints
    shares: Floats
    quantum: float

    @classmethod
    def exact(cls, moments: Ints, windows: Ints, shares: Floats, quantum: float) -> Readings:
        """Readings at exact moments."""
        return cls(moments, moments, windows, shares, quantum)

    def part(self, keep: slice | Bools) -> Readings:
        """The readings to keep."""
        earliest, latest, windows, shares, quantum = self
        return Readings(earliest[keep], latest[keep], windows[keep], shares[keep], quantum)

    def around(self, a_ns: int, b_ns: int, windows_before: int = WINDOWS_BEFORE) -> Readings:
        """The readings that can narrow the bounds of `(a, b]`."""
        widest = int(self.windows.max(initial=0))
        low = int(self.latest.searchsorted(a_ns - windows_before * widest))
        high = int(self.latest.searchsorted(b_ns + WINDOWS_AFTER * widest, "right"))
        return self.part(slice(low, max(low, high)))


def merged(tiles: Readings, since_ns: int, until_ns: int) -> Readings:
    """Readings in which the tiles between two moments are one. Tiles are readings of exact moments that begin where the
    one before ends. Only their sum affects anything outside them."""
    low = int((tiles.latest - tiles.windows).searchsorted(since_ns))
    high = int(tiles.latest.searchsorted(until_ns, "right"))
    inside = tiles.part(slice(low, high))
    if high - low < 2 or (np.diff(inside.latest) != inside.windows[1:]).any():
        return tiles
    keep = np.ones(len(tiles.latest), bool)
    keep[low : high - 1] = False
    less = tiles.part(keep)
    less.windows[low] = inside.windows.sum()
    less.shares[low] = (inside.shares * inside.windows).sum() / less.windows[low]
    return less


class BusyBounds(NamedTuple):
    """Busy ns of an interval: the best guess, and bounds that hold for any load."""

    value_ns: float
    low_ns: float
    high_ns: float


class TrailingFit(NamedTuple):
    """Bounds by readings of exact moments. `rest_ns` is the part of the readings that a load with changes only at the
    interval's edges does not explain: of several possible fits, the one with the least rest is likeliest."""

    rest_ns: float
    bounds: BusyBounds


def hull(every: Iterable[BusyBounds]) -> BusyBounds | None:
    """Bounds that hold if any of `every` does, with the first one's guess; None without any."""
    bounds = list(every)
    if not bounds:
        return None
    return BusyBounds(bounds[0].value_ns, min(b.low_ns for b in bounds), max(b.high_ns for b in bounds))


def fit(readings: Readings, a_ns: int, b_ns: int) -> TrailingFit | None:
    """Busy time of `(a, b]` by all readings, which have exact moments; None if no load can give them."""
    length = float(b_ns - a_ns)
    tube = solve(readings, a_ns, length)
    if tube is None:
        return None
    low, high = tube.bounds(length)
    rest, value = _split(tube, np.unique(readings.latest - a_ns).astype(np.float64), length)
    return TrailingFit(rest, BusyBounds(min(max(value, low), high), low, high))


def busy_between(
    readings: Readings, a_ns: int, b_ns: int, guesses: Iterable[Sequence[Readings]] = ()
) -> BusyBounds | None:
    """Busy time of `(a, b]`; None if no load can give these readings. Without readings: from 0 to the whole interval.

    `guesses`: for uncertain moments, groups of readings with exact ones, likelier groups first. The best guess follows
    the readings that fit best, of the groups up to the first with a fit to rounding. Raises ValueError if the interval
    ends before it starts.
    """
    if b_ns < a_ns:
        raise ValueError(f"an interval ends before it starts: {a_ns} > {b_ns}")
    near = readings.around(a_ns, b_ns)
    if not (near.earliest < near.latest).any():
        exact = fit(near, a_ns, b_ns)
        return None if exact is None else exact.bounds
    tube = solve(near, a_ns, float(b_ns - a_ns))
    if tube is None:
        return None
    low, high = tube.bounds(float(b_ns - a_ns))
    enough = _NOTHING * readings.quantum * float(near.windows.max())
    best: TrailingFit | None = None
    for group in guesses:
        fits = [fitted for part in group if (fitted := fit(part, a_ns, b_ns)) is not None]
        best = min([*fits, best] if best else fits, default=None)
        if best is not None and best.rest_ns <= enough:
            break
    value = (low + high) / 2 if best is None else best.bounds.value_ns
    return BusyBounds(min(max(value, low), high), low, high)


class Tube(NamedTuple):
    """At ascending `moments`, ns after an interval's start: the most and the least busy time from there to each."""

    moments: Floats
    most: Floats
    least: Floats

    def bounds(self, t: float) -> tuple[float, float]:
        """The least and the most busy time until `t`, one of the moments."""
        at = int(self.moments.searchsorted(t))
        return max(0.0, float(self.least[at])), min(t, float(self.most[at]))

    def between(self, x: float, y: float) -> float:
        """Busy ns between two of the moments, in the middle of all possible loads.

        The most and the least both satisfy all constraints, and so does their mean.
        """
        i, j = (int(self.moments.searchsorted(t)) for t in (x, y))
        return float(self.most[j] + self.least[j] - self.most[i] - self.least[i]) / 2

    def rate(self, moments: Sequence[float]) -> float:
        """Busy share between the first and the last of some of the moments."""
        x, y = min(moments), max(moments)
        return self.between(x, y) / (y - x) if y > x else 0.0

    def roughness(self, moments: Sequence[float]) -> float:
        """The sum of changes of the busy share from cell to cell between some moments, in ns."""
        cells = [(y - x, self.between(x, y)) for x, y in pairwise(moments)]
        return sum(abs(a / x - b / y) * min(x, y) for (x, a), (y, b) in pairwise(cells))


def solve(readings: Readings, a_ns: int, length: float) -> Tube | None:
    """The possible busy time from `a_ns` to every moment of the readings and the interval; None if there is none."""
    early, late = ((part - a_ns).astype(np.float64) for part in (readings.earliest, readings.latest))
    k, windows = len(early), readings.windows.astype(np.float64)
    every = np.concatenate((early, late, early - windows, late - windows, (0.0, length)))
    moments, place = np.unique(every, return_inverse=True)
    e, f, e0, f0 = (place[i * k : (i + 1) * k] for i in range(4))
    mass = readings.shares * windows
    doubt = readings.quantum * windows / 2 + 2 * _STAMP_NS
    span = late - early
    # For a moment in [e, f]: from f - W to e at most the reading, and from e - W to f at least that. From e - W to f at
    # most the reading plus the span, and from f - W to e at least the reading minus the span.
    source = np.concatenate((f0, f, e0, e))
    target = np.concatenate((e, e0, f, f0))
    most = np.concatenate((mass + doubt, doubt - mass, mass + doubt + span, doubt - mass + span))
    if not span.any():
        source, target, most = source[: 2 * k], target[: 2 * k], most[: 2 * k]
    start = int(place[4 * k])
    up = _shortest(moments, source, target, most, start)
    if up is None:
        return None
    # A path to the start is one from it with every edge and time reversed.
    back = _shortest(-moments[::-1], _turned(target, moments), _turned(source, moments), most, len(moments) - 1 - start)
    return None if back is None else Tube(moments, up, -back[::-1])


def _turned(place: Ints, moments: Floats) -> Ints:
    result: Ints = len(moments) - 1 - place
    return result


def _shortest(moments: Floats, source: Ints, target: Ints, most: Floats, start: int) -> Floats | None:
    """Lengths of the shortest paths from `start` (Bellman and Ford); None if there is a cycle of negative length.

    Besides the given edges, there is one from each moment to every later one, as long as the time between them, and one
    of length 0 to every earlier one: two running minima.
    """
    lengths = np.full(len(moments), np.inf)
    lengths[start] = 0.0
    order = np.argsort(target, kind="stable")
    source, most = source[order], most[order]
    targets, first = np.unique(target[order], return_index=True)
    for _ in range(len(moments) + 2):
        lengths = np.minimum.accumulate(lengths - moments) + moments
        lengths = np.minimum.accumulate(lengths[::-1])[::-1]
        if lengths[start] < -_GAIN_NS:
            return None
        if not len(targets):
            return lengths
        shorter = np.minimum.reduceat(lengths[source] + most, first)
        previous = lengths[targets]
        if not (shorter < previous - _GAIN_NS).any():
            return lengths
        lengths = lengths.copy()
        lengths[targets] = np.minimum(previous, shorter)
    return None


# ---------------------------------------------------------------------- the best guess


def _split(tube: Tube, ends: Floats, length: float) -> tuple[float, float]:
    """Cut the cells between two of the `ends` that contain an edge of the interval at that edge.

    Returns the total disagreement and the busy ns of the interval. The part outside continues at the rate of the cell
    beyond it, and the part inside at the rate of the cell within.
    """
    inner = ends[(ends >= 0.0) & (ends <= length)].tolist()
    before, after = ends[ends < 0.0][-3:].tolist(), ends[ends > length][:3].tolist()
    rough = tube.roughness(before) + tube.roughness(inner) + tube.roughness(after)
    if not inner:
        if not before or not after:
            return rough, tube.between(0.0, length)
        cell, rest = tube.between(before[-1], after[0]), after[0] - before[-1] - length
        outside = -tube.rate(before[-2:]) * before[-1] + tube.rate(after[:2]) * (after[0] - length)
        return rough, min(max(cell - outside, cell - rest, 0.0), cell)
    head, one = _edge(tube, 0.0, before[:-3:-1], inner[:2])
    tail, other = _edge(tube, length, after[:2], inner[:-3:-1])
    return rough + one + other, tube.between(inner[0], inner[-1]) + head + tail


def _edge(tube: Tube, edge: float, outer: Sequence[float], inner: Sequence[float]) -> tuple[float, float]:
    """Busy ns of the inner part of the cell that contains an edge, and the disagreement between its two estimates.

    `outer` and `inner` are the moments of up to two readings on either side, nearest first.
    """
    part = abs(inner[0] - edge)
    within = tube.rate(inner) * part if len(inner) > 1 else None
    if not outer:
        return within or 0.0, 0.0
    rest = abs(outer[0] - edge)
    cell = tube.between(min(inner[0], outer[0]), max(inner[0], outer[0]))
    low, high = max(0.0, cell - rest), min(part, cell)
    beyond = cell - tube.rate(outer) * rest if len(outer) > 1 else None
    if beyond is not None and within is not None:
        # Each estimate's error is in proportion to its part of the cell.
        squares = part * part + rest * rest
        value = (beyond * part * part + within * rest * rest) / squares if squares else 0.0
        return min(max(value, low), high), abs(beyond - within)
    value = beyond if beyond is not None else within if within is not None else cell * part / max(part + rest, 1.0)
    clipped = min(max(value, low), high)
    return clipped, abs(value - clipped)
