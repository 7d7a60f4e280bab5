"""The cost model of one engine: the counter's lag, the prices of terms, and its misfit. Pure."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH, Z95
from gpu_profile.serving.pricing.prices import LITTLE, DurationModel, Prices, enough, solution_of
from gpu_profile.serving.pricing.seen_work import SeenWork
from gpu_profile.serving.pricing.terms import DURATION, EACH, TERMS, Terms, gradients_of, scales_of, terms_of, values_of
from gpu_profile.serving.pricing.windows import CounterReadings, CumulativeTerms, Lag, lag_of, rows
from gpu_profile.serving.work import Bools, Iterations, WorkQuantity

#: Readings from which the lag is searched for, and from which it is kept. In between, the search is repeated when the
#: number of readings has grown by this factor.
FIRST_AT, _LOCK_AT, _GROWTH = 300, 1500, 1.5
#: Prices are fitted again when the number of windows has grown by this factor.
_REFIT: Final = 1.1
#: Iterations this much older than the oldest reading are kept while there is no lag: the counter may be behind them.
LOOK_BACK_NS: Final = 2_000_000_000
#: Residuals fade over this number of later windows, so that a change shows.
_MEMORY: Final = 6_000
#: Misfit counts from this many standard errors on.
_SURELY: Final = 4.0
#: Classes of alike windows by each of the properties, and windows in a class before it counts.
_CLASSES, _LEAST_IN_CLASS = 8, 30
#: Windows in a stretch. The misfit that lasts is that of means over stretches, from this many of them on.
_STRETCH, _LEAST_STRETCHES = 20, 8
#: The energy of iterations changed with their durations if it is this share beyond their prices, in so many windows. A
#: busy host makes iterations longer, and the time costs no more than idle devices.
_CHANGED, _LEAST_UNUSUAL = 0.05, 50
#: Work is new if fewer than two windows show it, and the half-width of a window with it is above this share.
_NEW, _OPEN = 0.5, 0.1
#: Terms approximate the cost of an iteration. They may divide windows among requests as wrongly as if each window were
#: off by this share: most errors of single requests in simulated engines are within the half-width that follows.
_APPROXIMATE: Final = 0.05
_UNKNOWNS: Final = 1 + TERMS
_UNKNOWN: Final = Lag(0, ())


class CostModel:
    """A model of the cost of iterations, from windows between readings. It is `ready` once it can share out energy.

    Until the lag is `locked`, windows and the terms of iterations are kept, and the search for it is repeated. From
    then on, only sums remain. `lag` is that of a model before, as the search begins near it.
    """

    def __init__(self, lag: Lag = _UNKNOWN) -> None:
        self.lag, self.ready, self.locked = lag, False, False
        self._scales: Floats = np.ones(TERMS)
        self._has_scales = False
        self._durations, self._equations = DurationModel(), Equations(columns=_UNKNOWNS)
        self._lag_offsets: Floats = np.zeros((0, _UNKNOWNS))
        self._kept, self._fitted_n, self._square = _Kept(), 0, 0.0
        self._residuals = _Residuals()
        #: Since durations became unusual: windows, their residuals from the prices of that moment, the squares of
        #: residuals, and energy. Prices that are fitted to windows of both times would be right for neither.
        self._usual: Floats | None = None
        self._since_unusual: Floats = np.zeros(4)
        self._refit()

    def _refit(self) -> None:
        self.prices = Prices(self._equations, self._lag_offsets)
        self._seen = SeenWork(self._equations.gram[1:, 1:], self._equations.n, self._scales)

    @property
    def misfit(self) -> float:
        """By how much windows contradict the model, as a share of their energy, and durations, as a share of theirs."""
        return self._residuals.misfit + (self._durations.misfit if self._durations.unusual else 0.0)

    @property
    def refuted(self) -> bool:
        """Whether windows contradict the model too much or show two clocks of the devices, or whether the energy of
        iterations changed together with their durations."""
        n, residual, square, joules = self._since_unusual.tolist()
        sure = n >= _LEAST_UNUSUAL and abs(residual) > max(_SURELY * math.sqrt(square), _CHANGED * joules)
        return self._residuals.misfit > WIDEST_HALF_WIDTH or self.prices.clocks_changed or sure

    @property
    def waiting(self) -> int:
        """Readings that are kept for the search for the lag."""
        return self._kept.n

    @property
    def relative_noise(self) -> float:
        """The variance of one iteration's energy around its modelled one, as a share of the square of that."""
        return self.prices.noise * self._equations.n / self._square if self._square > 0 else 0.0

    def _scales_of(self, iterations: Iterations) -> Floats:
        if not self._has_scales and len(iterations.work):
            self._scales, self._has_scales = scales_of(iterations.work), True
        return self._scales

    def terms(self, iterations: Iterations) -> Terms:
        """The terms of iterations."""
        scales = self._scales_of(iterations)
        return terms_of(iterations.seconds, iterations.work, self._durations.prices, scales)

    def gradients(self, seconds: Floats, work: Floats, values: Floats) -> Floats:
        """By how much the terms of iterations with these durations, quantities and terms grow with each quantity:
        `[n, QUANTITIES, TERMS]`."""
        return gradients_of(seconds, work, self._durations.prices, self._scales, values)

    def keep(self, iterations: Iterations, readings: CounterReadings, good: Bools) -> None:
        """Add iterations, and readings up to the time of the last one. `good[readings]` marks each reading at the end
        of a usable window. Search for the lag if it is due."""
        values = values_of(iterations.seconds, iterations.work) / self._scales_of(iterations)
        self._durations.add(values, iterations.seconds, self._scales)
        self._kept.add(iterations, values, readings, good)
        self._kept.limit()
        n = self.waiting
        # After old ones were dropped, the search begins anew.
        self._fitted_n = min(self._fitted_n, n)
        if n > FIRST_AT and n >= _GROWTH * self._fitted_n:
            self._search()
            self._fitted_n = n
            if n >= _LOCK_AT and self.ready:
                self.locked, self._kept = True, _Kept()

    def _search(self) -> None:
        cumulative, readings, good = self._kept.cumulative, self._kept.readings, self._kept.good[1:]
        lag = lag_of(readings, cumulative, good, self.lag.near)
        if lag is None or (fitted := self._fit(lag)) is None:
            return
        shares, joules = fitted
        self._residuals.begin(shares)
        self._residuals.add(shares, joules, joules - shares @ self.prices.solution)

    def _fit(self, lag: Lag) -> tuple[Floats, Floats] | None:
        """Fit prices to the windows that are kept, and return their equations. None if they are too few."""
        cumulative, readings, good = self._kept.cumulative, self._kept.readings, self._kept.good[1:]
        solutions = []
        for lag_ns in (*lag.others, lag.ns):
            shares, joules = rows(readings, lag_ns, cumulative)
            equations = Equations(columns=_UNKNOWNS)
            equations.add(shares[good], joules[good])
            solutions.append(solution_of(equations))
        if not enough(equations):
            return None
        best = solutions[-1]
        self.lag, self.ready, self._equations = lag, True, equations
        self._lag_offsets = np.array([each - best for each in solutions[:-1]])
        self._square = float((np.diff(cumulative.sums @ best[1:]) ** 2).sum())
        self._refit()
        return shares[good], joules[good]

    def add(self, values: Floats, seconds: Floats, shares: Floats, joules: Floats) -> None:
        """Once locked: add windows, and the terms and durations of the iterations that began in them. The prices so far
        predict the windows: a test on data that they do not depend on. New work gets prices at once."""
        self._durations.add(values, seconds, self._scales)
        self._square += float(((values @ self.prices.solution[1:]) ** 2).sum())
        self._test(shares, joules)
        self._equations.add(shares, joules)
        if self._equations.n > _REFIT * self._fitted_n or self.new(shares).any():
            self._refit()
            self._fitted_n = self._equations.n

    def test(self, shares: Floats, joules: Floats) -> None:
        """Before that: test the prices on later windows. `keep` has these, so that new work gets prices at once."""
        self._test(shares, joules)
        if not self.locked and self.new(shares).any():
            self._fit(self.lag)

    def _test(self, shares: Floats, joules: Floats) -> None:
        # Where the power outside iterations is unclear, windows with such time test nothing.
        tested = (shares[:, 0] <= LITTLE * (shares[:, 0] + shares[:, 1 + DURATION])) | self.prices.outside_is_clear
        tested &= self._seen.tests(shares[:, 1:])
        residuals = joules - shares @ self.prices.solution
        self._residuals.add(shares[tested], joules[tested], residuals[tested])
        if not self._durations.unusual:
            self._usual, self._since_unusual = None, np.zeros(4)
            return
        self._usual = self.prices.solution if self._usual is None else self._usual
        some, some_j = (joules - shares @ self._usual)[tested], joules[tested]
        self._since_unusual += [len(some), some.sum(), (some**2).sum(), some_j.sum()]

    # ------------------------------------------------------------------ new work

    def new(self, shares: Floats) -> Bools:
        """By window: whether the prices are from windows with other work, and leave its energy open."""
        leverage = self._seen.leverage(shares[:, 1:])
        half_widths = Z95 * np.sqrt(self.prices.noise * leverage)
        result: Bools = (leverage > _NEW) & (half_widths > _OPEN * (shares @ self.prices.solution))
        return result

    def unseen(self, terms: Floats, joules: float) -> bool:
        """Whether the work of a sum of terms with this energy in J is new."""
        return float(self._spreads(terms[None])[0]) ** 2 > _NEW * joules**2

    def approximations(self, terms: Floats) -> Floats:
        """The least half-widths in J of the energies of requests with these sums of terms, `terms[n, TERMS]`."""
        return Z95 * _APPROXIMATE * self._spreads(terms)

    def _spreads(self, terms: Floats) -> Floats:
        """The errors in J of sums of terms if each window were off by its mean energy: `[n]`."""
        window_j = float(self._equations.sum[0]) / max(1, self._equations.n)
        result: Floats = window_j * np.sqrt(self._seen.leverage(terms))
        return result


