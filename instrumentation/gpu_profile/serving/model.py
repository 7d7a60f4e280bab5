"""The cost model of one engine: the counter's lag, the prices of terms, and whether windows reject it. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.equations import Equations
from gpu_profile.serving.prices import DurationModel, Prices
from gpu_profile.serving.terms import EACH, TERMS, Terms, scales_of, terms_of
from gpu_profile.serving.windows import CounterReadings, CumulativeTerms, Lag, lag_of, rows
from gpu_profile.serving.work import Bools, Iterations, WorkQuantity

#: Readings from which the lag is searched for, and from which it is kept. In between, the search is repeated when the
#: number of readings has grown by this factor.
_FIRST_AT, _LOCK_AT, _GROWTH = 300, 1500, 1.5
#: Prices are fitted again when the number of windows has grown by this factor.
_REFIT: Final = 1.1
#: The model is rejected if residuals of alike windows are this share of their energy, and this many standard errors.
_MISFIT, _SURELY = 0.05, 4.0
#: Classes of alike windows by each of the properties, and windows in a class before it can reject the model.
_CLASSES, _LEAST_IN_CLASS = 8, 30
_UNKNOWNS: Final = 1 + TERMS


class CostModel:
    """A model of the cost of iterations, from windows between readings. It is `ready` once it can share out energy.

    Until the lag is `locked`, windows and the terms of iterations are kept, and the search for it is repeated. From
    then on, only sums remain.
    """

    def __init__(self) -> None:
        self.lag, self.ready, self.locked = Lag(0, ()), False, False
        self._scales: Floats = np.zeros(0)
        self._durations, self._equations = DurationModel(), Equations(columns=_UNKNOWNS)
        self._lag_offsets: Floats = np.zeros((0, _UNKNOWNS))
        self._kept, self._fitted_n, self._square = _Kept(), 0, 0.0
        self._classes = _Classes()
        self.prices = Prices(self._equations, self._lag_offsets)

    @property
    def rejected(self) -> bool:
        """Whether windows reject the model."""
        return self._classes.misfit

    @property
    def relative_noise(self) -> float:
        """The variance of one iteration's energy around its modelled one, as a share of the square of that."""
        return self.prices.noise * self._equations.n / self._square if self._square > 0 else 0.0

    def terms(self, iterations: Iterations) -> Terms:
        """The terms of iterations."""
        if not len(self._scales):
            self._scales = scales_of(iterations.work)
        return terms_of(iterations.seconds, iterations.work, self._durations.prices, self._scales)

    def keep(self, iterations: Iterations, readings: CounterReadings, good: Bools) -> None:
        """Add iterations, and readings up to the time of the last one. `good[readings]` marks each reading at the end
        of a usable window. Search for the lag if it is due."""
        values = self.terms(iterations).values
        self._durations.add(values, iterations.seconds)
        self._kept.add(iterations, values, readings, good)
        n = len(self._kept.readings.times)
        if n > _FIRST_AT and n >= _GROWTH * self._fitted_n:
            self._search()
            self._fitted_n = n
            if n >= _LOCK_AT and self.ready:
                self.locked, self._kept = True, _Kept()

    def _search(self) -> None:
        cumulative, readings, good = self._kept.cumulative, self._kept.readings, self._kept.good[1:]
        lag = lag_of(readings, cumulative, good)
        if lag is None:
            return
        fits = []
        for lag_ns in (*lag.others, lag.ns):
            shares, joules = rows(readings, lag_ns, cumulative)
            equations = Equations(columns=_UNKNOWNS)
            equations.add(shares[good], joules[good])
            fits.append(Prices(equations, np.zeros((0, _UNKNOWNS))))
        if fits[-1].enough:
            best = fits[-1].solution
            self.lag, self.ready, self._equations = lag, True, equations
            self._lag_offsets = np.array([fit.solution - best for fit in fits[:-1]])
            self._square = float(((cumulative.values @ best[1:]) ** 2).sum())
            self._classes.begin(shares[good])
            self._classes.add(shares[good], joules[good], joules[good] - shares[good] @ best)
            self.prices = Prices(equations, self._lag_offsets)

    def add(self, iterations: Iterations, shares: Floats, joules: Floats) -> None:
        """Once locked: add windows and the iterations that began in them. The prices so far predict the windows: a test
        on data that they do not depend on."""
        values = self.terms(iterations).values
        self._durations.add(values, iterations.seconds)
        self._square += float(((values @ self.prices.solution[1:]) ** 2).sum())
        self._classes.add(shares, joules, joules - shares @ self.prices.solution)
        self._equations.add(shares, joules)
        if self._equations.n > _REFIT * self._fitted_n:
            self.prices, self._fitted_n = Prices(self._equations, self._lag_offsets), self._equations.n


class _Kept:
    """Iterations' terms, and readings, for the search for the lag."""

    def __init__(self) -> None:
        self.cumulative = CumulativeTerms.of(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, TERMS)))
        self.readings = CounterReadings(np.zeros(0, np.int64), np.zeros(0))
        self.good: Bools = np.zeros(0, bool)

    def add(self, iterations: Iterations, values: Floats, readings: CounterReadings, good: Bools) -> None:
        """Add later ones."""
        before = self.cumulative
        self.cumulative = CumulativeTerms.of(
            np.concatenate((before.starts, iterations.starts)), np.concatenate((before.ends, iterations.ends)),
            np.concatenate((before.values, values)),
        )  # fmt: skip
        self.readings = CounterReadings(*(np.concatenate(both) for both in zip(self.readings, readings, strict=True)))
        self.good = np.concatenate((self.good, good))


class _Classes:
    """Residuals of windows by class. In a class, iterations are alike: in requests, tokens or context."""

    def __init__(self) -> None:
        #: Whether a class's residuals are beyond chance and large.
        self.misfit = False
        self._edges: list[Floats] = []
        #: By property and class: windows, the sums of residuals and of their squares, and of energy.
        self._sums: Floats = np.zeros((0, _CLASSES, 4))

    def begin(self, shares: Floats) -> None:
        """Set the classes: equally many of these windows in each."""
        inner = np.linspace(0, 1, _CLASSES + 1)[1:-1]
        self._edges = [np.quantile(each, inner) for each in self._properties(shares)]
        self._sums = np.zeros((len(self._edges), _CLASSES, 4))

    @staticmethod
    def _properties(shares: Floats) -> Floats:
        """Means per iteration of the windows: `[properties, windows]`."""
        kinds = [1 + 2 + kind for kind in (WorkQuantity.TOKENS, WorkQuantity.DECODE_CONTEXT, WorkQuantity.REQUESTS)]
        result: Floats = (shares[:, kinds] / np.maximum(shares[:, [1 + EACH]], 1e-9)).T
        return result

    def add(self, shares: Floats, joules: Floats, residuals: Floats) -> None:
        """Add windows with these residuals in J."""
        columns = np.stack((np.ones(len(joules)), residuals, residuals**2, joules))
        for sums, edges, values in zip(self._sums, self._edges, self._properties(shares), strict=True):
            place = np.searchsorted(edges, values)
            for i, column in enumerate(columns):
                sums[:, i] += np.bincount(place, column, _CLASSES)
        self.misfit = self._misfit()

    def _misfit(self) -> bool:
        n, residual, square, joules = np.moveaxis(self._sums, 2, 0)
        n = np.maximum(n, 1)
        error = np.sqrt(np.maximum(square / n - (residual / n) ** 2, 0.0) * n)
        off = (n >= _LEAST_IN_CLASS) & (abs(residual) > _SURELY * error) & (abs(residual) > _MISFIT * joules)
        return bool(off.any())
