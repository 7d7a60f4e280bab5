"""Readings of energy counters matched with the terms of iterations. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.terms import LEAST_TERMS
from gpu_profile.serving.work import Bools

_MS: Final = 1_000_000
#: The range of lags of the counter behind the iterations' stamps, in ns, the first step, and the last one.
_EARLIEST_NS, _LATEST_NS, _STEP_NS, _FINE_NS = -50 * _MS, 1_000 * _MS, 10 * _MS, _MS // 4
#: A lag is not ruled out while minus twice its log likelihood is above the best one's by less than this: the 95 %
#: quantile of chi-square with one degree of freedom.
_LIKELY: Final = 3.84
#: Directions of the equations that are this much weaker than the strongest one have no price.
_RCOND: Final = 1e-12
#: Less time outside iterations is rounding.
_ROUNDING_S: Final = 1e-6


class CounterReadings(NamedTuple):
    """Readings of energy in J, summed over the devices of an engine, at times in ns since the epoch."""

    times: Ints
    joules: Floats

    def before(self, last: int) -> CounterReadings:
        """The readings to before index `last`."""
        return CounterReadings(self.times[:last], self.joules[:last])

    def since(self, first: int) -> CounterReadings:
        """The readings from index `first` on."""
        return CounterReadings(self.times[first:], self.joules[first:])


class CumulativeTerms(NamedTuple):
    """Terms of iterations as functions of time: their sums up to the start of each iteration and after the last one."""

    starts: Ints
    ends: Ints
    sums: Floats

    @property
    def values(self) -> Floats:
        """The terms of each iteration."""
        return np.diff(self.sums, axis=0)

    @classmethod
    def of(cls, starts: Ints, ends: Ints, values: Floats) -> CumulativeTerms:
        """From the terms of each iteration, `values[n, terms]`."""
        return cls(starts, ends, np.cumsum(np.concatenate((np.zeros((1, values.shape[1])), values)), axis=0))

    def at(self, moments: Ints) -> Floats:
        """The sums up to each moment, `[moments, terms]`. A term is spread evenly over its iteration."""
        if not len(self.starts):
            return np.zeros((len(moments), self.sums.shape[1]))
        last = np.searchsorted(self.starts, moments, side="right") - 1
        which = np.maximum(last, 0)
        starts = self.starts[which]
        lengths = np.maximum(self.ends[which] - starts, 1)
        part = np.where(last < 0, 0.0, np.minimum(np.maximum((moments - starts) / lengths, 0.0), 1.0))
        # In place, and by `take`: the search for the lag computes little else.
        result, growth = self.sums.take(which, axis=0), self.sums.take(which + 1, axis=0)
        growth -= result
        growth *= part[:, None]
        result += growth
        return result


class Lag(NamedTuple):
    """The time by which readings lag behind iterations, in ns, and others that readings do not rule out."""

    ns: int
    others: tuple[int, ...]


def rows(readings: CounterReadings, lag_ns: int, cumulative: CumulativeTerms) -> tuple[Floats, Floats]:
    """The equations of the windows between readings: the seconds outside iterations and then the terms of each window,
    `[windows, 1 + terms]`, and its J. The first term must be the iterations' duration in s."""
    moments = readings.times - lag_ns
    sums = cumulative.at(moments)
    shares = np.empty((len(sums) - 1, 1 + sums.shape[1]))
    outside, terms = shares[:, 0], shares[:, 1:]
    np.subtract(sums[1:], sums[:-1], out=terms)
    np.subtract(np.diff(moments) / 1e9, terms[:, 0], out=outside)
    outside[outside < _ROUNDING_S] = 0.0
    return shares, np.diff(readings.joules)


def _least_squares(shares: Floats, joules: Floats) -> Floats:
    """The prices with the least residual. From sums of products: a hundred fits of a tall matrix would cost more than
    all else that an engine's first minutes need."""
    gram = shares.T @ shares
    size = np.sqrt(gram.diagonal())
    scale = np.where(size > 0, size, 1.0)
    solved: Floats = np.linalg.lstsq(gram / scale[:, None] / scale, shares.T @ joules / scale, rcond=_RCOND)[0] / scale
    return solved


def lag_of(readings: CounterReadings, cumulative: CumulativeTerms, good: Bools) -> Lag | None:
    """The lag with the least residual of plain least squares over good windows, or None at the edge of the range."""
    least = cumulative._replace(sums=np.ascontiguousarray(cumulative.sums[:, :LEAST_TERMS]))
    scores: dict[int, float] = {}
    all_good = bool(good.all())

    def score(lag_ns: int) -> float:
        if lag_ns not in scores:
            shares, joules = rows(readings, lag_ns, least)
            if not all_good:
                shares, joules = shares[good], joules[good]
            left = joules - shares @ _least_squares(shares, joules)
            scores[lag_ns] = len(joules) * float(np.log(max(float(left @ left), 1e-12)))
        return scores[lag_ns]

    best = min(range(_EARLIEST_NS, _LATEST_NS + 1, _STEP_NS), key=score)
    if best in (_EARLIEST_NS, _LATEST_NS):
        return None
    step = _STEP_NS
    while step > _FINE_NS:
        step //= 2
        best = min((best - step, best, best + step), key=score)
    likely = [lag_ns for lag_ns, value in scores.items() if value < scores[best] + _LIKELY and lag_ns != best]
    edges = {min(likely), max(likely)} if likely else set()
    # Finer than the last step, the likelihood is flat.
    return Lag(best, tuple(sorted(edges | {best - step, best + step})))
