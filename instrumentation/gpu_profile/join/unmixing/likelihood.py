"""How likely windows are under a timing of the sensor, if rates are steady, and if they vary. Pure.

Scores are differences of log likelihoods, doubled: the less, the likelier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.active_time import ActiveTime, SampledTime
from gpu_profile.join.unmixing.design import (
    Design,
    Observed,
    Windows,
    alike,
    by_form,
    clipped_to,
    design_effect,
    totals,
)
from gpu_profile.join.unmixing.equations import Equations, Sums, rates_of_each
from gpu_profile.join.unmixing.expected import SensorPrior
from gpu_profile.join.unmixing.pauses import give_way
from gpu_profile.join.unmixing.probes import Probe, ProbeKind, choose, groups_of
from gpu_profile.join.unmixing.sensor import FINE_STEPS_NS, GUARD_NS, Sensor, renews_faster, unsteadiness_ns
from gpu_profile.join.unmixing.shrinkage import CERTAIN, shrink
from gpu_profile.join.unmixing.stamps import StampErrors
from gpu_profile.join.unmixing.timings import LONGEST_LAG_NS, shapes
from gpu_profile.units import NS_PER_S

#: More pieces of active time than this are searched by what is active of each half millisecond, which is less work and
#: off by an eighth of one at a window's edges at most; unless they are few for so many cells, or cells are too many.
_MANY_PIECES: Final = 4000
_CELL_NS: Final = 500_000
_CELLS_PER_PIECE: Final = 3
_MOST_CELLS: Final = 1_000_000
#: A timing is a rival of the best one if windows that differ do not rule it out, with what it leaves more not counted
#: if it is no more than this share of what varying rates explain: the ways in which they may vary are an approximation,
#: and no number of windows evens out its error.
_MISFIT: Final = 0.05
#: ... and than this many times what they explain under the best timing: where rates are steady, there is nothing to
#: approximate.
_LIKE_BEST: Final = 4.0
#: Two timings that are not neighbours are not told apart by this share of the variance: programs and sensors differ
#: from the model by as much, and no number of windows evens that out.
_DISCREPANCY: Final = 0.002
#: A sensor that renews itself, but with a lag of its own besides, or with another period than the nominal one, has this
#: much against it to begin with; so has a counter that measures a part of the time.
_STRANGE: Final = 20.0
#: ... and so has a window that no board is known to have, or a lag that is longer than any board's known one.
_UNUSUAL: Final = 20.0
_LATE_NS: Final = 200_000_000
#: Of a timing, a lag and a phase are unknown.
UNKNOWN: Final = 2
#: Moments of so many readings stand for all.
_COMPARED: Final = 64
#: Windows times timings that are tried at once: more would take room.
_AT_ONCE: Final = 4096
#: ... and of those whose rates may vary, which takes more.
_TRIED: Final = 2048
#: Work outside of all regions makes outliers: windows whose residual is above this many times the median, which noise
#: (five standard deviations) does not reach. Where they are no more than this share of the windows, residuals are
#: clipped to so many times the median (Huber, Annals of Mathematical Statistics 35 (1964), 73), in so many rounds.
_FEW: Final = 0.25
_FAR: Final = 8.0
_CLIP: Final = 4.0
#: The standard deviation of the logarithm of two medians' ratio, of one window each (normal residuals).
_MEDIANS: Final = 1.65
_ROUNDS: Final = 2
#: Keeps equations solvable that have nothing to say of some column, as a share of the strongest.
_RIDGE: Final = 1e-12


class Trial(NamedTuple):
    """What `n` windows say of a timing if rates may vary as `probes` ways allow: the score, the mean squared errors of
    steady rates and of varying ones, what of them errors of stamps may explain, and by how much the lag is off."""

    sensor: Sensor
    n: int
    probes: int
    score: float
    left: float
    noise: float
    explained: float
    lag_ms: float

    def beside(self, best: Trial, allowed: float = 0.0) -> float:
        """The score beside the best one's, if the ways in which rates may vary are held for an approximation, and so
        much more of the mean squared error is allowed."""
        misfit = min(_MISFIT * (self.left - self.noise), _LIKE_BEST * (best.left - best.noise))
        approximate = max(best.noise, self.noise - misfit - allowed)
        return self.score - self.n * max(0.0, math.log(self.noise / approximate))


def is_late(sensor: Sensor) -> bool:
    """Whether a reading is older than any board's."""
    return sensor.lag_ns + sensor.period_ns // 2 > _LATE_NS


