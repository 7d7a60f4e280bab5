"""Looking for a sensor's timing in its windows, and the equations that follow from one. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.active_time import ActiveTime, SampledTime
from gpu_profile.join.unmixing.design import Design, Windows
from gpu_profile.join.unmixing.equations import Equations, Sums
from gpu_profile.join.unmixing.expected import Expected
from gpu_profile.join.unmixing.probes import Kind as Probing
from gpu_profile.join.unmixing.probes import Probe, choose, groups_of
from gpu_profile.join.unmixing.scan import Scan
from gpu_profile.join.unmixing.sensor import (
    FINE_STEPS_NS,
    GUARD_NS,
    IN_STEP,
    NEAR_STEP,
    Sensor,
    in_step,
    renews_faster,
    unsteadiness_ns,
)
from gpu_profile.join.unmixing.shrinkage import Posterior, shrink
from gpu_profile.join.unmixing.timings import (
    JITTERS_NS,
    LONGEST_LAG_NS,
    STEP_NS,
    dividing,
    drifting,
    following,
    lagging,
    plain,
    renewing,
    shapes,
    stepping,
    stretching,
)
from gpu_profile.join.unmixing.unmix import WINDOWS_PER_RATE
from gpu_profile.units import NS_PER_S

#: The coarse grid is tried on the newest windows alone.
_COARSE: Final = 500
#: More pieces of active time than this are searched by what is active of each half millisecond, which is less work and
#: off by an eighth of one at a window's edges at most; unless they are few for so many cells, or cells are too many.
_MANY_PIECES: Final = 4000
_CELL_NS: Final = 500_000
_CELLS_PER_PIECE: Final = 3
_MOST_CELLS: Final = 1_000_000
#: So many of the best lags are tried with renewals too.
_NEAR: Final = 3
#: The newest windows, in which periods other than the nominal one are tried: more would need a finer grid of periods.
_PERIODS: Final = 150
#: So many points of the coarse grid are followed to their minimum.
_STARTS: Final = 8
#: Scores are differences of log likelihoods, doubled. A timing is a rival of the best one if it is less than this away,
#: not followed to its minimum if it is further away than this, and not looked at more closely than on the coarse grid,
#: where a neighbour's score is all that is known, beyond this.
_CERTAIN: Final = 20.0
#: ... or, where the windows call for rates that vary, if what it leaves more is no more than these shares of what
#: varying rates explain and of what they leave: the ways in which rates may vary are an approximation, and no number of
#: windows evens out its error.
_MISFIT: Final = (0.05, 0.2)
_HOPELESS: Final = 60.0
_FAR_OFF: Final = 200.0
#: A sensor that renews itself, but with a lag of its own besides, has this much against it to begin with.
_STRANGE: Final = 20.0
#: ... and so has a window that no board is known to have, or a lag that is longer than any board's known one.
_UNUSUAL: Final = 20.0
_LATE_NS: Final = 200_000_000
#: Timings this near are looked at more closely, in such steps: where rates vary by this many windows, each corrected so
#: often.
_RANGE_NS: Final = 60_000_000
_STEP_NS: Final = 2_500_000
_SOME: Final = 300
_CLOSER_NS: Final = (1_250_000, 600_000, 300_000, 150_000)
_CORRECTIONS: Final = 3
#: Two timings are neighbours if their windows are this much alike, and the moments of most readings of so many.
_ALIKE: Final = 0.2
_COMPARED: Final = 64
#: A stamp's error is only believed in if it leaves this much less of the residual: chance finds a little.
_BETTER: Final = 0.98


class Found(NamedTuple):
    """A timing, and the mean squared error that it leaves. `rivals` are others that the windows do not rule out."""

    sensor: Sensor
    residual: float
    rivals: tuple[Sensor, ...]


class Search:
    """The search for the timing of one family in `windows`, whose first signal is `lead`.

    `known` are timings that an earlier search could not rule out: they are followed too. `expected` is what was known
    of the sensor before.
    """

    def __init__(
        self, lead: Signal, windows: Windows, active: ActiveTime, columns: int, most: float,
        *, known: Sequence[Sensor] = (), expected: Expected | None = None,
    ) -> None:  # fmt: skip
        self.lead = lead
        self.windows = windows
        self.columns = columns
        self.most = most
        self._reach_ns = LONGEST_LAG_NS + max(shape.reach_ns for shape in shapes(lead)) + 2 * lead.refresh_ns
        self._pieces = active
        self._active = self._coarse()
        self._known, self._expected = known, expected
        self._some = windows.ends[:: max(1, len(windows.ends) // _COMPARED)]
        self._alone = windows._replace(masses=windows.masses[:, :1])
        self._unsteadiness_ns = unsteadiness_ns(windows.ends)
        #: The catalogue's period is only nominal: what the readings show goes first.
        self._faster = renews_faster(lead, windows.ends)
        if self._faster:
            # A reading may be as old as the sensor's period, which is no longer than what lies between two.
            self._unsteadiness_ns += int(np.median(windows.ends - windows.starts)) // 4
        #: Sums of squares are not more exact than this, and no fit is better.
        means = self._alone.masses[:, 0] * NS_PER_S / (windows.ends - windows.starts)
        self._least = 1e-9 * float((means**2).mean()) + 1e-30
        self._variance, self._mean = float(means.var()), float(means.mean())

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

    def _fitted(self, sensor: Sensor, windows: Windows, active: ActiveTime | SampledTime) -> Sums:
        n, unclear, contradicting, square = 0, 0, 0, 0.0
        gram, moment = np.zeros((self.columns, self.columns)), np.zeros(self.columns)
        for part in windows.parts():
            design = Design(part, sensor, counts=self.lead.kind is Kind.COUNTER)
            shares, values = design.shares(active, self.columns), design.values[:, 0]
            gram += shares.T @ shares
            moment += shares.T @ values
            square += float(values @ values)
            n += len(values)
            unclear += design.unclear
            contradicting += design.contradicting
        return Sums(n, unclear, contradicting, gram, moment, square)

    def residual(self, sensor: Sensor) -> float:
        """Mean squared error that a timing leaves."""
        return self._left(self._fitted(sensor, self._alone, self._active), len(self.windows.ends))

    def _left(self, fitted: Sums, n: int) -> float:
        """The mean squared error of `n` windows, those included that were left out."""
        left = fitted.residual(fitted.rates(self.most)) if fitted.n else 0.0
        return max(self._least, (left * fitted.alike + self._out(fitted, n)) / n)

    def _out(self, fitted: Sums, n: int) -> float:
        """The sum of squares of those of `n` windows that are neither fitted nor unclear: they are no better than their
        mean, and contradict the timing where a counter grew."""
        return (n - fitted.n - fitted.unclear) * self._variance + fitted.contradicting * self._mean**2

    def rates(self, sensor: Sensor) -> Floats:
        """The rates of the first signal under a timing."""
        return self._fitted(sensor, self._alone, self._active).rates(self.most)

    def run(self) -> Found:
        """The timing under which the windows are the most likely."""
        known = [sensor for sensor in self._known if sensor.follows == self._faster]
        if self._faster:
            # A period that is looked for is found anew with every reading more.
            known = [sensor for sensor in known if not sensor.period_ns]
        starts = [sensor._replace(blur_ns=FINE_STEPS_NS[0]) for sensor in known]
        ranked = self._starts()
        most = ranked[0][0] + _HOPELESS
        starts += [start for score, start in ranked if score < most]
        tried = self._refined([self._unsettled(start) for start in starts])
        best, left = min(tried, key=lambda t: self._score(*t))
        scores = [self._score(*each) for each in tried]
        judge, certain = self._if_steady, _CERTAIN
        posterior, probes = self._posterior(best)
        enough = len(self.windows.ends) >= WINDOWS_PER_RATE * (len(probes) + self.columns)
        if enough and len(self.windows.ends) * math.log(left / posterior.noise) > _CERTAIN:
            tried, scores = self._varying(best, tried)
            best, left = tried[int(np.argmin(scores))]
            noise = self._posterior(best)[0].noise
            judge = self._if_rates_vary
            misfit = min(_MISFIT[0] * (left / noise - 1), _MISFIT[1])
            certain = max(_CERTAIN, len(self.windows.ends) * math.log1p(misfit))
        most = min(scores) + certain
        rivals = [t[0] for t, score in zip(tried, scores, strict=True) if self._apart(t[0], best) and score < most]
        return Found(best, left, (*rivals, *self._as_good(best, judge, most)))

    def _if_steady(self, sensor: Sensor) -> float:
        return self._score(sensor, self.residual(sensor))

    def _if_rates_vary(self, sensor: Sensor) -> float:
        return self._posterior(sensor)[0].evidence + self._against(sensor)

    def _as_good(self, best: Sensor, judge: Callable[[Sensor], float], most: float) -> Iterator[Sensor]:
        """The ends of the range around the best lag that is hardly worse: in a loop it may be wide."""
        for step in (-_STEP_NS, _STEP_NS):
            last = best
            for move in range(step, step * (_RANGE_NS // _STEP_NS + 1), step):
                near = best._replace(lag_ns=best.lag_ns + move)
                if not (near.period_ns or near.lag_ns >= 0) or judge(near) >= most:
                    break
                last = near
            if last is not best:
                yield last

    def _varying(
        self, middle: Sensor, tried: Sequence[tuple[Sensor, float]]
    ) -> tuple[list[tuple[Sensor, float]], list[float]]:
        """Timings near those, and in a range around one of them, with what is against each if rates may vary.

        What rates vary by is mistaken for the timing's doing where they are held to be steady: only with both does
        either show.
        """
        near = [sensor for sensor, _ in tried] + [
            middle._replace(lag_ns=middle.lag_ns + move) for move in range(-_RANGE_NS, _RANGE_NS + 1, _STEP_NS)
        ]
        near = [sensor for sensor in near if sensor.period_ns or sensor.lag_ns >= 0]
        found = [(self._posterior(sensor, _SOME), sensor) for sensor in near]
        found.sort(key=lambda one: one[0][0].evidence + self._against(one[1]))
        result: dict[Sensor, float] = {}
        for told, start in found[:_STARTS]:
            # A counter that renews itself has no lag besides: not just a neighbour of the best lag.
            for sensor in {self._lag_corrected(start, told), *([] if start.lag_ns else [start])}:
                result.setdefault(sensor, self._if_rates_vary(sensor))
        for step in _CLOSER_NS:
            best = min(result, key=result.__getitem__)
            for sensor in best.moved(step):
                result.setdefault(sensor, self._if_rates_vary(sensor))
        return [(sensor, self.residual(sensor)) for sensor in result], list(result.values())

    def _lag_corrected(self, sensor: Sensor, told: tuple[Posterior, tuple[Probe, ...]]) -> Sensor:
        """The sensor with its lag corrected by what the probe of it says, again and again."""
        for _ in range(_CORRECTIONS):
            posterior, probes = told
            moved = sensor.corrected(float(posterior.solution[probes.index(Probe(Probing.LAG))]), 0.0, 0.0, 0)
            if moved is sensor:
                break
            sensor, told = moved, self._posterior(moved, _SOME)
        return sensor

    def _posterior(self, sensor: Sensor, most: int | None = None) -> tuple[Posterior, tuple[Probe, ...]]:
        """What is known under a timing if rates may vary, by all windows or the newest, and by which probes."""
        windows = self._alone if most is None else self._alone.where(np.arange(-len(self.windows.ends), 0) >= -most)
        equations = Equations(choose(self._active_s(), self._lengths(sensor), window=sensor.window_ns > 0))
        fitted = self._fitted(sensor, windows, self._active)
        rates, origin_ns = fitted.rates(self.most), int(windows.starts[0])
        for part in windows.parts():
            design = Design(part, sensor, counts=self.lead.kind is Kind.COUNTER)
            shares = design.shares(self._pieces, self.columns)
            probes = design.probes(self._pieces, equations.probes, shares, rates, origin_ns)
            equations.add(shares, design.values, probes)
        n = len(windows.ends)
        square = fitted.alike * float(equations.square[0]) + self._out(fitted, n)
        mean = abs(float(equations.sum[0])) / max(1, equations.n)
        groups = groups_of(equations.probes)
        gram, moment = fitted.alike * equations.gram, fitted.alike * equations.moment[:, 0]
        found = shrink(gram, moment, square, n, groups, mean)
        return found, equations.probes

    def _lengths(self, sensor: Sensor) -> Floats:
        """How long executions last, as shares of what a reading averages over."""
        lengths_ns = self.windows.ends - self.windows.starts
        over_ns = sensor.window_ns * (2 if sensor.smooth else 1) or float(lengths_ns.mean())
        return self._pieces.typical_ns(self.columns) / over_ns

    def _active_s(self) -> Floats:
        edges = np.array([self.windows.starts[0], self.windows.ends[-1]])
        passed = np.diff(self._pieces.until(edges, self.columns))[:, 0]
        passed[0] = max(0.0, float(edges[1] - edges[0] - passed[1:].sum()))
        return passed / NS_PER_S

    def _score(self, sensor: Sensor, left: float) -> float:
        """Twice how much less likely (natural logarithm) the windows are than with a residual of 1.

        A timing that is not how such sensors work has to be that much better.
        """
        return len(self.windows.ends) * float(np.log(left)) + self._against(sensor)

    def _against(self, sensor: Sensor) -> float:
        """What is against a timing to begin with: how such sensors work, or how this one does."""
        if self._expected is not None:
            return 0.0 if self._expected.admits(sensor, self._some) else _STRANGE + _UNUSUAL
        strange = (
            self.lead.refresh_ns and not self._faster and not sensor.in_step and (sensor.lag_ns or not sensor.period_ns)
        )
        unheard = sensor.window_ns and not sensor.usual
        late = sensor.lag_ns + sensor.period_ns // 2 > _LATE_NS
        # A reading that is of a moment after its stamp: only stamps that are off can show that.
        early = not sensor.in_step and sensor.lag_ns < -GUARD_NS
        return _STRANGE * bool(strange) + _UNUSUAL * (bool(unheard) + late + early)

    def _starts(self) -> list[tuple[float, Sensor]]:
        """The best timings of coarse scans that are no neighbours, each moved to the best near it, by score."""
        alone = self._alone
        few = Windows(alone.starts[-_COARSE:], alone.ends[-_COARSE:], alone.masses[-_COARSE:])
        scan = Scan(self._pieces, few, self.columns, self._reach_ns, counts=self.lead.kind is Kind.COUNTER)

        def ranked(tried: Sequence[Sensor]) -> list[tuple[float, int, Sensor]]:
            left = np.maximum(scan.residuals(tried), self._least)
            return [
                (self._score(sensor, float(one)), i, sensor)
                for i, (sensor, one) in enumerate(zip(tried, left, strict=True))
            ]

        every = [shape._replace(follows=self._faster) for shape in shapes(self.lead)]
        step = in_step(self.lead, self.windows.ends)
        # What differs between stamps that are in step is the reader's doing: no lag behind a stamp is worth trying.
        tried = ranked(lagging(every)) if step < IN_STEP or self._faster else []
        if step >= NEAR_STEP and not self._faster:
            together = ranked(stepping(lagging(every), self.lead, self.windows.ends))
            tried += together + ranked(dividing(self._distinct(together, _NEAR), self.windows.ends))
        if self._faster:
            tried += ranked(following(every, self.windows.starts, self.windows.ends))
        framed = [sensor for sensor in self._distinct(tried, _NEAR) if sensor.window_ns]
        tried += ranked(stretching(framed))
        if self.lead.refresh_ns and not self._faster:
            near = [plain(sensor) for sensor in self._distinct(tried, _NEAR)]
            if step < IN_STEP:
                tried += ranked(renewing(near, self.lead))
            if self.lead.kind is Kind.COUNTER:
                newest = Windows(few.starts[-_PERIODS:], few.ends[-_PERIODS:], few.masses[-_PERIODS:])
                tried += ranked(drifting(near[0], self.lead, newest.ends))
        if self._expected is not None:
            tried += ranked(self._expected.starts())
        starts = self._distinct(tried, _STARTS)
        # In a loop that hardly varies, what is right and what is wrong are few milliseconds apart.
        nearer = sorted(min(ranked([*start.around(FINE_STEPS_NS[0])])) for start in starts)
        return [(score, start) for score, _, start in nearer]

    def _distinct(self, tried: Sequence[tuple[float, int, Sensor]], most: int) -> list[Sensor]:
        """The best that are not each other's neighbours."""
        apart: list[Sensor] = []
        first = min(tried)[0]
        for score, _, sensor in sorted(tried):
            if len(apart) == most or score > first + _FAR_OFF:
                break
            if all(bool(sensor.period_ns) != bool(other.period_ns) or self._apart(sensor, other) for other in apart):
                apart.append(sensor)
        return apart

    def _apart(self, one: Sensor, other: Sensor) -> bool:
        """Whether two timings are not just neighbours on the grid."""
        if one.smooth != other.smooth or abs(one.window_ns - other.window_ns) > _ALIKE * other.window_ns:
            return True
        far = np.abs(one.placed(self._some).middles(self._some) - other.placed(self._some).middles(self._some))
        return bool(np.median(far) > max(STEP_NS, one.window_ns // 10))

    def _refined(self, sensors: Sequence[Sensor]) -> list[tuple[Sensor, float]]:
        """The best timing near each, and what it leaves; those aside that turn out to be hopeless on the way."""
        tried = [(sensor, 0.0) for sensor in sensors]
        for step in FINE_STEPS_NS[1:]:
            found = []
            for sensor, _ in tried:
                near = [(each, self.residual(each)) for each in sensor.around(step)]
                found.append(min(near, key=lambda t: self._score(*t)))
            most = min(self._score(*each) for each in found) + 2 * _CERTAIN
            tried = [each for each in found if self._score(*each) < most]
        return tried

    def _unsettled(self, sensor: Sensor) -> Sensor:
        """The sensor with an error of its stamps, if that explains the windows better."""
        return sensor if sensor.in_step else self._jittered(sensor, self.residual(sensor))

    def _jittered(self, sensor: Sensor, left: float) -> Sensor:
        """The sensor with that error of its stamps which leaves clearly less residual; as it is if none does."""
        best, least = sensor, left * _BETTER
        for jitter in JITTERS_NS:
            if jitter > 2 * self._unsteadiness_ns + JITTERS_NS[0]:
                break
            tried = sensor._replace(jitter_ns=jitter)
            left = self.residual(tried)
            if left < least:
                best, least = tried, left
        return best
