"""The offsets of clocks from meetings of the ranks that read them. Pure.

No rank leaves a meeting before the last one has entered it. So an exit by one clock less an entry by another bounds
their offset from above, in each meeting anew. The bounds are combined along all paths between clocks. They are wide if
the same rank is always the last. Then the exits narrow them: after the last entry, each rank leaves within the time for
which the last rank stays. It suffices that a quarter of the exits does. Ranks of a clock that are sometimes the last
may leave as late as they do then. If others always leave late, their clock seems to be ahead by as much.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.analysis.clocks.meetings import LEAST, Meetings, trend
from gpu_profile.history.timeline import Floats, Ints

#: Quartz clocks run wrong by up to 100 millionths; a clock that is being set by NTP by up to 500.
_FASTEST: Final = 500e-6
_QUARTZ: Final = 100e-6
#: The fewest meetings for a rate.
_LEAST_FOR_RATE: Final = 4 * LEAST
#: Standard errors of means, and of rates, of which the slopes are fewer.
_SURE: Final = 3.0
_SURE_OF_RATE: Final = 4.0
#: Parts of the run that are compared to notice a clock that was set meanwhile.
_PARTS: Final = 8
#: The number of wrong meetings that do not affect a bound, at most, and as a share of all.
_WRONG: Final = 2
_WRONG_SHARE: Final = 0.05
#: The share of the exits that must be as simultaneous as assumed.
_QUARTER: Final = 0.25
#: The most sums of two times for the bounds.
_MOST_SUMS: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a clock is ahead of the reference, in ns, at the reference's time `at_ns`; the truth is within both ends.

    `rate` is the share by which the difference grows, with a half-width. `stepped`: the clock was set during the run,
    and the interval contains all values.
    """

    offset_ns: float
    low_ns: float
    high_ns: float
    at_ns: float
    rate: float = 0.0
    rate_half_width: float = 0.0
    stepped: bool = False

    @property
    def half_width_ns(self) -> float:
        """The distance of the farther end."""
        return max(self.high_ns - self.offset_ns, self.offset_ns - self.low_ns)

    @property
    def drifts(self) -> bool:
        """Whether the clock certainly runs faster or slower. Of a clock that was set, the rate shows the step."""
        return not self.stepped and abs(self.rate) > self.rate_half_width

    def by_reference(self, times_ns: Ints) -> Ints:
        """Times of this clock by the reference's, in whole ns; exact for times of any size."""
        at = round(self.at_ns + self.offset_ns)
        extra = np.rint((times_ns - at) * (self.rate / (1 + self.rate))).astype(np.int64)
        result: Ints = times_ns - round(self.offset_ns) - extra
        return result


