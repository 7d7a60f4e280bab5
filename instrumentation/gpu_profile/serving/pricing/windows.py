"""Readings of energy counters matched with the terms of iterations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.terms import LEAST_TERMS
from gpu_profile.serving.work import Bools

_MS: Final = 1_000_000
_UJ: Final = 1_000_000
#: A counter without growth for the first time stands still, as counters are renewed several times a second. After the
#: second one, its energy is taken to be 0.
_STILL_NS, _MOST_STILL_NS = 1_000 * _MS, 30_000 * _MS
#: The range of lags of the counter behind the iterations' stamps, in ns, the first step, and the last one.
_EARLIEST_NS, _LATEST_NS, _STEP_NS, _FINE_NS = -50 * _MS, 1_000 * _MS, 10 * _MS, _MS // 4
_ALL: Final = range(_EARLIEST_NS, _LATEST_NS + 1, _STEP_NS)
#: A lag is not ruled out while minus twice its log likelihood is above the best one's by less than this: the 95 %
#: quantile of chi-square with one degree of freedom.
_LIKELY: Final = 3.84
#: From this difference on, more readings do not make a lag likely.
_FAR: Final = 200.0
#: Directions of the equations that are this much weaker than the strongest one have no price.
_RCOND: Final = 1e-12
#: The most moments that are looked up at once: their sums fit the cache.
_AT_ONCE: Final = 4096
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

    @property
    def growth_uj(self) -> int:
        """The energy from the first reading to the last one in whole µJ, 0 without readings."""
        return round(float(self.joules[-1]) * _UJ) - round(float(self.joules[0]) * _UJ) if len(self.joules) else 0

    def thinned(self, idle: Sequence[bool], first: int) -> CounterReadings:
        """The readings from index `first` on without the middle of `idle` times, and all earlier ones."""
        if not any(idle):
            return self
        inside = np.logical_and(idle[:-1], idle[1:])
        inside[: max(0, first - 1)] = False
        kept = np.concatenate(([True], ~inside, [True]))
        return CounterReadings(self.times[kept], self.joules[kept])

    def moving(self, first: int, until_ns: int) -> CounterReadings:
        """Leave out readings of a counter without growth for a second or more, from index `first` on and up to a time.
        The next reading has the energy of all of this time. Readings after half a minute are kept."""
        steps = np.concatenate(([True], np.diff(self.joules) > 0))[: len(self.times)]
        if steps[first:].all():
            return self
        run = np.cumsum(steps) - 1
        since, last = self.times[steps], np.append(self.times[np.flatnonzero(steps)[1:] - 1], self.times[-1])
        still = (last - since >= _STILL_NS)[run] & (self.times - since[run] < _MOST_STILL_NS) & ~steps
        still[:first] = False
        still &= self.times <= until_ns
        return CounterReadings(self.times[~still], self.joules[~still])


class CumulativeTerms(NamedTuple):
    """Terms of iterations as functions of time: their sums up to the start of each iteration and after the last one."""

    starts: Ints
    ends: Ints
    sums: Floats

    @classmethod
    def of(cls, starts: Ints, ends: Ints, values: Floats) -> CumulativeTerms:
        """From the terms of each iteration, `values[n, terms]`."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, np.zeros((1, values.shape[1]))).followed_by(starts, ends, values)

    def followed_by(self, starts: Ints, ends: Ints, values: Floats) -> CumulativeTerms:
        """These terms and those of later iterations, `values[n, terms]`."""
        sums = np.cumsum(np.concatenate((self.sums[-1:], values)), axis=0)
        return CumulativeTerms(
            np.concatenate((self.starts, starts)), np.concatenate((self.ends, ends)),
            np.concatenate((self.sums[:-1], sums)),
        )  # fmt: skip

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
    """The time by which readings lag behind iterations, in ns, and others that readings do not rule out. A search with
    more readings need not look beyond `near`."""

    ns: int
    others: tuple[int, ...]
    near: range = _ALL


def rows(readings: CounterReadings, lag_ns: int | Ints, cumulative: CumulativeTerms) -> tuple[Floats, Floats]:
    """The equations of the windows between readings: the seconds outside iterations and then the terms of each window,
    `[windows, 1 + terms]`, and its J. The first term must be the iterations' duration in s. Of several lags,
    `[lags, windows, 1 + terms]`."""
    moments = readings.times - np.asarray(lag_ns)[..., None]
    sums = cumulative.at(moments.ravel()).reshape(*moments.shape, -1)
    shares = np.empty((*moments.shape[:-1], moments.shape[-1] - 1, 1 + sums.shape[-1]))
    outside, terms = shares[..., 0], shares[..., 1:]
    np.subtract(sums[..., 1:, :], sums[..., :-1, :], out=terms)
    np.subtract(np.diff(readings.times) / 1e9, terms[..., 0], out=outside)
    outside[outside < _ROUNDING_S] = 0.0
    return shares, np.diff(readings.joules)


def _residuals(shares: Floats, joules: Floats) -> Floats:
    """By lag: the least sum of squared residuals, from sums of products. A hundred fits of tall matrices would cost
    more than all else that an engine's first minutes need."""
    turned = shares.swapaxes(-1, -2)
    gram, moment = turned @ shares, turned @ joules
    size = np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))
    scale = np.where(size > 0, size, 1.0)
    gram, moment = gram / scale[:, :, None] / scale[:, None], moment / scale
    solved = (np.linalg.pinv(gram, _RCOND, hermitian=True) @ moment[:, :, None])[:, :, 0]
    fitted = (solved * (2 * moment - (gram @ solved[:, :, None])[:, :, 0])).sum(axis=1)
    result: Floats = float(joules @ joules) - fitted
    return result


def lag_of(readings: CounterReadings, cumulative: CumulativeTerms, good: Bools, among: range = _ALL) -> Lag | None:
    """The lag with the least residual of plain least squares over good windows, or None at the edge of the range. It is
    looked for among some lags first."""
    least = cumulative._replace(sums=np.ascontiguousarray(cumulative.sums[:, :LEAST_TERMS]))
    scores: dict[int, float] = {}
    all_good, count, at_once = bool(good.all()), int(good.sum()), max(1, _AT_ONCE // len(readings.times))

    def best_of(lags: Sequence[int]) -> int:
        fresh = [lag_ns for lag_ns in lags if lag_ns not in scores]
        for first in range(0, len(fresh), at_once):
            some = fresh[first : first + at_once]
            shares, joules = rows(readings, np.array(some), least)
            if not all_good:
                shares, joules = shares[:, good], joules[good]
            values = count * np.log(np.maximum(_residuals(shares, joules), 1e-12))
            scores.update(zip(some, values.tolist(), strict=True))
        return min(lags, key=scores.__getitem__)

    best = best_of(among)
    if best in (among[0], among[-1]):
        best = best_of(_ALL)
    if best in (_EARLIEST_NS, _LATEST_NS):
        return None
    close, step = [lag_ns for lag_ns, value in scores.items() if value < scores[best] + _FAR], _STEP_NS
    while step > _FINE_NS:
        step //= 2
        best = best_of((best - step, best, best + step))
    likely = [lag_ns for lag_ns, value in scores.items() if value < scores[best] + _LIKELY and lag_ns != best]
    edges = {min(likely), max(likely)} if likely else set()
    # Finer than the last step, the likelihood is flat.
    near = range(max(_EARLIEST_NS, min(close) - _STEP_NS), min(_LATEST_NS, max(close) + _STEP_NS) + 1, _STEP_NS)
    return Lag(best, tuple(sorted(edges | {best - step, best + step})), near)
