"""The period at which a sensor renews its reading, and the moments of the renewals, from polls. Pure.

A phase is a moment's place in the period, as a unit vector.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats

#: The longest period that the search tries, in ms. The shortest is two polls: a poll hides faster changes.
_LONGEST_MS: Final = 1200.0
#: The first search uses this many changes, and a grid of 1 / `_FINE` of a turn.
_FIRST: Final = 300
_FINE: Final = 8
#: Changes are periodic if their phases are this much alike (the length of the mean of unit vectors). Of the periods
#: whose likeness is at least `_AS_GOOD` times the best, the longest wins.
_STEADY: Final = 0.6
_AS_GOOD: Final = 0.9
Z95: Final = 1.96


class Estimate(NamedTuple):
    """A value and the half-width of its 95 % interval."""

    value: float
    half_width: float

    def wider(self, half_width: float) -> Estimate:
        """The same, with at least this half-width."""
        return self._replace(half_width=max(self.half_width, half_width))

    def __str__(self) -> str:
        # Two digits of the half-width give the number of meaningful digits of the value.
        digits = min(4, max(1, 1 - math.floor(math.log10(self.half_width)))) if self.half_width > 0 else 1
        return f"{self.value:.{digits}f} ± {self.half_width:.{digits}f}"


def period_of(changes: Floats, gap: float) -> tuple[Estimate, float]:
    """The period of changes in ms and its jitter, zeros for changes without a period. Polls are `gap` ms apart."""
    some = changes[:_FIRST] - changes[0]
    span = float(some[-1])
    if span <= 0:
        return Estimate(0.0, 0.0), 0.0
    turns = np.arange(max(2.0, span / _LONGEST_MS), span / (2 * gap), 1 / _FINE)
    # Turns are equally spaced: each is the sum of one of a coarse grid and one of a fine grid. Unit vectors multiply.
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
    # The top of the first peak: the longest of the periods that explain the changes.
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
    if abs(complex(np.exp(2j * np.pi * left / slope).mean())) < _STEADY:
        # The first changes have a period that later ones do not keep.
        return Estimate(0.0, 0.0), 0.0
    width = Z95 * float(left.std()) / math.sqrt(len(changes)) / max(float(number.std()), 1.0) + 1e-6 * slope
    own = max(0.0, float(left.var()) - gap * gap / 12)
    return Estimate(float(slope), width), math.sqrt(own)


def placed(shut: Floats, open_: Floats, period: Estimate) -> tuple[Floats, float, Estimate]:
    """The moments of the renewals, their common error, and the period again: from the last poll before each renewal
    (`shut`) and the first one after it (`open_`), in ms."""
    middles = (shut + open_) / 2
    number = np.rint((middles - middles[0]) / period.value)

    def room(tried: float) -> float:
        return float((open_ - number * tried).min() - (shut - number * tried).max())

    # If the sensor keeps time, one phase and one period fit between all pairs of polls. The room for the phase is
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
    # Polls at every phase of the period average the error out. Polls in step with the period keep all of it.
    apart, gap = open_ - number * period.value, float(np.median(open_ - shut))
    alike = abs(complex(np.exp(2j * np.pi * (apart - apart.mean()) / gap).mean()))
    return middles, gap / 2 * max(float(alike), 2 / math.sqrt(len(middles))), period