def estimate(met: Meetings, reference: int) -> dict[int, ClockOffset]:
    """The offsets of the clocks in meetings, by number, relative to the clock `reference`.

    A clock is absent if it has too few meetings with the reference, if no clock can run as wrong as they say, or if
    they are no meetings.
    """
    numbers = np.unique(met.clocks).tolist()
    if reference not in numbers:
        return {}
    budget = max(4 * LEAST, _MOST_SUMS // len(numbers) ** 2)
    met = met.some(budget)
    entries, exits = met.by_clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        last_stays = np.nanmin(met.exits - met.entries, axis=0)
    base = exits[numbers.index(reference)]
    at_ns = float(np.nanmedian(base))
    rates: dict[int, tuple[float, float]] = {}
    for row, number in enumerate(numbers):
        both = np.isfinite(exits[row]) & np.isfinite(base)
        if np.count_nonzero(both) < LEAST:
            continue
        rate, error = (
            trend(exits[row], base) if np.count_nonzero(both) >= _LEAST_FOR_RATE else (0.0, _QUARTZ / _SURE_OF_RATE)
        )
        if number == reference:
            rate = error = 0.0
        if abs(rate) - _SURE_OF_RATE * error > _FASTEST:
            continue
        rates[row] = rate, _SURE_OF_RATE * error
    rows = list(rates)
    if len(rows) < 2:
        return {}
    times = base - at_ns
    gained = np.array([np.nan_to_num(rates[row][0] * times) for row in rows])
    entries, exits = entries[rows] - gained, exits[rows] - gained
    bounds = _bounds(entries, exits)
    me = rows.index(numbers.index(reference))
    length = float(np.nanmax(base) - np.nanmin(base))
    late = _late_exits(entries, exits, me)
    result = {}
    for row, place in enumerate(rows):
        if row != me:
            ahead, hard = exits[row] - exits[me], (-bounds[me, row], bounds[row, me])
            within = np.maximum(last_stays, late[row]), np.maximum(last_stays, late[me])
            wider = rates[place][1] * length / 2
            offset = _offset(ahead, within, hard, wider, abs(rates[place][0]) * length, at_ns, rates[place])
            if offset is not None:
                result[numbers[place]] = offset
    return result


def _late_exits(entries: Floats, exits: Floats, me: int) -> Floats:
    """How long the ranks of each clock stay when they enter last, [C]; 0 if they hardly ever do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        by_reference = entries - np.nanmedian(exits - exits[me], axis=1)[:, None]
        last = by_reference >= np.nanmax(by_reference, axis=0)
    stays = [(exits[row] - entries[row])[last[row]] for row in range(len(entries))]
    least = max(_WRONG + 1, _WRONG_SHARE * entries.shape[1])
    return np.array([np.median(each) if len(each) >= least else 0.0 for each in stays])


def _bounds(entries: Floats, exits: Floats) -> Floats:
    """`[a, b]`: the most by which clock a is ahead of clock b, along all paths; infinite without a meeting."""
    count = len(entries)
    bounds = np.full((count, count), np.inf)
    for row in range(count):
        apart = exits[row] - entries
        apart[np.isnan(apart)] = np.inf
        wrong = min(_WRONG, int(_WRONG_SHARE * apart.shape[1]))
        bounds[row] = np.partition(apart, wrong, axis=1)[:, wrong]
    np.fill_diagonal(bounds, 0.0)
    for via in range(count):
        np.minimum(bounds, bounds[:, via, None] + bounds[None, via, :], out=bounds)
    return bounds


def _offset(
    ahead: Floats,
    within: tuple[Floats, Floats],
    hard: tuple[float, float],
    wider: float,
    gained: float,
    at_ns: float,
    rate: tuple[float, float],
) -> ClockOffset | None:
    """The offset from exits `ahead[K]` of the reference's, which come `within` times, and from bounds that are hard.

    None if neither the exits nor the bounds are those of meetings.
    """
    both = np.isfinite(ahead)
    own, others = (each[both].clip(0) for each in within)
    ahead = ahead[both]
    pieces = np.array_split(ahead, _PARTS)
    parts = np.array([np.median(piece) for piece in pieces])
    spread = 1.48 * float(np.median([np.median(np.abs(piece - np.median(piece))) for piece in pieces]))
    low = float(np.quantile(ahead - own, _QUARTER))
    high = float(np.quantile(ahead + others, 1 - _QUARTER))
    if spread > float(np.median(own + others)):
        # The exits are not simultaneous, but follow one another: stages of a pipeline, for instance.
        if hard[0] > hard[1]:
            return None
        low, high = -np.inf, np.inf
    # Bounds that contradict each other, or the exits, are of meetings that were none. Then only the exits count.
    if max(low, hard[0]) <= min(high, hard[1]) and hard[0] <= hard[1]:
        low, high = max(low, hard[0]), min(high, hard[1])
    middle = min(max(float(np.median(ahead)), low), high)
    by_chance = _SURE * 1.25 * spread / np.sqrt(len(ahead) / _PARTS)
    apart = float(np.median(np.maximum(own, others)))
    stepped = bool(np.abs(parts - np.median(parts)).max() > 2 * by_chance + apart)
    # A part hides a step near its end.
    ends = np.array([np.median(ahead[:LEAST]), np.median(ahead[-LEAST:])])
    by_chance = _SURE * 1.25 * spread / np.sqrt(LEAST)
    if np.abs(ends - np.median(parts)).max() > 2 * by_chance + apart:
        stepped, parts = True, np.concatenate((parts, ends))
    if stepped:
        # The rate is that of a line through the steps.
        wider += gained / 2
        low, high = min(low, float(parts.min())), max(high, float(parts.max()))
    return ClockOffset(middle, low - wider, high + wider, at_ns, *rate, stepped)
