"""The likelihood of windows under a timing of the sensor, with steady rates and with varying ones. Pure.

Scores are differences of log likelihoods, doubled: less is likelier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Final

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.design import (
    Design,
    Observed,
    Windows,
    alike,
    by_form,
    clipped_to,
    design_effect,
    totals,
)
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN, shrink
from gpu_profile.join.unmixing.solving.stamps import StampErrors
from gpu_profile.join.unmixing.solving.sums import Sums, rates_of_each
from gpu_profile.join.unmixing.timing.expected import SensorPrior
from gpu_profile.join.unmixing.timing.timings import JITTERS_NS, LONGEST_LAG_NS, shapes
from gpu_profile.join.unmixing.timing.trials import Trial, is_late
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.pauses import yield_to_program
from gpu_profile.join.unmixing.windows.probes import Probe, ProbeKind, choose, groups_of
from gpu_profile.join.unmixing.windows.sensor import FINE_STEPS_NS, GUARD_NS, Sensor, renews_faster, unsteadiness_ns
from gpu_profile.units import NS_PER_S

#: A difference of this share of the variance does not separate two distant timings, up to `Trial.varied` under the best
#: one and this multiple of its error: programs and sensors differ from the model by as much, and no number of windows
#: averages that out.
_DISCREPANCY: Final = 0.002
_LIKE_BEST: Final = 4.0
#: The initial penalty of a sensor with renewals that also has a lag, or a period other than the nominal one. A counter
#: that measures a part of each period has it too.
_STRANGE: Final = 20.0
#: ... and where the counter is known to measure all of the time, it must leave less than this share of the error.
_KNOWN: Final = 0.25
#: ... and that of a window unlike any board's, or of a lag above all boards' known lags (`trials`).
_UNUSUAL: Final = 20.0
UNKNOWN: Final = 2  #: unknowns of a timing: its lag and its phase
_COMPARED: Final = 64  #: two timings are compared at this number of readings
#: Windows times timings that are tried at once, because of the memory they need, and with varying rates.
_AT_ONCE: Final = 4096
_TRIED: Final = 2048
#: A stamp error is only accepted if it lowers the error below this share: chance alone gains a little.
_BETTER: Final = 0.98
#: Work outside all regions makes outliers: windows with residuals above `_FAR` medians, which noise (five standard
#: deviations) does not reach. If they are at most the share `_FEW`, residuals are clipped to `_CLIP` medians (Huber,
#: Annals of Mathematical Statistics 35 (1964), 73), in `_ROUNDS` rounds.
_FEW: Final = 0.25
_FAR: Final = 8.0
_CLIP: Final = 4.0
#: The standard deviation of the logarithm of the ratio of two medians, per window, and the square of a median as a
#: share of the mean square (normal residuals).
_MEDIANS: Final = 1.65
_MEDIAN_SQUARE: Final = 0.455
_ROUNDS: Final = 2
_RIDGE: Final = 1e-12  #: a share of the strongest column that keeps equations solvable if they lack a column


class Likelihood:
    """The evidence of `windows` of one family on timings of its sensor. `lead` is the family's first signal.

    `candidates` are timings that an earlier search could not rule out: further starts. `expected` is the sensor's
    prior. `whole`: a counter of this board is known to measure all of the time. `errors` are the stamp errors for a
    window of 1 ns: they decrease in proportion to its length. Readings are multiples of `step` (0: the driver's unit).
    """

    def __init__(
        self, lead: Signal, windows: Windows, active: ActiveTime, columns: int, most: float,
        *, candidates: Sequence[Sensor] = (), expected: SensorPrior | None = None, errors: StampErrors | None = None,
        whole: bool = False, step: float = 0.0,
    ) -> None:  # fmt: skip
        self.lead = lead
        self.windows = windows
        self.columns, self.most = columns, most
        self._reach_ns = LONGEST_LAG_NS + max(shape.reach_ns for shape in shapes(lead)) + 2 * lead.refresh_ns
        self._pieces = active.tabled(columns)
        self._candidates, self._expected, self._whole = candidates, expected, whole
        #: No reading shows a moment after its stamp, unless stamps of work are late. This is the earliest lag.
        self._earliest_ns = expected.sensor.lag_ns - expected.nearest_ns if expected and expected.stamped else 0
        self._stamp_errors = errors or StampErrors(np.zeros((columns, columns)))
        self._some = windows.ends[:: max(1, len(windows.ends) // _COMPARED)]
        #: By timing: the moments of `_some` readings, moved to the mean age of their contents.
        self._middle_moments: dict[Sensor, Ints] = {}
        self._alone = windows._replace(masses=windows.masses[:, :1])
        self._unsteadiness_ns = unsteadiness_ns(windows.ends)
        # The catalogue's period is only nominal: the period in the readings takes precedence.
        self._faster = renews_faster(lead, windows.ends)
        if self._faster:
            # A reading may be as old as the sensor's period, which is at most the time between two readings.
            self._unsteadiness_ns += int(np.median(windows.ends - windows.starts)) // 4
        #: The least mean squared error: the finest step's effect on a window is no evidence against a timing.
        means = self._alone.masses[:, 0] * NS_PER_S / (windows.ends - windows.starts)
        unsure = float(FINE_STEPS_NS[-1] / np.maximum(windows.ends - windows.starts, 1).mean())
        self._least = max(1e-9, unsure**2) * float((means**2).mean()) + 1e-30
        self._variance, self._mean = float(means.var()), float(means.mean())
        self._discrepancy = _DISCREPANCY * self._variance
        #: The variance that rounding adds to a reading: a smaller error is no evidence.
        self._rounding = 0.0 if lead.kind is Kind.COUNTER else (step or lead.base(1)) ** 2 / 12
        self._limit = math.inf  #: residuals are clipped to this limit
        #: Cached rates by timing and limit: they are requested repeatedly.
        self._steady: dict[tuple[Sensor, float], Floats] = {}

    def _designs(self, windows: Windows, *sensors: Sensor) -> Iterator[Design]:
        """The equations of the windows under sensors of one form, in chunks."""
        return (Design(part, *sensors, counts=self.lead.kind is Kind.COUNTER) for part in windows.parts())

    def _observed(self, windows: Windows, *sensors: Sensor) -> list[Observed]:
        """Windows under sensors of one form, with residuals from steady rates clipped to the limit."""
        designs = list(self._designs(windows, *sensors))
        some = [Observed(one, one.shares(self._pieces, self.columns), one.values[:, 0]) for one in designs]
        for _ in range(_ROUNDS if self._limit < math.inf else 0):
            rates = rates_of_each(totals(some), self.most)
            some = [one.clipped(one.predicted(rates), self._limit) for one in some]
        return some

    def _fitted(self, sensors: Sequence[Sensor]) -> list[Sums]:
        """The normal equations of the windows under each of some sensors of one form."""
        return totals(self._observed(self._alone, *sensors))

    def _clip_outliers(self, best: Sensor, sensors: Sequence[Sensor]) -> bool:
        """Whether a few outliers determined the choice of `best`. If so, residuals are clipped from here on.

        They did if the median residual of another timing is smaller, and either `best` has outliers too, or the median
        is certainly smaller: under a wrong timing, outliers may hide among the other residuals. A median that errors of
        stamps explain is not larger.
        """
        median, outliers = min(map(self._median_residual, sensors))
        if 0 < outliers <= _FEW:
            (own, outliers), rates = self._median_residual(best), self.rates(best)
            explained = self._explained(best, rates) + self._hidden(best)
            own = math.sqrt(max(median**2, own**2 - _MEDIAN_SQUARE * explained))
            n, certain, gain = len(self.windows.ends), CERTAIN * self._repeated(best), math.log(own / median)
            if gain > _MEDIANS * math.sqrt(certain / n) or (0 < outliers <= _FEW and n * gain > certain):
                self._limit = _CLIP * median
        return self._limit < math.inf

    def _median_residual(self, sensor: Sensor) -> tuple[float, float]:
        """The median absolute residual of the windows under a timing, and the share of outliers, which no rates fit.

        Infinite for a timing that leaves out most windows: few windows fit any timing. At least the effect of the
        search's finest step.
        """
        some = self._observed(self._alone, sensor)
        shares, values = (np.concatenate([observed[i] for observed in some]) for i in (1, 2))
        if 2 * len(values) < len(self.windows.ends):
            return math.inf, 0.0
        # Columns are normalised, so that a column that was hardly ever active is fitted as well as others.
        shares = shares / np.maximum(np.sqrt((shares**2).sum(axis=0)), 1e-300)
        near, ridge = np.ones(len(values)), _RIDGE * np.eye(shares.shape[1])
        least = math.sqrt(max(self._least, _MEDIAN_SQUARE * self._rounding))
        for _ in range(_ROUNDS + 1):
            fitted = shares * near[:, None]
            residuals = np.abs(values - shares @ np.linalg.solve(fitted.T @ shares + ridge, fitted.T @ values))
            median = max(float(np.median(residuals)), least)
            near = (residuals <= _FAR * median).astype(np.float64)
        return median, 1 - float(near.mean())

    def residual(self, sensor: Sensor) -> float:
        """The mean squared error under a timing."""
        return self.residuals([sensor])[0]

    def residuals(self, sensors: Sequence[Sensor]) -> list[float]:
        """The mean squared error under each timing."""
        most, n = max(1, _AT_ONCE // max(1, len(self.windows.ends))), len(self.windows.ends)
        left: dict[Sensor, float] = {}
        for some in by_form(sensors):
            for at in range(0, len(some), most):
                part = some[at : at + most]
                fitted = self._fitted(part)
                rates = rates_of_each(fitted, self.most)
                left |= zip(part, map(self._left, fitted, rates, repeat(n)), strict=True)
                self._steady |= zip(zip(part, repeat(self._limit)), rates, strict=True)
        return [left[sensor] for sensor in sensors]

    def _unsettled(self, sensors: Sequence[Sensor]) -> list[Sensor]:
        """Each sensor with the stamp error that clearly lowers its error; unchanged if none does."""
        jitters = [jitter for jitter in JITTERS_NS if jitter <= 2 * self._unsteadiness_ns + JITTERS_NS[0]]
        tried = [[] if s.in_step else [s._replace(jitter_ns=jitter) for jitter in jitters] for s in sensors]
        every = [*sensors, *(each for some in tried for each in some)]
        left = dict(zip(every, self.residuals(every), strict=True))
        best = [min(some, key=left.__getitem__, default=sensor) for sensor, some in zip(sensors, tried, strict=True)]
        return [b if left[b] < left[s] * _BETTER else s for s, b in zip(sensors, best, strict=True)]

    def _left(self, fitted: Sums, rates: Floats, n: int) -> float:
        """The mean squared error of `n` windows under these rates. Windows left out are included."""
        left = fitted.residual(rates) if fitted.n else 0.0
        return self._least + (left * fitted.alike + self._out(fitted, rates, n)) / n

    def _out(self, fitted: Sums, rates: Floats, n: int) -> float:
        """The sum of squares of the windows, of `n`, that are not fitted. The signal's mean is the only prediction of
        those that are not unclear. They contradict the timing if a counter grew, and so does an unclear window beyond
        all mixtures of the rates."""
        unclear, contradicting, *_ = fitted.left_out
        square = (n - fitted.n - unclear) * self._variance + contradicting * self._mean**2
        return square + min(fitted.beyond(rates), self._limit) ** 2

    def rates(self, sensor: Sensor) -> Floats:
        """The rates of the first signal under a timing."""
        rates = self._steady.get((sensor, self._limit))
        if rates is None:
            rates = self._steady[sensor, self._limit] = self._fitted([sensor])[0].rates(self.most)
        return rates

    def _score(self, sensor: Sensor, left: float) -> float:
        """Twice the loss of log likelihood (natural logarithm) relative to a residual of 1.

        An unusual timing must be better by its penalty.
        """
        return len(self.windows.ends) * math.log(left) + self._against(sensor)

    def _rank(self, tried: tuple[Sensor, float]) -> float:
        """The score of a timing and its error."""
        return self._score(*tried)

    def _against(self, sensor: Sensor) -> float:
        """The initial penalty of a timing, by the behaviour of such sensors or by the prior of this one."""
        if self._expected is not None and self._expected.stamped:
            return min(_STRANGE + _UNUSUAL, self._expected.off(sensor.lag_ns) ** 2)
        if self._expected is not None:
            return 0.0 if self._expected.admits(sensor, self._some) else _STRANGE + _UNUSUAL
        renews = bool(self.lead.refresh_ns) and not self._faster
        other_period = renews and sensor.period_ns != self.lead.refresh_ns
        extra_lag = renews and sensor.lag_ns != 0 and not sensor.in_step
        unheard = sensor.window_ns > 0 and not sensor.usual
        # A reading of a moment after its stamp: only inaccurate stamps can show that.
        early = not sensor.in_step and sensor.lag_ns < -GUARD_NS
        strange = (other_period or extra_lag) + self._in_parts(sensor)
        whole = self._whole and self.lead.kind is Kind.COUNTER
        unknown = len(self.windows.ends) * math.log(1 / _KNOWN) if whole and self._in_parts(sensor) else 0.0
        return _STRANGE * strange + _UNUSUAL * (unheard + is_late(sensor) + early) + unknown

    def _explained(self, sensor: Sensor, rates: Floats) -> float:
        """The largest mean squared error that stamp errors cause under a timing with these rates."""
        return self._stamp_errors.by_stamps(rates) / self._length_ns(sensor)

    def _by_pauses(self, sensor: Sensor, rates: Floats, *, steady: bool = True) -> float:
        """The mean squared error by executions without a mark under a timing with these rates."""
        return self._stamp_errors.by_pauses(rates, steady=steady) / self._length_ns(sensor)

    def _hidden(self, sensor: Sensor) -> float:
        """The mean squared error by the possible executions without a mark under a timing."""
        rates = self.rates(sensor)
        return self._stamp_errors.possible(rates) * self._by_pauses(sensor, rates)

    def _unmarked(self, best: Sensor, rates: Floats, left: float, *, steady: bool = True) -> float:
        """The share of executions without a mark that the best timing, with these rates and this error, allows."""
        by_pauses = self._by_pauses(best, rates, steady=steady)
        return min(self._stamp_errors.possible(rates), left / max(by_pauses, 1e-300))

    def _length_ns(self, sensor: Sensor) -> float:
        return max(1.0, sensor.length_ns or float((self.windows.ends - self.windows.starts).mean()))

    def _in_parts(self, sensor: Sensor) -> bool:
        """Whether a counter counts a part of each period for all of it, or utilisation is of a part."""
        part = self.lead.kind is Kind.COUNTER or (self.lead is UTILIZATION and sensor.window_ns < self.lead.refresh_ns)
        return part and sensor.window_ns > 0

    def _excused(self, one: tuple[Sensor, Floats], best: tuple[Sensor, Floats], left: float) -> float:
        """The mean squared error by stamp errors under a timing with its rates, beyond that under the best one.

        The best timing's error `left` contains the latter, so it bounds stamp errors.

        In a loop, a part of a counter's period gives the readings of all of it with smaller differences between rates,
        and a smaller effect of stamp errors. Then the largest errors excuse, otherwise only the observed ones.
        """
        largest = self._in_parts(best[0]) and not self._in_parts(one[0])
        share = 1.0 if largest else self._stamp_errors.least / max(self._stamp_errors.allowed, 1e-300)
        by_stamps, included = self._explained(*one), self._explained(*best)
        return max(0.0, min(1.0, share, left / max(included, 1e-300)) * (by_stamps - included))

    def _beside(self, sensor: Sensor, left: float, best: tuple[Sensor, float], allowed: float = 0.0) -> float:
        """The score of a timing with error `left` relative to `best`, a timing with its error. `allowed` and a larger
        effect of stamp errors are excused."""
        rates, of_best = self.rates(sensor), self.rates(best[0])
        by_pauses = self._unmarked(best[0], of_best, best[1]) * self._by_pauses(sensor, rates)
        by_stamps = self._excused((sensor, rates), (best[0], of_best), best[1])
        excused = left - min(allowed, _LIKE_BEST * best[1]) - by_stamps - by_pauses
        return self._score(sensor, min(left, max(best[1], excused - max(0.0, self._rounding - best[1]))))

    def _beside_if_rates_vary(self, one: Trial, best: Trial, allowed: float = 0.0) -> float:
        """The same for timings with varying rates."""
        by_stamps = self._excused((one.sensor, one.steady), (best.sensor, best.steady), best.noise)
        share = self._unmarked(best.sensor, best.steady, best.noise, steady=False)
        by_pauses = share * self._by_pauses(one.sensor, one.steady, steady=False)
        return one.beside(best, allowed, max(0.0, self._rounding - best.noise) + by_stamps + by_pauses)

    def _errors(self, sensor: Sensor) -> tuple[Floats, Ints]:
        """The windows' residuals from steady rates under a timing, and the group of similar windows of each."""
        some = self._observed(self._alone, sensor.placed(self.windows.ends))
        rates = totals(some)[0].rates(self.most)
        errors = [observed.values - observed.shares @ rates for observed in some]
        patterns = [observed.design.patterns(self._pieces, self.columns) for observed in some]
        return np.concatenate(errors), alike(np.concatenate(patterns))

    def _repeated(self, sensor: Sensor) -> float:
        """The design effect of the windows under a timing that is nearly right."""
        return design_effect(*self._errors(sensor), self.columns + UNKNOWN)

    def _trial(self, sensor: Sensor, most: int | None = None) -> Trial:
        """A timing's trial with varying rates, by all windows or the newest `most`."""
        return self._trials([sensor], most)[0]

    def _trials(self, sensors: Sequence[Sensor], most: int | None = None) -> list[Trial]:
        """Trials of some timings with varying rates, by all windows or the newest `most`."""
        windows = self._alone if most is None else self._alone.where(np.arange(-len(self.windows.ends), 0) >= -most)
        together, trials = max(1, _TRIED // max(1, len(windows.ends))), dict[Sensor, Trial]()
        for some in by_form(sensors, lambda sensor: sensor.window_ns):
            for at in range(0, len(some), together):
                part = some[at : at + together]
                trials |= zip(part, self._tried(part, windows), strict=True)
        return [trials[sensor] for sensor in sensors]

    def _tried(self, sensors: Sequence[Sensor], windows: Windows) -> Iterator[Trial]:
        """Try timings of one form, with windows of one length, at once."""
        every = choose(self._active_s, self._lengths(sensors[0]), window=sensors[0].window_ns > 0)
        # An effect that fades after an execution's start resembles a wrong lag, so timings are compared without it.
        chosen = tuple(probe for probe in every if probe.kind not in {ProbeKind.START, ProbeKind.TAIL})
        groups, lag = groups_of(chosen), chosen.index(Probe(ProbeKind.LAG))
        some = self._observed(windows, *sensors)
        of_sensors, n = totals(some), len(windows.ends)
        steady, origin_ns = np.array(rates_of_each(of_sensors, self.most)), int(windows.starts[0])
        probes = [one.design.probes(self._pieces, chosen, one.shares, steady, origin_ns) for one in some]
        for sensor, fitted, rates, rows in zip(
            sensors, of_sensors, steady, zip(*(one.design.rows for one in some), strict=True), strict=True
        ):
            yield_to_program()
            chunks = [
                (one.shares[mine], one.values[mine], each[mine], one.design.values[mine, 0])
                for one, each, mine in zip(some, probes, rows, strict=True)
            ]
            for again in (self._limit < math.inf, False):
                equations = Equations(chosen, self.columns)
                for shares, values, each, _ in chunks:
                    equations.add(shares, values[:, None], each)
                square = fitted.alike * float(equations.square[0]) + self._out(fitted, rates, n)
                gram, moment = fitted.alike * equations.gram, fitted.alike * equations.moment[:, 0]
                sums = NormalEquations(gram, moment, square, n, equations.mean(0))
                fit = shrink(sums, groups, least=self._least)
                if not again:
                    break
                chunks = [
                    (shares, clipped_to(whole, np.hstack((each, shares)) @ fit.solution, self._limit), each, whole)
                    for shares, _, each, whole in chunks
                ]
            yield Trial(
                sensor=sensor,
                n=n,
                probes=len(chosen),
                score=fit.evidence + self._against(sensor),
                left=self._left(fitted, rates, n),
                noise=fit.noise,
                steady=rates,
                lag_ms=float(fit.solution[lag]),
            )

    def _lengths(self, sensor: Sensor) -> Floats:
        """Typical lengths of executions by column, as shares of a reading's averaging time."""
        return self._typical_ns / self._length_ns(sensor)

    @cached_property
    def _typical_ns(self) -> Floats:
        return self._pieces.typical_ns(self.columns)

    @cached_property
    def _active_s(self) -> Floats:
        edges = np.array([self.windows.starts[0], self.windows.ends[-1]])
        passed = np.diff(self._pieces.until(edges, self.columns))[:, 0]
        passed[0] = max(0.0, float(edges[1] - edges[0] - passed[1:].sum()))
        return passed / NS_PER_S
