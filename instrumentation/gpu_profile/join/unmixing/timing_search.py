"""Looking for a sensor's timing in its windows, and the equations that follow from one. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.design import Windows, design_effect
from gpu_profile.join.unmixing.expected import SensorPrior
from gpu_profile.join.unmixing.likelihood import UNKNOWN, Best, Likelihood, Trial, is_late
from gpu_profile.join.unmixing.scan import Scan
from gpu_profile.join.unmixing.sensor import FINE_STEPS_NS, IN_STEP, NEAR_STEP, Sensor, in_step
from gpu_profile.join.unmixing.shrinkage import CERTAIN
from gpu_profile.join.unmixing.timings import (
    JITTERS_NS,
    STEP_NS,
    dividing,
    drifting,
    following,
    lagging,
    near_periods,
    plain,
    renewing,
    shapes,
    stepping,
    stretching,
)
from gpu_profile.join.unmixing.unmix import WINDOWS_PER_RATE

#: The coarse grid is tried on the newest windows alone.
_COARSE: Final = 500
#: So many of the best lags are tried with renewals too.
_NEAR: Final = 3
#: So many periods are followed from fewer windows to more.
_FOLLOWED: Final = 4
#: The last step in which a period is looked for, by how far it moves a renewal over all windows.
_FINER_NS: Final = STEP_NS // 4
#: The newest windows, in which periods other than the nominal one are tried at first: more would need a finer grid.
_PERIODS: Final = 75
#: So many points of the coarse grid are followed to their minimum, while what they leave may still fall by this many
#: times as much as the best one's did.
_STARTS: Final = 8
_MORE: Final = 3.0
#: ... and so many of a counter's parts of periods besides.
_PARTS: Final = 4
#: On the coarse grid a neighbour's score is all that is known: what
#: is further away than this is not followed.
_FAR_OFF: Final = 200.0
#: Timings this near are looked at more closely, in such steps: where rates vary by this many windows, each corrected so
#: often.
_RANGE_NS: Final = 60_000_000
_STEP_NS: Final = 2_500_000
#: Timings whose range is looked for are tried so many at once.
_TOGETHER: Final = 8
_SOME: Final = 300
_CLOSER_NS: Final = (1_250_000, 600_000, 300_000, 150_000)
_CORRECTIONS: Final = 3
#: What is tried beside a timing that is known: how a sensor follows that is read every 20 ms or so.
_FOLLOWING: Final = (
    *(Sensor(window_ns=round(5e6 * 1.4**step), smooth=True, blur_ns=STEP_NS) for step in range(10)),
    *(Sensor(window_ns=round(15e6 * 1.5**step), blur_ns=STEP_NS) for step in range(9)),
)
_LAGS_NS: Final = range(-30_000_000, 60_000_001, STEP_NS)
#: Two timings are neighbours if their windows are this much alike, and the moments of most readings.
_ALIKE: Final = 0.2
#: A stamp's error is only believed in if it leaves this much less of the residual: chance finds a little.
_BETTER: Final = 0.98


#: A timing with its score, and its place among others.
Ranked = tuple[float, int, Sensor]


class SensorTiming(NamedTuple):
    """A timing, and the mean squared error that it leaves. `rivals` are others that the windows do not rule out, of
    which so many tell as much as one that is independent of the others would: `effect`."""

    sensor: Sensor
    residual: float
    rivals: tuple[Sensor, ...]
    effect: float


class Search(Likelihood):
    """The search for the timing of one family."""

    def run(self) -> SensorTiming:
        """The timing under which the windows are the most likely; the one that is given, if it is known beforehand."""
        if self._expected is not None and self._expected.stamped:
            return self._as_given(self._expected)
        known = [sensor for sensor in self._known if sensor.follows == self._faster]
        if self._faster:
            # A period that is looked for is found anew with every reading more.
            known = [sensor for sensor in known if not sensor.period_ns]
        starts = [*(sensor._replace(blur_ns=FINE_STEPS_NS[0]) for sensor in known), *self._starts()]
        tried = self._refined(self._unsettled(starts))
        best = min(tried, key=self._rank)[0]
        if self._clip_outliers(best, [*starts, *(sensor for sensor, _ in tried)]):
            tried = self._refined(self._unsettled(starts))
        phases = self._with_residuals(self._any_phase(min(tried, key=self._rank)[0]))
        if phases:
            # Windows near renewals come and go with the phase: from one minimum, a deeper one beside it is not reached.
            phases += self._refined([min(phases, key=self._rank)[0]])
        tried = sorted([*tried, *phases], key=self._rank)
        best, left = tried[0]
        effect = self._repeated(best)
        reference = Best(self._score(best, left), is_late(best), effect)
        trial = self._trial(best)
        enough = len(self.windows.ends) >= WINDOWS_PER_RATE * (trial.probes + self.columns)
        if enough and len(self.windows.ends) * math.log(left / trial.noise) > CERTAIN:
            rough, every = self._varying(best, tried)
            trial = min(every, key=lambda one: one.score)
            best, left = trial.sensor, trial.left
            rivals = self._rivals(trial, rough, every, effect)
        else:
            scores = ((self._beside(*each, (best, left), self._discrepancy), each[0]) for each in tried)
            found = [sensor for score, sensor in scores if reference.near(score, late=is_late(sensor))]
            rivals = self._others(best, found, partial(self._if_steady, (best, left)), reference)
        if self._limit < math.inf:
            # Residuals of later windows are compared with those of all windows, outliers included.
            self._limit = math.inf
            left = self.residual(best)
        return SensorTiming(best, left, rivals, effect)

    def _as_given(self, expected: SensorPrior) -> SensorTiming:
        """The timing whose shape is known beforehand, with the lag that fits best so near, as stamps of work are late;
        its rivals are other lags, or another timing altogether if that certainly explains the windows better."""
        given, near_ns = expected.behind_stamps, expected.nearest_ns
        errors, groups = self._errors(given)
        # Of a program that repeats with the readings, few say anything of their own: rounding makes two groups of one.
        if len(np.unique(groups)) <= 2 * (self.columns + UNKNOWN):
            return SensorTiming(given, self.residual(given), (), math.inf)
        effect = design_effect(errors, groups, self.columns + UNKNOWN)
        best, rivals = self._trial(given), tuple[Sensor, ...]()
        if near_ns:
            rough, finer = self._varying(given, [(given, self.residual(given))], near_ns)
            best = min(finer, key=lambda one: one.score)
            rivals = self._rivals(best, rough, finer, effect)
        every = [each._replace(lag_ns=lag) for each in _FOLLOWING for lag in _LAGS_NS]
        tried = self._ranking(self._newest)([each for each in every if not expected.resembles(each)])
        others = self._trials(self._distinct(tried, _STARTS))
        other = min(others, key=lambda one: one.score)
        like = [best, *self._trials([*expected.likely(best.sensor)])]
        mine = min(self._beside_if_rates_vary(one, other, self._discrepancy) for one in like)
        if other.score < mine and not Best(other.score, False, effect).near(mine, late=False):
            rivals = (*rivals, other.sensor)
        return SensorTiming(best.sensor, best.left, rivals, effect)

    def _rivals(self, best: Trial, rough: Sequence[Trial], every: Sequence[Trial], effect: float) -> tuple[Sensor, ...]:
        """The timings that the best one does not rule out if rates vary, but for its neighbours."""
        reference = Best(best.score, is_late(best.sensor), effect)
        found = [*self._likely(every, effect), *self._likely(rough, effect)]
        return self._others(best.sensor, found, partial(self._if_rates_vary, best), reference)

    def _others(
        self,
        best: Sensor,
        found: Sequence[Sensor],
        judge: Callable[[Iterator[Sensor]], Iterator[float]],
        reference: Best,
    ) -> tuple[Sensor, ...]:
        apart = [best]
        for sensor in found:
            if all(self._apart(sensor, other) for other in apart):
                apart.append(sensor)
        return *apart[1:], *self._as_good(best, judge, reference)

    @property
    def _newest(self) -> Windows:
        """The windows that the coarse grid is tried on."""
        starts, ends, masses = self._alone
        return Windows(starts[-_COARSE:], ends[-_COARSE:], masses[-_COARSE:])

    def _rank(self, tried: tuple[Sensor, float]) -> float:
        """The score of a timing with what it leaves."""
        return self._score(*tried)

    def _likely(self, some: Sequence[Trial], effect: float) -> list[Sensor]:
        """The timings that the best one does not rule out, from the likeliest on."""
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
        """The ends of the range around the best lag that is hardly worse: in a loop it may be wide."""
        for step in (-_STEP_NS, _STEP_NS):
            lags = range(best.lag_ns + step, best.lag_ns + step * (_RANGE_NS // _STEP_NS + 1), step)
            possible = takewhile(lambda lag: best.period_ns or lag >= self._earliest_ns, lags)
            near = [best._replace(lag_ns=lag) for lag in possible]
            scores = zip(near, judge(iter(near)), strict=False)
            good = [sensor for sensor, _ in takewhile(lambda one: reference.near(one[1], late=is_late(one[0])), scores)]
            yield from good[-1:]

    def _varying(
        self, middle: Sensor, tried: Sequence[tuple[Sensor, float]], range_ns: int = _RANGE_NS
    ) -> tuple[list[Trial], list[Trial]]:
        """Timings near those, and in a range around one of them: by the newest windows, and the best by all of them.

        What rates vary by is mistaken for the timing's doing where they are held to be steady: only with both does
        either show.
        """
        whole = [sensor for sensor, _ in sorted(tried, key=self._rank) if not self._in_parts(sensor)]
        near = [sensor for sensor, _ in tried] + [
            each._replace(lag_ns=each.lag_ns + move)
            for each in dict.fromkeys((middle, *whole[:1]))
            for move in range(-range_ns, range_ns + 1, _STEP_NS)
        ]
        near = [sensor for sensor in near if sensor.period_ns or sensor.lag_ns >= self._earliest_ns]
        found = self._trials(near, _SOME)
        best = min(found, key=lambda one: one.score)
        found.sort(key=lambda one: self._beside_if_rates_vary(one, best))
        starts: list[Trial] = []
        for one in found:
            if len(starts) < _STARTS and not any(self._near(one.sensor, other.sensor) for other in starts):
                starts.append(one)
        result: dict[Sensor, Trial] = {}
        for one in starts:
            # A counter that renews itself has no lag besides: not just a neighbour of the best lag.
            for sensor in {self._lag_corrected(one), *([] if one.sensor.lag_ns else [one.sensor])}:
                result.setdefault(sensor, self._trial(sensor))
        for step in _CLOSER_NS:
            best = min(result.values(), key=lambda one: one.score)
            fresh = [sensor for sensor in dict.fromkeys(best.sensor.moved(step)) if sensor not in result]
            result |= zip(fresh, self._trials(fresh), strict=True)
        return found, list(result.values())

    def _lag_corrected(self, trial: Trial) -> Sensor:
        """The sensor with its lag corrected by what the probe of it says, again and again."""
        for _ in range(_CORRECTIONS):
            moved = trial.sensor.corrected(trial.lag_ms, 0.0, 0.0, 0)
            if moved is trial.sensor:
                break
            trial = self._trial(moved, _SOME)
        return trial.sensor

    def _starts(self) -> list[Sensor]:
        """The best timings of coarse scans that are no neighbours, each moved to the best near it."""
        ranked = self._ranking(self._newest)
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
        if self.lead.kind is Kind.COUNTER:
            # In a loop, what one part of a period shows, other parts of other lengths show as well.
            framed = list(
                {each.window_ns: each for _, _, each in sorted(tried, reverse=True) if each.window_ns}.values()
            )
        tried += ranked(stretching(framed))
        if self.lead.refresh_ns and not self._faster:
            near = [plain(sensor) for sensor in self._distinct(tried, _NEAR)]
            if step < IN_STEP:
                # In a loop, many lags fit alike: the one that is all renewals' doing is tried in any case.
                tried += ranked(renewing([self._usual(near[0]), *near], self.lead))
            if self.lead.kind is Kind.COUNTER:
                tried += ranked(self._drifting(near[0]))
        if self._expected is not None:
            tried += ranked(self._expected.starts())
        whole, parts = ([one for one in tried if self._in_parts(one[2]) is part] for part in (False, True))
        # Parts of periods, of which some fit any loop, take no place of others.
        starts = self._distinct(whole, _STARTS, math.inf) + self._distinct(parts, _PARTS, math.inf)
        # In a loop that hardly varies, what is right and what is wrong are few milliseconds apart.
        around = [[*start.around(FINE_STEPS_NS[0])] for start in starts]
        closer = iter(ranked([each for some in around for each in some]))
        return [min(islice(closer, len(some)))[2] for some in around]

    def _ranking(self, windows: Windows) -> Callable[[Sequence[Sensor]], list[Ranked]]:
        """What scores timings by some windows, roughly."""
        scan = Scan(self._pieces, windows, self.columns, self._reach_ns, counts=self.lead.kind is Kind.COUNTER)

        def ranked(tried: Sequence[Sensor]) -> list[Ranked]:
            left = (scan.residuals(tried) + self._least).tolist()
            return [(self._score(sensor, left[i]), i, sensor) for i, sensor in enumerate(tried)]

        return ranked

    def _drifting(self, near: Sensor) -> list[Sensor]:
        """Sensors with periods near the nominal one, found in the newest windows, and then over ever more of them: over
        a longer time, a smaller difference shows."""
        alone, count, step = self._alone, _PERIODS, STEP_NS
        # `near` may measure a part of each period only because its period is wrong.
        shaped = dict.fromkeys((near, near._replace(window_ns=0)))
        found = [each for one in shaped for each in drifting(one, self.lead, alone.ends[-count:])]
        while found:
            newest = Windows(alone.starts[-count:], alone.ends[-count:], alone.masses[-count:])
            found = self._distinct(self._ranking(newest)(found), _FOLLOWED, math.inf)
            whole = count >= len(alone.ends)
            if whole and step < STEP_NS:
                break
            ends, count = newest.ends, 2 * count
            step = _FINER_NS if whole else STEP_NS
            span_ns = int(ends[-1] - alone.ends[-count:][0])
            found = near_periods(found, int(ends[len(ends) // 2]), span_ns, step)
        # A difference too small to show over all windows is left to the correction of the lag.
        span, nominal = int(alone.ends[-1] - alone.ends[0]), self.lead.refresh_ns
        return [each for each in found if abs(each.period_ns - nominal) * span > STEP_NS * nominal]

    def _any_phase(self, best: Sensor) -> list[Sensor]:
        """Renewals at any phase with no lag besides, if phases are told apart: where windows repeat, each may be."""
        if not best.period_ns or best.in_step or best.follows:
            return []
        some = renewing([self._usual(best)], self.lead)
        return [each._replace(blur_ns=best.blur_ns) for each in some if not each.lag_ns]

    def _usual(self, sensor: Sensor) -> Sensor:
        """One that lags by what renewals explain, and averages as this one does."""
        return plain(sensor._replace(lag_ns=0, period_ns=self.lead.refresh_ns))

    def _distinct(self, tried: Sequence[Ranked], most: int, far: float = _FAR_OFF) -> list[Sensor]:
        """The best that are not each other's neighbours."""
        apart: list[Sensor] = []
        first = min(tried)[0] if tried else 0.0
        for score, _, sensor in sorted(tried):
            if len(apart) == most or score > first + far:
                break
            if all(bool(sensor.period_ns) != bool(other.period_ns) or self._apart(sensor, other) for other in apart):
                apart.append(sensor)
        return apart

    def _apart(self, one: Sensor, other: Sensor) -> bool:
        """Whether two timings are not just neighbours on the grid."""
        if one.smooth != other.smooth or abs(one.window_ns - other.window_ns) > _ALIKE * other.window_ns:
            return True
        far = np.abs(self._middles(one) - self._middles(other)) > max(STEP_NS, one.window_ns // 10)
        return bool(2 * np.count_nonzero(far) > len(far))

    def _middles(self, sensor: Sensor) -> Ints:
        """The moments of some of the readings, moved to the mean age of what they are of."""
        if sensor not in self._middle_moments:
            self._middle_moments[sensor] = sensor.placed(self._some).middles(self._some)
        return self._middle_moments[sensor]

    @staticmethod
    def _near(one: Sensor, other: Sensor) -> bool:
        """Whether two timings are next to each other in the range that is tried."""
        return one._replace(lag_ns=0) == other._replace(lag_ns=0) and abs(one.lag_ns - other.lag_ns) <= _STEP_NS

    def _refined(self, sensors: Sequence[Sensor]) -> list[tuple[Sensor, float]]:
        """The best timing near each, and what it leaves; those aside that turn out to be hopeless on the way."""
        tried = self._with_residuals(sensors)
        for step in FINE_STEPS_NS[1:]:
            near = [list(sensor.around(step)) for sensor, _ in tried]
            left = dict(self._with_residuals([each for some in near for each in some]))
            found = [min(((each, left[each]) for each in some), key=self._rank) for some in near]
            best = min(found, key=self._rank)
            most = self._score(*best) + 2 * CERTAIN * self._repeated(best[0])
            # Another may still gain what this one did: on a coarse grid, most of what is left is the grid's doing.
            gain = _MORE * max(0.0, min(left for _, left in tried) - best[1])
            hopeful = [(each, left, max(left - gain, self._least)) for each, left in found]
            tried = [
                (each, left)
                for each, left, least in hopeful
                if self._score(each, least) < most or self._beside(each, least, best, self._discrepancy) < most
            ]
        return tried

    def _with_residuals(self, sensors: Sequence[Sensor]) -> list[tuple[Sensor, float]]:
        return list(zip(sensors, self.residuals(sensors), strict=True))

    def _unsettled(self, sensors: Sequence[Sensor]) -> list[Sensor]:
        """Each sensor with that error of its stamps which leaves clearly less residual; as it is if none does."""
        jitters = [jitter for jitter in JITTERS_NS if jitter <= 2 * self._unsteadiness_ns + JITTERS_NS[0]]
        tried = [[] if s.in_step else [s._replace(jitter_ns=jitter) for jitter in jitters] for s in sensors]
        left = dict(self._with_residuals([*sensors, *(each for some in tried for each in some)]))
        best = [min(some, key=left.__getitem__, default=sensor) for sensor, some in zip(sensors, tried, strict=True)]
        return [b if left[b] < left[s] * _BETTER else s for s, b in zip(sensors, best, strict=True)]
