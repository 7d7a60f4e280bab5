"""A slow factor that the power of all regions has in common, such as that of throttled clocks. Pure.

Power caps, temperature limits and other clocks change the power of all regions at once, for seconds. In the residual
of steady rates this is most of the noise, although windows of the same seconds still show the regions' differences. So
each stretch of time has a factor of its own, for the power above the lowest rate, and its windows are divided by it. A
region's rate is the mean over all of its time, so the factors' effect on its windows is put back into it (`restored`).
"""

from __future__ import annotations

import math
from copy import copy
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.least_squares import least_of_each
from gpu_profile.units import NS_PER_S

#: The lengths of stretches that are tried.
_LENGTHS_NS: Final = (5 * NS_PER_S, 2 * NS_PER_S, NS_PER_S)
#: A stretch has a factor if it has this many windows that do not overlap, and regions without a rate for at most this
#: share of its time.
_FEWEST: Final = 5
_UNKNOWN: Final = 0.01
#: The range of a factor. A value outside of it has another cause.
_LOWEST: Final = 0.2
_HIGHEST: Final = 5.0
#: Stretches that show a scatter.
_FEWEST_STRETCHES: Final = 4
#: Each factor costs the logarithm of the number of windows (Schwarz, Annals of Statistics 6 (1978), 461). All of them
#: raise twice the log likelihood by this much more, or none is used.
_CERTAIN: Final = 20.0
#: They are most of the noise: residuals of another cause change slowly too.
_MOST_LEFT: Final = 0.5
#: Rates follow from factors, and factors from rates, by turns.
_ROUNDS: Final = 3
#: The least share of the information on each rate that lies in the differences between windows of the same stretch.
_WITHIN: Final = 0.5
#: Less than this share of a column's square is rounding, and such a residual, in squared base units.
_ROUNDING: Final = 1e-9


class CommonFactor(NamedTuple):
    """The length of a stretch with one factor, and the rates by column at a factor of 1."""

    length_ns: int
    rates: Floats

    @classmethod
    def of(cls, ends: Ints, shares: Floats, values: Floats, most: float, over_ns: int) -> CommonFactor | None:
        """The factor that the windows show; None if they show none.

        `ends` are the windows' last stamps, `shares[n, columns]` the active shares and `values[n]` the readings. No
        rate is above `most`. A reading averages over `over_ns`.
        """
        if len(values) < _FEWEST * _FEWEST_STRETCHES:
            return None
        # Readings of overlapping times count once.
        n, best, most_gained = min(len(values), int(ends[-1] - ends[0]) // over_ns), None, _CERTAIN
        rates = _fitted(shares, values, most)
        steady = _square(values - shares @ rates)
        for length_ns in _LENGTHS_NS:
            place = stretches(ends, length_ns)
            count = int(place[-1]) + 1
            few = count < _FEWEST_STRETCHES or len(values) < _FEWEST * count or length_ns < _FEWEST * over_ns
            if few or not _shown_within(shares, place):
                continue
            common = cls(length_ns, rates)
            for _ in range(_ROUNDS):
                divided = common.divided(shares, values, common.factors(shares, values, place))
                common = common._replace(rates=_fitted(shares, divided, most))
            factors = common.factors(shares, values, place)
            left = _square((common.divided(shares, values, factors) - shares @ common.rates) * factors)
            gained = n * math.log(steady / left) - count * math.log(n)
            if gained > most_gained and left < _MOST_LEFT * steady:
                best, most_gained = common, gained
        return best

    @property
    def lowest(self) -> float:
        """The lowest rate: no factor changes this much power."""
        return float(self.rates.min(where=self.rates > 0, initial=self.rates.max(initial=0.0)))

    def factors(self, shares: Floats, values: Floats, place: Ints) -> Floats:
        """By window: the factor of its stretch, given by `place`; 1 where it is unknown."""
        rates, whole = self._sized(shares.shape[1]), shares.sum(axis=1)
        rest = self.lowest * whole
        parts = values - rest, shares @ rates - rest, shares[:, rates <= 0].sum(axis=1), whole
        above, expected, unknown, every = (np.bincount(place, part) for part in parts)
        usable = (np.bincount(place) >= _FEWEST) & (unknown <= _UNKNOWN * every)
        usable &= expected > _UNKNOWN * self.lowest * every
        factors = np.where(usable, above / np.where(usable, expected, 1.0), 1.0)
        factors[(factors < _LOWEST) | (factors > _HIGHEST)] = 1.0
        result: Floats = factors[place]
        return result

    def divided(self, shares: Floats, values: Floats, factors: Floats) -> Floats:
        """The values at a factor of 1."""
        rest: Floats = self.lowest * shares.sum(axis=1)
        return rest + (values - rest) / factors

    def taken(self, shares: Floats, factors: Floats) -> Floats:
        """By column: the sum that the factors took from its windows' values, and the sum that a factor of 2 takes."""
        above = np.maximum(self._sized(shares.shape[1]) - self.lowest, 0.0)
        result: Floats = above * (np.array((factors - 1.0, np.ones(len(factors)))) @ shares)
        return result

    def _sized(self, columns: int) -> Floats:
        return np.append(self.rates[:columns], np.zeros(max(0, columns - len(self.rates))))


def restored(equations: Equations) -> Equations:
    """The equations of the mean rates, in which the sums that common factors took from the windows are put back."""
    if not equations.taken.any():
        return equations
    result, change = copy(equations), equations.put_back()[:, None]
    result.moment = equations.moment + equations.gram @ change
    result.square = equations.square + (change * (equations.moment + result.moment)).sum(axis=0)
    result.sum = equations.sum + equations.taken[0].sum()
    result.reference = equations.reference + change.astype(np.float32)
    return result


def stretches(ends: Ints, length_ns: int) -> Ints:
    """The stretch of each window, given by its end. Stretches are equal and have nearly this length."""
    since = ends - ends[0]
    span = int(since[-1]) + 1
    result: Ints = since * max(1, round(span / length_ns)) // span
    return result


def _fitted(shares: Floats, values: Floats, most: float) -> Floats:
    return least_of_each((shares.T @ shares)[None], (shares.T @ values)[None], most)[0]


def _square(left: Floats) -> float:
    return _ROUNDING + float(left @ left)


def _shown_within(shares: Floats, place: Ints) -> bool:
    """Whether the differences between windows of the same stretch show the rates, and not only other stretches."""
    shares = shares[:, shares.any(axis=0)]
    sums, mean, gram = (
        np.array([np.bincount(place, column) for column in shares.T]),
        shares.mean(axis=0),
        shares.T @ shares,
    )
    within = gram - sums / np.maximum(np.bincount(place), 1) @ sums.T + len(place) * np.outer(mean, mean)
    ridge = np.diag(_ROUNDING * gram.diagonal())
    every, own = (np.linalg.inv(each + ridge).diagonal() for each in (gram, within))
    return bool((every >= _WITHIN * own).all())
