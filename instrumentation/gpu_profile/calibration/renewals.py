"""When a sensor renews its reading: the period of the changes that polls showed, and where renewals lie. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats

#: Periods that are looked for, in ms; shorter than two polls, none shows.
_LONGEST_MS: Final = 1200.0
#: Changes in which they are looked for at first, and so many parts of a turn that the first look may be off by.
_FIRST: Final = 300
_FINE: Final = 8
#: Changes come once a period if their phases are this much alike (the length of the mean of unit vectors), and the
#: longest period is taken of those that come this near to the best.
_STEADY: Final = 0.6
_AS_GOOD: Final = 0.9
Z95: Final = 1.96


class Estimate(NamedTuple):
    """A value and the half-width of its 95 % interval."""

    value: float
    half_width: float

    def wider(self, half_width: float) -> Estimate:
        """The same, at least so uncertain."""
        return self._replace(half_width=max(self.half_width, half_width))

    def __str__(self) -> str:
        # Two digits of the half-width tell how many of the value mean anything.
        digits = min(4, max(1, 1 - math.floor(math.log10(self.half_width)))) if self.half_width > 0 else 1
        return f"{self.value:.{digits}f} ± {self.half_width:.{digits}f}"


def period_of(changes: Floats, gap: float) -> tuple[Estimate, float]:
    """The period of changes, in ms, and how unsteady it is; 0 if they come at none. Polls are `gap` ms apart."""
    some = changes[:_FIRST] - changes[0]
    span = float(some[-1])
    if span <= 0:
        return Estimate(0.0, 0.0), 0.0
    turns = np.arange(max(2.0, span / _LONGEST_MS), span / (2 * gap), 1 / _FINE)
    # Turns are evenly apart: each is one of a coarse grid and one of a fine grid, whose unit vectors are multiplied.
    many = math.isqrt(len(turns)) + 1
    coarse, fine = (
        np.exp(2j * np.pi * part[:, None] * (some / span)) for part in (turns[::many], np.arange(many) / _FINE)
    )
    parts = np.array_split(coarse, max(1, len(turns) // 1_000_000))
    alike = np.concatenate([np.abs(part @ fine.T).ravel() for part in parts])[: len(turns)] / len(some)
    best = float(alike.max(initial=0.0))
    if best < _STEADY:
        return Estimate(0.0, 0.0), 0.0
    peaks = np.flatnonzero(alike >= _AS_GOOD * best)
    first = peaks[0]
    # The top of the first peak: the longest period of those that explain the changes.
    while first + 1 < len(alike) and alike[first + 1] > alike[first]:
        first += 1
    period, count = span / float(turns[first]), len(some)
    while True:
        part = changes[:count] - changes[0]
        tried = 1 / (1 / period + np.linspace(-1, 1, 81) / max(float(part[-1]), 1.0))
        period = float(tried[np.abs([np.exp(2j * np.pi * part / each).mean() for each in tried]).argmax()])
        if count == len(changes):
            break
        count = min(len(changes), 2 * count)
    number = np.rint((changes - changes[0]) / period)
    slope, start = np.polyfit(number, changes, 1)
    left = changes - (start + slope * number)
    width = Z95 * float(left.std()) / math.sqrt(len(changes)) / max(float(number.std()), 1.0) + 1e-6 * slope
    own = max(0.0, float(left.var()) - gap * gap / 12)
    return Estimate(float(slope), width), math.sqrt(own)


def placed(shut: Floats, open_: Floats, period: Estimate) -> tuple[Floats, float, Estimate]:
    """When the sensor renewed itself, how far off that may be for all of them together, and the period again: from the
    last poll before each renewal (`shut`) and the first one after it (`open_`), in ms."""
    middles = (shut + open_) / 2
    number = np.rint((middles - middles[0]) / period.value)

    def room(tried: float) -> float:
        return float((open_ - number * tried).min() - (shut - number * tried).max())

    # One phase and one period are between all pairs of polls, if the sensor keeps time: what is left for the phase is
    # concave in the period.
    low, high = period.value - 4 * period.half_width, period.value + 4 * period.half_width
    for _ in range(60):
        one, other = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, other) if room(one) > room(other) else (one, high)
    best = (low + high) / 2
    if room(best) > 0:
        first = float((shut - number * best).max()) + room(best) / 2
        width = room(best) / 2 / max(1.0, float(number[-1]) / 2)
        return first + number * best, room(best) / 2, Estimate(best, width)
    # Polls at every phase of the period leave no error in the mean, and those in step with it all of it.
    apart, gap = open_ - number * period.value, float(np.median(open_ - shut))
    alike = abs(complex(np.exp(2j * np.pi * (apart - apart.mean()) / gap).mean()))
    return middles, gap / 2 * max(float(alike), 2 / math.sqrt(len(middles))), period