class Best(NamedTuple):
    """The best score, whether its timing is late, and the design effect of the windows."""

    score: float
    late: bool
    effect: float

    def near(self, score: float, *, late: bool) -> bool:
        """Whether another score is not certainly worse. Windows that repeat each other weigh less; but in a loop that
        they repeat with, there is always a lag of one more turn that fits as well, and no board has such a lag."""
        return score - self.score < (CERTAIN if late and not self.late else CERTAIN * self.effect)


class Likelihood:
    """What `windows` of one family, whose first signal is `lead`, say of timings.

    `known` are timings that an earlier search could not rule out: they are followed too. `expected` is what was known
    of the sensor before. `errors` are those of stamps, for a window of 1 ns; of a longer one, they are as much smaller.
    """

    def __init__(
        self, lead: Signal, windows: Windows, active: ActiveTime, columns: int, most: float,
        *, known: Sequence[Sensor] = (), expected: SensorPrior | None = None, errors: StampErrors | None = None,
    ) -> None:  # fmt: skip
        self.lead = lead
        self.windows = windows
        self.columns = columns
        self.most = most
        self._reach_ns = LONGEST_LAG_NS + max(shape.reach_ns for shape in shapes(lead)) + 2 * lead.refresh_ns
        self._pieces = active.tabled(columns)
        self._active = self._coarse()
        self._known, self._expected = known, expected
        #: A reading is of no moment after its stamp, unless stamps of work are late: by no more than this.
        self._earliest_ns = expected.sensor.lag_ns - expected.nearest_ns if expected and expected.stamped else 0
        self._stamp_errors = errors or StampErrors(np.zeros((columns, columns)))
        self._some = windows.ends[:: max(1, len(windows.ends) // _COMPARED)]
        #: The moments of those under timings that were asked for, moved to the mean age of what they are of.
        self._middle_moments: dict[Sensor, Ints] = {}
        self._alone = windows._replace(masses=windows.masses[:, :1])
        self._unsteadiness_ns = unsteadiness_ns(windows.ends)
        #: The catalogue's period is only nominal: what the readings show goes first.
        self._faster = renews_faster(lead, windows.ends)
        if self._faster:
            # A reading may be as old as the sensor's period, which is no longer than what lies between two.
            self._unsteadiness_ns += int(np.median(windows.ends - windows.starts)) // 4
        #: A timing is known to a fine step: what that much does to a window speaks against none.
        means = self._alone.masses[:, 0] * NS_PER_S / (windows.ends - windows.starts)
        unsure = float(FINE_STEPS_NS[-1] / np.maximum(windows.ends - windows.starts, 1).mean())
        self._least = max(1e-9, unsure**2) * float((means**2).mean()) + 1e-30
        self._variance, self._mean = float(means.var()), float(means.mean())
        self._discrepancy = _DISCREPANCY * self._variance
        #: Residuals are clipped to this.
        self._limit = math.inf
        #: The rates that were found under a timing, and with which limit: they are asked for again and again.
        self._steady: dict[tuple[Sensor, float], Floats] = {}

    def _coarse(self) -> ActiveTime | SampledTime:
        """Active time as it is searched."""
        active = self._pieces
        if len(active.starts) <= _MANY_PIECES or not len(self.windows.ends):
            return active
        start, end = int(self.windows.starts[0]) - self._reach_ns, int(self.windows.ends[-1]) + self._reach_ns
        cells = (end - start) // _CELL_NS
        if cells > _CELLS_PER_PIECE * len(active.starts) or cells * self.columns > _MOST_CELLS:
            return active
        return active.sampled(start, end, _CELL_NS, self.columns)

    def _designs(self, windows: Windows, *sensors: Sensor) -> Iterator[Design]:
        """The equations of the windows under sensors of one form, some at a time."""
        return (Design(part, *sensors, counts=self.lead.kind is Kind.COUNTER) for part in windows.parts())

    def _observed(self, windows: Windows, active: ActiveTime | SampledTime, *sensors: Sensor) -> list[Observed]:
        """Windows under sensors of one form, with the residuals from steady rates clipped to the limit."""
        designs = list(self._designs(windows, *sensors))
        some = [Observed(one, one.shares(active, self.columns), one.values[:, 0]) for one in designs]
        for _ in range(_ROUNDS if self._limit < math.inf else 0):
            rates = rates_of_each(totals(some), self.most)
            some = [one.clipped(one.predicted(rates), self._limit) for one in some]
        return some

    def _fitted(self, sensors: Sequence[Sensor]) -> list[Sums]:
        """What the windows say of sensors of one form."""
        return totals(self._observed(self._alone, self._active, *sensors))

    def _clip_outliers(self, best: Sensor, sensors: Sequence[Sensor]) -> bool:
        """Whether few windows are outliers that chose `best`; if so, residuals are clipped from here on.

        They chose it if the median residual of another timing is smaller, and either `best` has outliers too, or the
        median is certainly smaller: under a wrong timing, outliers may be lost among the other residuals.
        """
        median, outliers = min(map(self._median_residual, sensors))
        if 0 < outliers <= _FEW:
            own, outliers = self._median_residual(best)
            n, certain, gain = len(self.windows.ends), CERTAIN * self._repeated(best), math.log(own / median)
            if gain > _MEDIANS * math.sqrt(certain / n) or (0 < outliers <= _FEW and n * gain > certain):
                self._limit = _CLIP * median
        return self._limit < math.inf

    def _median_residual(self, sensor: Sensor) -> tuple[float, float]:
        """The median absolute residual of the windows under a timing, and the share of outliers, which no rates fit.

        Infinite for a timing that leaves most windows out: few windows fit any timing. No less than what the finest
        step of the search leaves.
        """
        some = self._observed(self._alone, self._active, sensor)
        shares, values = (np.concatenate([observed[i] for observed in some]) for i in (1, 2))
        if 2 * len(values) < len(self.windows.ends):
            return math.inf, 0.0
        # Columns of one size: one that was hardly ever active is fitted as well as others.
        shares = shares / np.maximum(np.sqrt((shares**2).sum(axis=0)), 1e-300)
        near, ridge = np.ones(len(values)), _RIDGE * np.eye(shares.shape[1])
        for _ in range(_ROUNDS + 1):
            fitted = shares * near[:, None]
            rates = np.linalg.solve(fitted.T @ shares + ridge, fitted.T @ values)
            residuals = np.abs(values - shares @ rates)
            median = max(float(np.median(residuals)), math.sqrt(self._least))
            near = (residuals <= _FAR * median).astype(np.float64)
        return median, 1 - float(near.mean())

    def residual(self, sensor: Sensor) -> float:
        """Mean squared error that a timing leaves."""
        return self.residuals([sensor])[0]

    def residuals(self, sensors: Sequence[Sensor]) -> list[float]:
        """Mean squared error that each timing leaves."""
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

    def _left(self, fitted: Sums, rates: Floats, n: int) -> float:
        """The mean squared error of `n` windows that rates leave, those included that were left out."""
        left = fitted.residual(rates) if fitted.n else 0.0
        return self._least + (left * fitted.alike + self._out(fitted, n)) / n

    def _out(self, fitted: Sums, n: int) -> float:
        """The sum of squares of those of `n` windows that are neither fitted nor unclear: they are no better than their
        mean, and contradict the timing where a counter grew."""
        return (n - fitted.n - fitted.unclear) * self._variance + fitted.contradicting * self._mean**2

    def rates(self, sensor: Sensor) -> Floats:
        """The rates of the first signal under a timing."""
        found = self._steady.get((sensor, self._limit))
        if found is None:
            found = self._steady[sensor, self._limit] = self._fitted([sensor])[0].rates(self.most)
        return found

    def _score(self, sensor: Sensor, left: float) -> float:
        """Twice how much less likely (natural logarithm) the windows are than with a residual of 1.

        A timing that is not how such sensors work has to be that much better.
        """
        return len(self.windows.ends) * math.log(left) + self._against(sensor)

    def _against(self, sensor: Sensor) -> float:
        """What is against a timing to begin with: how such sensors work, or how this one does."""
        if self._expected is not None and self._expected.stamped:
            return min(_STRANGE + _UNUSUAL, self._expected.off(sensor.lag_ns) ** 2)
        if self._expected is not None:
            return 0.0 if self._expected.admits(sensor, self._some) else _STRANGE + _UNUSUAL
        renews = bool(self.lead.refresh_ns) and not self._faster
        other_period = renews and sensor.period_ns != self.lead.refresh_ns
        extra_lag = renews and sensor.lag_ns != 0 and not sensor.in_step
        unheard = sensor.window_ns > 0 and not sensor.usual
        # A reading that is of a moment after its stamp: only stamps that are off can show that.
        early = not sensor.in_step and sensor.lag_ns < -GUARD_NS
        strange = (other_period or extra_lag) + self._in_parts(sensor)
        return _STRANGE * strange + _UNUSUAL * (unheard + is_late(sensor) + early)

    def _explained(self, sensor: Sensor, rates: Floats) -> float:
        """The mean squared error that errors of stamps make under a timing at most, if the rates are these."""
        length_ns = sensor.length_ns or float((self.windows.ends - self.windows.starts).mean())
        most = self._stamp_errors.most * self._stamp_errors.allowed
        return float(rates @ most @ rates) / max(1.0, length_ns)

    def _in_parts(self, sensor: Sensor) -> bool:
        """Whether a counter takes a part of each period for all of it."""
        return self.lead.kind is Kind.COUNTER and sensor.window_ns > 0

    def _excused(self, sensor: Sensor, best: Sensor) -> float:
        """The share of that which a timing may leave more than the best one.

        In a loop, a part of a counter's period shows what all of it shows with smaller differences between the rates,
        and makes less of errors of stamps: of the largest ones, if need be. Else, of those that executions show.
        """
        return (
            1.0
            if self._in_parts(best) and not self._in_parts(sensor)
            else min(1.0, self._stamp_errors.least / max(self._stamp_errors.allowed, 1e-300))
        )

    def _beside(self, sensor: Sensor, left: float, best: tuple[Sensor, float], allowed: float = 0.0) -> float:
        """The score of a timing that leaves `left`, beside the best one and what that leaves, if so much more is
        allowed besides what errors of stamps excuse."""
        excused = left - allowed - self._excused(sensor, best[0]) * self._explained(sensor, self.rates(sensor))
        return self._score(sensor, min(left, max(best[1], excused)))

    def _beside_if_rates_vary(self, one: Trial, best: Trial, allowed: float = 0.0) -> float:
        """The same of timings whose rates may vary."""
        return one.beside(best, allowed + self._excused(one.sensor, best.sensor) * one.explained)

    def _errors(self, sensor: Sensor) -> tuple[Floats, Ints]:
        """What steady rates leave of each window under a timing, and the group of each of windows that are alike."""
        some = self._observed(self._alone, self._active, sensor.placed(self.windows.ends))
        rates = totals(some)[0].rates(self.most)
        errors = [observed.values - observed.shares @ rates for observed in some]
        patterns = [observed.design.patterns(self._active, self.columns) for observed in some]
        return np.concatenate(errors), alike(np.concatenate(patterns))

    def _repeated(self, sensor: Sensor) -> float:
        """The design effect of the windows, if this timing is nearly right."""
        return design_effect(*self._errors(sensor), self.columns + UNKNOWN)

    def _trial(self, sensor: Sensor, most: int | None = None) -> Trial:
        """What is known under a timing if rates may vary, by all windows or the newest."""
        return self._trials([sensor], most)[0]

    def _trials(self, sensors: Sequence[Sensor], most: int | None = None) -> list[Trial]:
        """What is known under each of some timings if rates may vary, by all windows or the newest."""
        windows = self._alone if most is None else self._alone.where(np.arange(-len(self.windows.ends), 0) >= -most)
        together, found = max(1, _TRIED // max(1, len(windows.ends))), dict[Sensor, Trial]()
        for some in by_form(sensors, lambda sensor: sensor.window_ns):
            for at in range(0, len(some), together):
                part = some[at : at + together]
                found |= zip(part, self._tried(part, windows), strict=True)
        return [found[sensor] for sensor in sensors]

    def _tried(self, sensors: Sequence[Sensor], windows: Windows) -> Iterator[Trial]:
        """Try timings of one form, with windows of one length, at once."""
        every = choose(self._active_s, self._lengths(sensors[0]), window=sensors[0].window_ns > 0)
        # What begins an execution and fades is in part what a wrong lag shows: timings are told apart without it.
        chosen = tuple(probe for probe in every if probe.kind not in {ProbeKind.START, ProbeKind.TAIL})
        groups, lag = groups_of(chosen), chosen.index(Probe(ProbeKind.LAG))
        some = self._observed(windows, self._pieces, *sensors)
        sums, n = totals(some), len(windows.ends)
        steady, origin_ns = np.array(rates_of_each(sums, self.most)), int(windows.starts[0])
        probes = [one.design.probes(self._pieces, chosen, one.shares, steady, origin_ns) for one in some]
        for sensor, fitted, rates, rows in zip(
            sensors, sums, steady, zip(*(one.design.rows for one in some), strict=True), strict=True
        ):
            give_way()
            told = [
                (one.shares[mine], one.values[mine], each[mine], one.design.values[mine, 0])
                for one, each, mine in zip(some, probes, rows, strict=True)
            ]
            for again in (self._limit < math.inf, False):
                equations = Equations(chosen, self.columns)
                for shares, values, each, _ in told:
                    equations.add(shares, values[:, None], each)
                square = fitted.alike * float(equations.square[0]) + self._out(fitted, n)
                mean = abs(float(equations.sum[0])) / max(1, equations.n)
                gram, moment = fitted.alike * equations.gram, fitted.alike * equations.moment[:, 0]
                found = shrink(gram, moment, square, n, groups, mean, least=self._least)
                if not again:
                    break
                told = [
                    (shares, clipped_to(whole, np.hstack((each, shares)) @ found.solution, self._limit), each, whole)
                    for shares, _, each, whole in told
                ]
            yield Trial(
                sensor=sensor,
                n=n,
                probes=len(chosen),
                score=found.evidence + self._against(sensor),
                left=self._left(fitted, rates, n),
                noise=found.noise,
                explained=self._explained(sensor, rates),
                lag_ms=float(found.solution[lag]),
            )

    def _lengths(self, sensor: Sensor) -> Floats:
        """How long executions last, as shares of what a reading averages over."""
        return self._typical_ns / (sensor.length_ns or float((self.windows.ends - self.windows.starts).mean()))

    @cached_property
    def _typical_ns(self) -> Floats:
        return self._pieces.typical_ns(self.columns)

    @cached_property
    def _active_s(self) -> Floats:
        edges = np.array([self.windows.starts[0], self.windows.ends[-1]])
        passed = np.diff(self._pieces.until(edges, self.columns))[:, 0]
        passed[0] = max(0.0, float(edges[1] - edges[0] - passed[1:].sum()))
        return passed / NS_PER_S