class _Kept:
    """Iterations' terms, and readings, for the search for the lag. Batches are joined when they are needed: to continue
    arrays at each step would cost as much as the search."""

    def __init__(self) -> None:
        self._cumulative = CumulativeTerms.of(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, TERMS)))
        self._fresh: list[tuple[Ints, Ints, Floats]] = []
        self._readings = [CounterReadings(np.zeros(0, np.int64), np.zeros(0))]
        self._good: list[Bools] = [np.zeros(0, bool)]
        self.n = 0

    @property
    def cumulative(self) -> CumulativeTerms:
        """The terms of all iterations."""
        if self._fresh:
            starts, ends, values = (np.concatenate(each) for each in zip(*self._fresh, strict=True))
            self._cumulative, self._fresh = self._cumulative.followed_by(starts, ends, values), []
        return self._cumulative

    @property
    def readings(self) -> CounterReadings:
        """All readings."""
        self._readings = [CounterReadings(*(np.concatenate(each) for each in zip(*self._readings, strict=True)))]
        return self._readings[0]

    @property
    def good(self) -> Bools:
        """By reading: whether the window that ends with it is usable."""
        self._good = [np.concatenate(self._good)]
        return self._good[0]

    def limit(self) -> None:
        """Drop the older half if there are too many: there is no model for them."""
        if self.n > 2 * _LOCK_AT:
            half = self.n // 2
            self._readings, self._good = [self.readings.since(half)], [self.good[half:]]
            self.n -= half
            starts, ends, sums = self.cumulative
            first = int(np.searchsorted(ends, int(self._readings[0].times[0]) - LOOK_BACK_NS))
            self._cumulative = CumulativeTerms(starts[first:], ends[first:], sums[first:])

    def add(self, iterations: Iterations, values: Floats, readings: CounterReadings, good: Bools) -> None:
        """Add later ones."""
        self._fresh.append((iterations.starts, iterations.ends, values))
        self._readings.append(readings)
        self._good.append(good)
        self.n += len(good)


