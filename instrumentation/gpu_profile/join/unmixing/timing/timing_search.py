"""The search for a sensor's timing in its windows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind
from gpu_profile.catalogue.signals import POWER_AVERAGE
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.solving.design import Windows, design_effect
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN
from gpu_profile.join.unmixing.solving.unmix import WINDOWS_PER_RATE
from gpu_profile.join.unmixing.timing.expected import SensorPrior
from gpu_profile.join.unmixing.timing.likelihood import UNKNOWN, Likelihood
from gpu_profile.join.unmixing.timing.scan import Scan
from gpu_profile.join.unmixing.timing.timings import (
    LAG_STEP_NS,
    PARTING_STEPS_NS,
    PARTS_NS,
    STEP_NS,
    dividing,
    drifting,
    following,
    lagging,
    locked,
    near_lags,
    near_periods,
    parting,
    plain,
    renewing,
    shapes,
    stepping,
    stretching,
)
from gpu_profile.join.unmixing.timing.trials import Best, Trial, is_late, younger
from gpu_profile.join.unmixing.windows.sensor import FINE_STEPS_NS, IN_STEP, NEAR_STEP, Sensor, in_step

#: Number of the newest windows on which the coarse grid is tried.
_COARSE: Final = 500
#: Number of the best lags that are also tried with renewals.
_NEAR: Final = 3
#: Number of periods that are followed from fewer windows to more.
_FOLLOWED: Final = 4
#: The last step of the search for a period, as the movement of a renewal over all windows.
_FINER_NS: Final = STEP_NS // 4
#: The newest windows on which periods beside the nominal one are tried first, and their longest time, for a rough grid.
_PERIODS, _PERIODS_NS = 75, 120_000_000_000
#: Number of points of the coarse grid that are followed to their minimum, as long as their error may still fall by this
#: multiple of the best one's improvement.
_STARTS: Final = 8
_MORE: Final = 3.0
#: ... and the number of a counter's parts of periods, in addition.
_PARTS: Final = 4
#: The coarse grid gives only a neighbour's score: points with scores worse by this are not followed.
_FAR_OFF: Final = 200.0
#: A closer search covers this range around a timing. With varying rates, it uses `_SOME` windows and corrects each lag
#: `_CORRECTIONS` times.
_RANGE_NS: Final = 60_000_000
_TOGETHER: Final = 8  #: number of timings in a range that are tried at once
_SOME: Final = 300
_CLOSER_NS: Final = (1_250_000, 600_000, 300_000, 150_000)
_CORRECTIONS: Final = 3
#: Alternatives to a given timing, for a sensor that is read about every 20 ms.
_FOLLOWING: Final = (
    *(Sensor(window_ns=round(5e6 * 1.4**step), smooth=True, blur_ns=STEP_NS) for step in range(10)),
    *(Sensor(window_ns=round(15e6 * 1.5**step), blur_ns=STEP_NS) for step in range(9)),
)
_LAGS_NS: Final = range(-30_000_000, 60_000_001, STEP_NS)
#: Two timings are neighbours if their windows differ by less than this share, and the moments of most readings agree.
_ALIKE: Final = 0.2
#: A timing with its score, and its index among others.
Ranked = tuple[float, int, Sensor]


class SensorTiming(NamedTuple):
    """A timing and its mean squared error. The windows do not rule out the `alternatives`. `effect` is the design
    effect: the number of windows that carry as much information as one independent window."""

    sensor: Sensor
    residual: float
    alternatives: tuple[Sensor, ...]
    effect: float


class Search(Likelihood):
    """The search for the timing of one family's sensor."""

    def run(self) -> SensorTiming:
        """The most likely timing. If the prior gives the timing, its best lag."""
        if self._expected is not None and self._expected.stamped:
            return self._as_given(self._expected)
        # If renewals are faster, the readings' period changes with every new reading, so earlier ones are not reused.
        candidates = [s for s in self._candidates if s.follows == self._faster and not (self._faster and s.period_ns)]
        starts = [*(sensor._replace(blur_ns=FINE_STEPS_NS[0]) for sensor in candidates), *self._starts()]
        tried = self._refined(self._unsettled(starts))
        best = min(tried, key=self._rank)[0]
        if self._clip_outliers(best, [*starts, *(sensor for sensor, _ in tried)]):
            tried = self._refined(self._unsettled(starts))
        phases = self._with_residuals(self._any_phase(min(tried, key=self._rank)[0]))
        if phases:
            # Windows near renewals are included or left out depending on the phase, so a deeper minimum may lie beside.
            phases += self._refined([min(phases, key=self._rank)[0]])
        tried = sorted([*tried, *phases], key=self._rank)
        best, left = tried[0]
        effect = self._repeated(best)
        trial = self._trial(best)
        enough = len(self.windows.ends) >= WINDOWS_PER_RATE * (trial.probes + self.columns)
        if enough and len(self.windows.ends) * math.log(left / trial.noise) > CERTAIN:
            trial, alternatives = self._if_varying(best, tried, effect)
            best, left = trial.sensor, trial.left
        else:
            between, certainly = self._between(best), self._score(best, left) - CERTAIN * effect
            better = [each for each in between if self._rank(each) < certainly]
            best, left = min(better or [(best, left)], key=self._rank)
            reference = Best(self._score(best, left), is_late(best), effect)
            allowed = min(self._discrepancy, trial.varied)
            scores = ((self._beside(*each, (best, left), allowed), each[0]) for each in [*tried, *between])
            likely = [sensor for score, sensor in scores if reference.near(score, late=is_late(sensor))]
            alternatives = self._others(best, likely, partial(self._if_steady, (best, left)), reference)
        whole = [sensor for sensor in alternatives if not self._in_parts(sensor)]
        if self._in_parts(best) and whole:
            # Some part of a period fits any loop. Only the whole shows which rates errors of stamps leave undetermined.
            alternatives = best, *(sensor for sensor in alternatives if sensor is not whole[0])
            best, left = whole[0], self.residual(whole[0])
        if self._limit < math.inf:
            # Residuals of later windows are compared with those of all windows, including outliers.
            self._limit = math.inf
            left = self.residual(best)
        return SensorTiming(best, left, alternatives, effect)

    def _as_given(self, expected: SensorPrior) -> SensorTiming:
        """The timing with the prior's shape and the best lag in the range of late work stamps.

        Its rivals are other lags, or a different timing if that certainly explains the windows better."""
        given, near_ns = expected.behind_stamps, expected.nearest_ns
        errors, groups = self._errors(given)
        # If a program repeats with the readings, few windows are independent: rounding splits one group into two.
        if len(np.unique(groups)) <= 2 * (self.columns + UNKNOWN):
            return SensorTiming(given, self.residual(given), (), math.inf)
        effect = design_effect(errors, groups, self.columns + UNKNOWN)
        best, alternatives = self._trial(given), tuple[Sensor, ...]()
        if near_ns:
            best, alternatives = self._if_varying(given, [(given, self.residual(given))], effect, near_ns)
        following = [each._replace(lag_ns=lag) for each in _FOLLOWING for lag in _LAGS_NS]
        tried = self._ranking(self._newest)([each for each in following if not expected.resembles(each)])
        others = self._trials(self._distinct(tried, _STARTS))
        other = min(others, key=lambda one: one.score)
        like = [best, *self._trials([*expected.likely(best.sensor)])]
        mine = min(self._beside_if_rates_vary(one, other, self._discrepancy) for one in like)
        if other.score < mine and not Best(other.score, False, effect).near(mine, late=False):
            alternatives = (*alternatives, other.sensor)
        return SensorTiming(best.sensor, best.left, alternatives, effect)

    def _others(
        self, best: Sensor, likely: Sequence[Sensor], judge: Callable[[Iterator[Sensor]], Iterator[float]], near: Best
    ) -> tuple[Sensor, ...]:
        return *self._without_neighbours([best, *likely])[1:], *self._as_good(best, judge, near)

    def _without_neighbours(self, sensors: Iterable[Sensor]) -> list[Sensor]:
        apart: list[Sensor] = []
        for sensor in sensors:
            if all(self._apart(sensor, other) for other in apart):
                apart.append(sensor)
        return apart

    @property
    def _newest(self) -> Windows:
        """The windows for the coarse grid."""
        starts, ends, masses = self._alone
        return Windows(starts[-_COARSE:], ends[-_COARSE:], masses[-_COARSE:])

    def _likely(self, some: Sequence[Trial], effect: float) -> list[Sensor]:
        """The timings that the best one does not rule out, likeliest first."""
        best = min(some, key=lambda one: one.score)
        reference = Best(best.score, is_late(best.sensor), effect)
        beside = partial(self._beside_if_rates_vary, best=best, allowed=self._discrepancy)
        scores = sorted((one.score if is_late(one.sensor) else beside(one), one.sensor) for one in some)
        return [sensor for score, sensor in scores if reference.near(score, late=is_late(sensor))]

    def _if_steady(self, best: tuple[Sensor, float], sensors: Iterator[Sensor]) -> Iterator[float]:
        while some := list(islice(sensors, _TOGETHER)):
            yield from (self._beside(*each, best) for each in self._with_residuals(some))

    def _if_rates_vary(self, best: Trial, sensors: Iterator[Sensor]) -> Iterator[float]:
        return (self._beside_if_rates_vary(self._trial(sensor), best) for sensor in sensors)

    def _as_good(
        self, best: Sensor, judge: Callable[[Iterator[Sensor]], Iterator[float]], reference: Best
    ) -> Iterator[Sensor]:
        """The ends of the range of lags around the best one that are hardly worse. In a loop it may be wide."""
        for step in (-LAG_STEP_NS, LAG_STEP_NS):
            lags = range(best.lag_ns + step, best.lag_ns + step * (_RANGE_NS // LAG_STEP_NS + 1), step)
            near = self._possible([best._replace(lag_ns=lag) for lag in lags])
            scores = zip(near, judge(iter(near)), strict=False)
            good = [sensor for sensor, _ in takewhile(lambda one: reference.near(one[1], late=is_late(one[0])), scores)]
            yield from good[-1:]

    def _if_varying(
        self, middle: Sensor, tried: Sequence[tuple[Sensor, float]], effect: float, range_ns: int = _RANGE_NS
    ) -> tuple[Trial, tuple[Sensor, ...]]:
        """The best timing near `tried` ones or in a range around `middle`, and those that it does not rule out.

        Under steady rates, variation of the rates is mistaken for an effect of the timing. Only a model of both
        separates them. All windows judge the timings that the newest ones do not rule out.
        """
        middles = [middle, *(each for each, _ in sorted(tried, key=self._rank) if not self._in_parts(each))][:2]
        near = [each for one in middles for each in near_lags(one, range_ns)] + younger(middle)
        trials = self._trials(self._possible([*(sensor for sensor, _ in tried), *near]), _SOME)
        best = min(trials, key=lambda one: one.score)
        trials.sort(key=lambda one: self._beside_if_rates_vary(one, best))
        starts: list[Trial] = []
        for one in trials:
            alike = (one.sensor.differs_in_lag(other.sensor, LAG_STEP_NS) for other in starts)
            if len(starts) < _STARTS and not any(alike):
                starts.append(one)
        result: dict[Sensor, Trial] = {}
        for one in starts:
            # A counter with renewals has no lag besides: try 0 exactly, not only a neighbour of the best lag.
            for sensor in {self._lag_corrected(one), *([] if one.sensor.lag_ns else [one.sensor])}:
                result.setdefault(sensor, self._trial(sensor))
        self._add_likely(trials, result, effect)
        for step in _CLOSER_NS:
            best = min(result.values(), key=lambda one: one.score)
            fresh = [sensor for sensor in dict.fromkeys(best.sensor.moved(step)) if sensor not in result]
            result |= zip(fresh, self._trials(fresh), strict=True)
        best = min(result.values(), key=lambda one: one.score)
        if not any(best.sensor.differs_in_lag(one, range_ns) for one in middles):
            self._add_likely(self._trials(self._possible(near_lags(best.sensor, range_ns)), _SOME), result, effect)
            best = min(result.values(), key=lambda one: one.score)
        judge, reference = partial(self._if_rates_vary, best), Best(best.score, is_late(best.sensor), effect)
        return best, self._others(best.sensor, self._likely([*result.values()], effect), judge, reference)

    def _add_likely(self, some: Sequence[Trial], result: dict[Sensor, Trial], effect: float) -> None:
        """Add trials by all windows of the timings that trials by `some` windows do not rule out."""
        likely = [each for each in self._without_neighbours(self._likely(some, effect)) if each not in result]
        result |= zip(likely, self._trials(likely), strict=True)

    def _possible(self, sensors: Sequence[Sensor]) -> list[Sensor]:
        return [sensor for sensor in sensors if sensor.period_ns or sensor.lag_ns >= self._earliest_ns]

    def _lag_corrected(self, trial: Trial) -> Sensor:
        """The sensor with its lag corrected repeatedly by the coefficient of the lag's probe."""
        for _ in range(_CORRECTIONS):
            moved = trial.sensor.corrected(trial.lag_ms, 0.0, 0.0, 0)
            if moved is trial.sensor:
                break
            trial = self._trial(moved, _SOME)
        return trial.sensor

    def _starts(self) -> list[Sensor]:
        """The best timings of coarse scans without neighbours, each moved to the best point near it."""
        ranked = self._ranking(self._newest)
        every = [shape._replace(follows=self._faster) for shape in shapes(self.lead)]
        step = in_step(self.lead, self.windows.ends)
        # Variation between stamps in step comes from the reader, so lags behind a stamp are not tried.
        tried = ranked(lagging(every)) if step < IN_STEP or self._faster else []
        if step >= NEAR_STEP and not self._faster:
            together = ranked(stepping(lagging(every), self.lead, self.windows.ends))
            tried += together + ranked(dividing(self._distinct(together, _NEAR), self.windows.ends))
        if self._faster:
            tried += ranked(following(every, self.windows.starts, self.windows.ends))
        framed = [sensor for sensor in self._distinct(tried, _NEAR) if sensor.window_ns]
        if self.lead.kind is Kind.COUNTER:
            # In a loop, parts of a period with different lengths may give the same readings, and each at several lags.
            of_length = ([one for one in tried if one[2].window_ns == length] for length in PARTS_NS)
            framed = [each for some in of_length for each in self._distinct(some, _NEAR, math.inf)]
        tried += ranked(stretching(framed))
        if self.lead.refresh_ns and not self._faster:
            near = [plain(sensor) for sensor in self._distinct(tried, _NEAR)]
            if step < IN_STEP:
                # In a loop, many lags fit equally well: the lag that renewals alone explain is always tried.
                tried += ranked(renewing([self._usual(near[0]), *near], self.lead))
            if self.lead.kind is Kind.COUNTER or self.lead is POWER_AVERAGE:
                tried += ranked(self._drifting(near[0]))
            if self.lead.kind is Kind.COUNTER:
                tried += ranked(locked(near[0], self.lead, self._pieces))
                tried += self._parting(tried, ranked)
        tried += ranked(self._expected.starts() if self._expected is not None else [])
        whole, parts = ([one for one in tried if self._in_parts(one[2]) is part] for part in (False, True))
        # Some part of a period fits any loop, so parts take no places of other timings.
        starts = self._distinct(whole, _STARTS, math.inf) + self._distinct(parts, _PARTS, math.inf)
        # In a loop that hardly varies, right and wrong timings are only milliseconds apart.
        around = [[*start.around(FINE_STEPS_NS[0])] for start in starts]
        closer = iter(ranked([each for some in around for each in some]))
        return [min(islice(closer, len(some)))[2] for some in around]

    def _ranking(self, windows: Windows) -> Callable[[Sequence[Sensor]], list[Ranked]]:
        """A function that scores timings roughly by some windows."""
        scan = Scan(self._pieces, windows, self.columns, self._reach_ns, counts=self.lead.kind is Kind.COUNTER)

        def ranked(tried: Sequence[Sensor]) -> list[Ranked]:
            left = (scan.residuals(tried) + self._least).tolist()
            return [(self._score(sensor, left[i]), i, sensor) for i, sensor in enumerate(tried)]

        return ranked

    def _drifting(self, near: Sensor) -> list[Sensor]:
        """Sensors with periods near the nominal one, by the newest windows first and then by more. Over a longer time,
        smaller differences of the period are visible."""
        alone, step = self._alone, STEP_NS
        count = min(_PERIODS, int(np.count_nonzero(alone.ends[-1] - alone.ends <= _PERIODS_NS)))
        # `near` may count a part of each period only because its period is wrong.
        shaped = dict.fromkeys((near, near._replace(window_ns=0, smooth=False)))
        sensors = [each for one in shaped for each in drifting(one, self.lead, alone.ends[-count:])]
        while sensors:
            newest = Windows(alone.starts[-count:], alone.ends[-count:], alone.masses[-count:])
            sensors = self._distinct(self._ranking(newest)(sensors), _FOLLOWED, math.inf)
            whole = count >= len(alone.ends)
            if whole and step < STEP_NS:
                break
            ends, count = newest.ends, 2 * count
            step = _FINER_NS if whole else STEP_NS
            span_ns = int(ends[-1] - alone.ends[-count:][0])
            sensors = near_periods(sensors, int(ends[len(ends) // 2]), span_ns, step)
        # Differences too small to be visible over all windows are left to the correction of the lag.
        span, nominal = int(alone.ends[-1] - alone.ends[0]), self.lead.refresh_ns
        return [each for each in sensors if abs(each.period_ns - nominal) * span > STEP_NS * nominal]

    def _parting(self, tried: Sequence[Ranked], ranked: Callable[[Sequence[Sensor]], list[Ranked]]) -> list[Ranked]:
        """Other parts of a period than `tried`, with the best ones' period if it is not the nominal one."""
        nominal, ends = self.lead.refresh_ns, self._newest.ends
        sensors = parting([s for _, _, s in sorted(tried) if self._in_parts(s) and s.period_ns != nominal][:2])
        for step in PARTING_STEPS_NS:
            parts = self._distinct(ranked(sensors), _PARTS, math.inf)
            sensors = near_periods(parts, int(ends[len(ends) // 2]), int(ends[-1] - ends[0]), step)
        return ranked(sensors)

    def _any_phase(self, best: Sensor) -> list[Sensor]:
        """Renewals at any phase without a lag, if readings determine it, or executions without a mark may hide it."""
        hidden = self._hidden(best) > self._discrepancy
        if not best.period_ns or (best.in_step and not hidden) or best.follows:
            return []
        usual = self._usual(best)
        some = renewing([usual, usual._replace(window_ns=0, smooth=False)] if hidden else [usual], self.lead)
        return [each._replace(blur_ns=best.blur_ns) for each in some if not each.lag_ns]

    def _usual(self, sensor: Sensor) -> Sensor:
        """A sensor with the lag that renewals explain, and with the averaging of this one."""
        return plain(sensor._replace(lag_ns=0, period_ns=self.lead.refresh_ns))

    def _distinct(self, tried: Sequence[Ranked], most: int, far: float = _FAR_OFF) -> list[Sensor]:
        """The best timings of which no two are neighbours."""
        apart: list[Sensor] = []
        first = min(tried)[0] if tried else 0.0
        for score, _, sensor in sorted(tried):
            if len(apart) == most or score > first + far:
                break
            if all(bool(sensor.period_ns) != bool(other.period_ns) or self._apart(sensor, other) for other in apart):
                apart.append(sensor)
        return apart

    def _apart(self, one: Sensor, other: Sensor) -> bool:
        """Whether two timings are more than neighbours on the grid."""
        if one.smooth != other.smooth or abs(one.window_ns - other.window_ns) > _ALIKE * other.window_ns:
            return True
        far = np.abs(self._middles(one) - self._middles(other)) > max(STEP_NS, one.window_ns // 10)
        return bool(2 * np.count_nonzero(far) > len(far))

    def _middles(self, sensor: Sensor) -> Ints:
        """The moments of some of the readings, moved to the mean age of their contents."""
        if sensor not in self._middle_moments:
            self._middle_moments[sensor] = sensor.placed(self._some).middles(self._some)
        return self._middle_moments[sensor]

    def _refined(self, sensors: Sequence[Sensor]) -> list[tuple[Sensor, float]]:
        """The best timing near each, with its error. Hopeless ones are dropped on the way."""
        tried = self._with_residuals(sensors)
        for step in FINE_STEPS_NS[1:]:
            near = [list(sensor.around(step)) for sensor, _ in tried]
            left = dict(self._with_residuals([each for some in near for each in some]))
            refined = [min(((each, left[each]) for each in some), key=self._rank) for some in near]
            best = min(refined, key=self._rank)
            most = self._score(*best) + 2 * CERTAIN * self._repeated(best[0])
            # Others may still gain as much as the best one did: most error on a coarse grid is due to the grid.
            gain = _MORE * max(0.0, min(left for _, left in tried) - best[1])
            hopeful = [(each, left, max(left - gain, self._least)) for each, left in refined]
            tried = [
                (each, left)
                for each, left, least in hopeful
                if self._score(each, least) < most or self._beside(each, least, best, self._discrepancy) < most
            ]
        return tried

    def _between(self, best: Sensor) -> list[tuple[Sensor, float]]:
        """The minima at lags near the best one: in a loop of some 10 ms, they are as close as the grid's points."""
        if self._expected is not None or (best.period_ns and not best.in_step):
            return []
        ranked = self._ranking(self._newest)(self._possible(near_lags(best, _RANGE_NS)))
        around = zip(ranked, ranked[1:], ranked[2:], strict=False)
        minima = sorted(each for before, each, after in around if before[0] > each[0] < after[0])
        return self._refined([best, *(sensor for _, _, sensor in minima[:_STARTS])])

    def _with_residuals(self, sensors: Sequence[Sensor]) -> list[tuple[Sensor, float]]:
        return list(zip(sensors, self.residuals(sensors), strict=True))