class _Residuals:
    """Residuals of windows by class of alike iterations (in requests, tokens or context), and by stretch of time.

    In a good model, chance alone makes them differ from 0. Iterations of a class may cost more or less than modelled.
    Over stretches, other work on the devices or other clocks may.
    """

    def __init__(self) -> None:
        self.misfit = 0.0
        self._edges: list[Floats] = []
        #: By property and class: windows, the sums of residuals and of their squares, and of energy.
        self._sums: Floats = np.zeros((0, _CLASSES, 4))
        #: Windows that wait for the end of their stretch, and sums over stretches: their number, the squares of their
        #: means, the fourth powers of these, the mean squares of residuals, and the means of energy.
        self._waiting: Floats = np.zeros((0, 2))
        self._stretches: Floats = np.zeros(5)

    def begin(self, shares: Floats) -> None:
        """Set the classes: equally many of these windows in each."""
        inner = np.linspace(0, 1, _CLASSES + 1)[1:-1]
        # As `np.quantile`, which would import much of numpy for its first call.
        at, places = inner * (len(shares) - 1), np.arange(len(shares))
        self._edges = [np.interp(at, places, np.sort(each)) for each in self._properties(shares)]
        self._sums = np.zeros((len(self._edges), _CLASSES, 4))
        self._waiting, self._stretches = np.zeros((0, 2)), np.zeros(5)

    @staticmethod
    def _properties(shares: Floats) -> Floats:
        """Means per iteration of the windows: `[properties, windows]`."""
        kinds = [1 + 2 + kind for kind in (WorkQuantity.TOKENS, WorkQuantity.DECODE_CONTEXT, WorkQuantity.REQUESTS)]
        result: Floats = (shares[:, kinds] / np.maximum(shares[:, [1 + EACH]], 1e-9)).T
        return result

    def add(self, shares: Floats, joules: Floats, residuals: Floats) -> None:
        """Add windows with these residuals in J."""
        fade = math.exp(-len(joules) / _MEMORY)
        self._sums *= fade
        self._stretches *= fade
        columns = np.stack((np.ones(len(joules)), residuals, residuals**2, joules))
        for sums, edges, values in zip(self._sums, self._edges, self._properties(shares), strict=True):
            place = np.searchsorted(edges, values)
            for i, column in enumerate(columns):
                sums[:, i] += np.bincount(place, column, _CLASSES)
        waiting = np.concatenate((self._waiting, np.column_stack((residuals, joules))))
        whole = len(waiting) // _STRETCH
        self._waiting = waiting[whole * _STRETCH :]
        stretches = waiting[: whole * _STRETCH].reshape(whole, _STRETCH, 2)
        squares, energy = stretches[:, :, 0].mean(axis=1) ** 2, stretches[:, :, 1].mean(axis=1)
        mean_squares = (stretches[:, :, 0] ** 2).mean(axis=1)
        self._stretches += [whole, squares.sum(), (squares**2).sum(), mean_squares.sum(), energy.sum()]
        self.misfit = max(self._of_classes(), self._of_stretches())

    def _of_classes(self) -> float:
        n, residual, square, joules = np.moveaxis(self._sums, 2, 0)
        count = np.maximum(n, 1)
        error = np.sqrt(np.maximum(square / count - (residual / count) ** 2, 0.0) * count)
        sure = (n >= _LEAST_IN_CLASS) & (abs(residual) > _SURELY * error) & (joules > 0)
        return float((abs(residual) / np.maximum(joules, 1e-9))[sure].max(initial=0.0))

    def _of_stretches(self) -> float:
        n, square, fourth, mean_square, energy = self._stretches.tolist()
        if n < _LEAST_STRETCHES or energy <= 0:
            return 0.0
        # Independent residuals leave this much in the mean of a stretch.
        excess = (square - mean_square / _STRETCH) / n
        error = math.sqrt(max(0.0, fourth / n - (square / n) ** 2) / n)
        return Z95 * math.sqrt(excess) / (energy / n) if excess > _SURELY / 2 * error else 0.0
