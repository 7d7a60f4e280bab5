"""What a reading is of: how far behind its stamp a sensor is, and over how long it averages. Pure.

A driver stamps a reading with the moment of the call, but what it hands out is older: GPM and the energy counter renew
themselves every 100 ms at a phase that no reader is told, power is an average over a window that differs between
models, other sensors lag. None of it is documented well enough to rely on, so it is looked for in the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Floats, Ints

_MS: Final = 1_000_000
#: Steps of the grid, coarse to fine.
STEP_NS: Final = 5 * _MS
FINE_STEPS_NS: Final = (2 * _MS, _MS // 2, _MS // 10)
LONGEST_LAG_NS: Final = 1000 * _MS
#: How far from what they were without renewals lags are tried with them, and by what share a period may be off.
_MOVES_NS: Final = (-20 * _MS, 0, 20 * _MS)
_OFF: Final = 0.03
#: Stamps are in step with a period if their phases are this much alike (the length of the mean of unit vectors): for
#: 100 ms, within about 5 ms, and may be if within 20 ms.
IN_STEP: Final = 0.95
NEAR_STEP: Final = 0.5
#: A driver call takes up to this long, so that its stamp may be on the other side of a renewal than its reading.
GUARD_NS: Final = 2 * _MS
#: Half-widths of the stamps' errors that are tried.
JITTERS_NS: Final = tuple(ms * _MS for ms in (1, 2, 5, 10, 20, 50))
#: Windows and time constants of power sensors that are tried at first, from below 25 of every 100 ms (A100, H100) to
#: more than 1 s (Yang et al., "Part-time Power Measurements", SC24), and by what share they are changed then.
MEANS_NS: Final = tuple(round(25 * _MS * 2 ** (step / 2)) for step in range(-1, 12))
SMOOTHINGS_NS: Final = tuple(round(15 * _MS * 2 ** (step * 0.7)) for step in range(9))
_WINDOW_STEP: Final = 0.08
#: The edges of a window are looked for in steps of this share of it.
_STRETCH: Final = 0.01
#: ... and a time constant in steps of this one.
_SMOOTHED: Final = 0.04
#: Windows that boards are known to have (ibid.), and how near to one counts.
USUAL_NS: Final = (25 * _MS, 100 * _MS, 1000 * _MS // 6, 1000 * _MS)
_USUAL: Final = 0.04
#: Corners of the staircase that stands for an exponential: each step holds as much of it.
_STEPS: Final = 24
#: So many time constants back, and a little more, its last step ends.
_LAST_CORNER: Final = float(np.log(_STEPS)) + 2.0
#: Moments at which an uncertain stamp is tried, at most.
_MOST_TRIES: Final = 16
#: New readings in a row that show how often a counter is renewed, and the fewest that do.
_RUN: Final = 20
_SHORTEST_RUN: Final = 4
#: ... and in which their period is looked for at first.
_LONG_RUN: Final = 100
#: Periods that are tried over a stretch of time, from one turn less in it to one turn more.
_TURNS: Final = 41
#: Phases are counted in so many parts of a period, and all in all are worth as much as this share of the readings.
_BINS: Final = 40
_BREADTH: Final = 0.02
#: A renewal among readings that are in step is looked for in steps of this, but no more steps than this.
_DIVIDED_NS: Final = 250_000
_MOST_DIVIDED: Final = 80
#: Readings are told apart by renewals they are of if their phases are this much alike: within 80 % of the period.
_CLEAR_STEP: Final = 0.2
#: A timing is corrected by no more than this at a time, a window by no more than this share, and neither by less.
_FARTHEST_NS: Final = 3 * _MS
_FARTHEST: Final = 0.2
_NEGLIGIBLE_NS: Final = 50_000
_MINUTE_NS: Final = 60_000 * _MS
#: Readings come once a period if what lies between them is, on average, within this share of it.
_ONCE: Final = 0.01


class Sensor(NamedTuple):
    """What moment a reading stamped `t` is of: `lag_ns` before `t`, or before the sensor's last renewal, which comes
    every `period_ns` at `phase_ns` (0 for no such period).

    It is the mean since the reading before (`window_ns` 0), over the last `window_ns`, or, `smooth`, weighted by an
    exponential of that time constant. `blur_ns` is how far the search leaves the moment open, `jitter_ns` the
    half-width of the stamps' own error. `in_step`: readings come once a period, always at about the same phase of it.
    `follows`: renewals come faster than the catalogue has it. With a period, they are where the readings themselves
    show them, and `lag_ns` is how far before the readings' mean phase, until `placed` has found that.
    """

    lag_ns: int = 0
    period_ns: int = 0
    phase_ns: int = 0
    window_ns: int = 0
    smooth: bool = False
    blur_ns: int = 0
    jitter_ns: int = 0
    in_step: bool = False
    follows: bool = False

    def placed(self, stamps: Ints) -> Sensor:
        """The sensor with its renewals where readings stamped `stamps` show them, each of another one."""
        if not (self.follows and self.period_ns and len(stamps)):
            return self
        period, phases = self.period_ns, stamps % self.period_ns
        mean = float(np.angle(_turn(stamps, period))) / (2 * np.pi)
        counts = np.bincount(phases * _BINS // period, minlength=_BINS)
        near = sum(np.roll(counts, move) for move in (-1, 0, 1)) / len(stamps)
        middles = (np.arange(_BINS) + 0.5) / _BINS
        # Between the last reading of one renewal and the first of the next: where few are, far from their mean.
        apart = float(middles[(near + _BREADTH * np.cos(2 * np.pi * (middles - mean))).argmin()])
        phase = round(apart * period)
        since = round(float(((stamps - phase) % period).mean()))
        return self._replace(phase_ns=phase, lag_ns=self.lag_ns - since, follows=False)

    def corrected(self, lag_ms: float, window_ms: float, drift: float, now_ns: int) -> Sensor:
        """The sensor with so much more lag and window, and with a lag that grows by `drift` ms a minute, which is a
        period that is shorter; itself if that is next to nothing. The renewal next to `now_ns` stays where it is."""
        lag = float(np.clip(lag_ms * _MS, -_FARTHEST_NS, _FARTHEST_NS))
        far = _FARTHEST * self.window_ns
        window = float(np.clip(window_ms * _MS, -far, far))
        lag, window, drift = (part if abs(part) >= _NEGLIGIBLE_NS else 0.0 for part in (lag, window, drift * _MS))
        shorter = drift * self.period_ns / _MINUTE_NS if self.period_ns else 0.0
        if not (lag or window or drift):
            return self
        found = self._replace(lag_ns=self.lag_ns + round(lag), window_ns=self.window_ns + round(window))
        if round(shorter):
            renewal = now_ns - (now_ns - self.phase_ns) % self.period_ns
            period = self.period_ns - round(shorter)
            found = found._replace(period_ns=period, phase_ns=renewal % period)
        return found

    def refuted(self, signal: Signal, stamps: Ints) -> bool:
        """Whether new readings, stamped `stamps`, come faster than the renewals that this sensor was taken to have."""
        return bool(self.period_ns) and not self.follows and renews_faster(signal, stamps)

    def moments(self, stamps: Ints) -> Ints:
        """The moments that the readings stamped `stamps` are of."""
        if not self.period_ns:
            return stamps - self.lag_ns
        return stamps - (stamps - self.phase_ns) % self.period_ns - self.lag_ns

    def middles(self, stamps: Ints) -> Ints:
        """The same, moved to the mean age of what the readings are of."""
        return self.moments(stamps) - (self.window_ns if self.smooth else self.window_ns // 2)

    def clear(self, stamps: Ints) -> npt.NDArray[np.bool_]:
        """Which stamps are far enough from a renewal to tell which side of it they are on: a call takes time."""
        if not self.period_ns:
            return np.ones(len(stamps), bool)
        guard, since = GUARD_NS + self.jitter_ns + self.blur_ns // 2, (stamps - self.phase_ns) % self.period_ns
        return (since >= guard) & (since < self.period_ns - guard)

    @property
    def usual(self) -> bool:
        """Whether boards are known that average over such a window."""
        return not self.smooth and any(abs(self.window_ns / known - 1) <= _USUAL for known in USUAL_NS)

    @property
    def reach_ns(self) -> int:
        """How far before its stamp a reading may look, its own row aside."""
        back = math.ceil(self.window_ns * _LAST_CORNER) if self.smooth else self.window_ns
        return max(self.lag_ns, 0) + self.period_ns + back + self.jitter_ns + self.blur_ns

    @property
    def ahead_ns(self) -> int:
        """How far after its stamp the moment of a reading may be: the stamp came late, or was off."""
        half = max(self.jitter_ns, self.blur_ns // 2)
        if self.follows:
            return max(0, -self.lag_ns) + half
        # In step, half a period lies between a renewal and the readings that are counted from it.
        return max(0, -self.lag_ns - (self.period_ns * 3 // 10 if self.in_step else 0)) + half

    @lru_cache(64)  # noqa: B019 - a frozen value: the same sensor is asked for every window
    def spread(self) -> Ints:
        """Offsets, equally likely, by which a reading's moment may differ from `moments`."""
        # Stamps of renewals are not used near them, so their error does not move the moment.
        half = self.blur_ns // 2 if self.period_ns else max(self.jitter_ns, self.blur_ns // 2)
        # Half of a grid's step is as well stood for by two moments; an error of the stamps is not.
        fewest = 1 if half <= _MS // 5 or self.smooth else 2
        tries = fewest if half > self.jitter_ns else min(_MOST_TRIES, max(fewest, 2 * -(-half // _MS)))
        return np.rint((np.arange(tries) + 0.5) * 2 * half / tries - half).astype(np.int64)

    @lru_cache(64)  # noqa: B019
    def kernel(self) -> tuple[Ints, Floats]:
        """Offsets from a reading's moment and the factors of the active time up to them whose sum is the share of the
        reading: only for a sensor with a window of its own."""
        if not self.smooth:
            offsets, factors = np.array([0, -self.window_ns]), np.array([1.0, -1.0]) / self.window_ns
        else:
            left = 1 - np.arange(_STEPS) / _STEPS
            # The last step has no end of its own: it gets the place of its mean.
            edges = np.append(-np.log(left), _LAST_CORNER) * self.window_ns
            heights = 1 / _STEPS / np.diff(edges)
            offsets = -np.rint(edges).astype(np.int64)
            factors = np.append(heights, 0.0) - np.append(0.0, heights)
        spread = self.spread()
        return (offsets[:, None] + spread).ravel(), np.repeat(factors / len(spread), len(spread))

    def around(self, step_ns: int) -> Iterator[Sensor]:
        """This one and its neighbours on a finer grid, as far as the coarser one leaves it open."""
        most = -(-self.blur_ns // (2 * step_ns))
        for move in range(-most * step_ns, most * step_ns + 1, step_ns):
            if self.period_ns or self.lag_ns + move >= 0:
                yield self._replace(lag_ns=self.lag_ns + move, blur_ns=step_ns)
            if move and self.period_ns and not self.in_step:
                phase = (self.phase_ns + move) % self.period_ns
                yield self._replace(phase_ns=phase, blur_ns=step_ns)
                # The same moments, but for the readings that are taken for those of another renewal.
                yield self._replace(phase_ns=phase, lag_ns=self.lag_ns + move, blur_ns=step_ns)
        if self.window_ns:
            # A longer window looks further back on average: the lag makes up for that.
            for share in (-2, -1, 1, 2):
                longer = round(self.window_ns * share * _WINDOW_STEP * min(1.0, step_ns / FINE_STEPS_NS[0]))
                lag = self.lag_ns - (longer if self.smooth else longer // 2)
                yield self._replace(window_ns=self.window_ns + longer, lag_ns=lag, blur_ns=step_ns)
                yield self._replace(window_ns=self.window_ns + longer, blur_ns=step_ns)


def shapes(signal: Signal) -> Iterator[Sensor]:
    """The windows that are tried for a signal. Power and utilisation average over one that stamps do not tell."""
    if signal is not rows.POWER_AVERAGE:
        yield Sensor()
    if signal not in (rows.POWER_AVERAGE, rows.UTILIZATION):
        return
    yield from (Sensor(window_ns=window) for window in MEANS_NS)
    if signal is rows.UTILIZATION:
        return
    yield from (Sensor(window_ns=window, smooth=True) for window in SMOOTHINGS_NS)


def renews_faster(signal: Signal, stamps: Ints) -> bool:
    """Whether new readings, stamped `stamps`, come faster than a counter is known to renew itself.

    Of `m + 1` new readings, `m - 1` whole periods at least lie between the first and the last.
    """
    most = len(stamps) - 1
    if signal.kind is not Kind.COUNTER or most < _SHORTEST_RUN:
        return False
    slack = 2 * unsteadiness_ns(stamps)
    return any(
        int((stamps[m:] - stamps[:-m]).min()) + slack < (m - 1) * signal.refresh_ns for m in {min(_RUN, most), most}
    )


def shown_period_ns(stamps: Ints) -> int:
    """The period that new readings come once in, found where they come the fastest, and then over ever more of them.

    It is the sensor's if it was asked more often than that, and the reader's if not.
    """
    m = min(_LONG_RUN, len(stamps) - 1)
    spans = stamps[m:] - stamps[:-m]
    low = int(spans.argmin())
    high, period = low + m + 1, float(spans[low]) / m
    while True:
        at = stamps[low:high] - stamps[low]
        # Phases of a period that is one turn off over all of them cancel out.
        for turns in (1.0, 2 / _TURNS):
            tried = 1 / (1 / period + np.linspace(-turns, turns, _TURNS) / max(1, int(at[-1])))
            period = float(tried[np.abs([np.exp(2j * np.pi * at / each).mean() for each in tried]).argmax()])
        if high - low == len(stamps):
            return round(period)
        more = high - low
        low, high = max(0, low - more // 2), min(len(stamps), high + more)


def in_step(signal: Signal, stamps: Ints) -> float:
    """How much readings come in step with the signal's renewals: from 0, for not at all or no renewals, to 1."""
    period = signal.refresh_ns
    return float(abs(_turn(stamps, period))) if period else 0.0


def _turn(stamps: Ints, period_ns: int) -> complex:
    return complex(np.exp(2j * np.pi * (stamps % period_ns) / period_ns).mean())


def unsteadiness_ns(stamps: Ints) -> int:
    """How far stamps may be off by themselves, judged by how unevenly they come (for errors that are alike likely up to
    a bound, near that bound). A reader that keeps time does not err by more."""
    if len(stamps) < 3:
        return 0
    steps = np.diff(stamps)
    # Differences of two such errors lie within 1.55 times the bound in 95 % of cases.
    return int(np.quantile(np.abs(steps - np.median(steps)), 0.95) / 1.55)


def lagging(some: Iterable[Sensor]) -> list[Sensor]:
    """The grid of lags, for sensors of some shapes: the longer the window, the fewer."""
    return [
        s._replace(lag_ns=lag, blur_ns=STEP_NS)
        for s in some
        for lag in range(0, LONGEST_LAG_NS + 1, max(STEP_NS, s.window_ns // 10))
    ]


def following(some: Iterable[Sensor], starts: Ints, stamps: Ints) -> list[Sensor]:
    """The grid of lags behind the renewals that new readings show, which came at `stamps`, and the ones before each at
    `starts`; none if they do not come once a period.

    No phase is looked for: a clock that drifts by some millionths loses that of a period of 10 ms within minutes.
    """
    period = shown_period_ns(stamps)
    # A reader that is hardly faster than the sensor is in step with itself, but now and then finds nothing new; or new
    # readings come at every phase of the sensor's period, so that it is not clear which renewal they are of.
    once = abs(float((stamps - starts).mean()) / period - 1) <= _ONCE + 1 / len(stamps)
    if not once or abs(_turn(stamps, period)) < _CLEAR_STEP:
        return []
    step = min(STEP_NS, max(FINE_STEPS_NS[1], period // 5))
    return [
        s._replace(period_ns=period, lag_ns=lag, blur_ns=step, in_step=True, follows=True)
        for s, lag in product(some, range(0, LONGEST_LAG_NS + 1, step))
    ]


def stepping(some: Iterable[Sensor], signal: Signal, stamps: Ints) -> list[Sensor]:
    """Sensors that renew themselves once a nominal period, with readings in step with the renewals.

    Such readings do not tell the phase of the renewals, only how far before the readings they are.
    """
    period = signal.refresh_ns
    # As far from the readings as can be, so that each is taken for the renewal that it is meant to be.
    phase = round((np.angle(_turn(stamps, period)) / (2 * np.pi) + 0.5) % 1 * period)
    return [
        s._replace(period_ns=period, phase_ns=phase, lag_ns=s.lag_ns - period // 2, blur_ns=STEP_NS, in_step=True)
        for s in some
    ]


def dividing(some: Iterable[Sensor], stamps: Ints) -> list[Sensor]:
    """Sensors like some that are in step, but with a renewal among the readings that come once a period: a few of them
    come before it and most after, or the other way round."""
    found = []
    for sensor in some:
        since = (stamps - sensor.phase_ns) % sensor.period_ns
        low, high = int(since.min()), int(since.max())
        step = max(_DIVIDED_NS, (high - low) // _MOST_DIVIDED)
        for move in range(low, high + step, step):
            phase = (sensor.phase_ns + move) % sensor.period_ns
            # What the readings before that moment are of, or those after it, stays as it is.
            found += [
                sensor._replace(phase_ns=phase, lag_ns=lag, blur_ns=_DIVIDED_NS, in_step=False)
                for lag in (sensor.lag_ns + move, sensor.lag_ns + move - sensor.period_ns)
            ]
    return [each for each in found if each.lag_ns > -STEP_NS]


def stretching(some: Iterable[Sensor]) -> list[Sensor]:
    """Sensors whose windows begin and end near where those of some do, as far as the grid leaves it open."""
    found = []
    for sensor in some:
        step = max(STEP_NS, round(sensor.window_ns * _STRETCH))
        late, long = (
            range(-most, most + 1) for most in (sensor.window_ns // 10 // step, sensor.window_ns // 4 // step)
        )
        if sensor.smooth:
            # What is smoothed has no edges, but a mean age.
            windows = [round(sensor.window_ns * (1 + move * _SMOOTHED)) for move in range(-7, 8)]
            lags = {window: sensor.lag_ns + sensor.window_ns - window for window in windows}
            found += [
                sensor._replace(lag_ns=lag, window_ns=window)
                for window, middle in lags.items()
                for lag in {0, *(middle + move * step for move in range(-4, 5))}
            ]
            continue
        found += [
            sensor._replace(lag_ns=sensor.lag_ns + end * step, window_ns=sensor.window_ns + (start - end) * step)
            for end, start in product(late, long)
        ]
    return [each for each in found if each.window_ns > 0 and (each.period_ns or each.lag_ns >= 0)]


def plain(sensor: Sensor) -> Sensor:
    """The sensor that only lags which a renewing one is like on average."""
    return sensor._replace(period_ns=0, phase_ns=0, lag_ns=max(0, sensor.lag_ns + sensor.period_ns // 2), in_step=False)


def renewing(some: Iterable[Sensor], signal: Signal) -> list[Sensor]:
    """Sensors that renew themselves once a nominal period, at any phase, near some that only lag."""
    period = signal.refresh_ns
    renewed = dict.fromkeys(_renewed(s, period, move) for s in some for move in _MOVES_NS)
    return [s._replace(phase_ns=phase) for s in renewed for phase in _phases(period)]


def drifting(near: Sensor, signal: Signal, stamps: Ints) -> list[Sensor]:
    """Sensors whose period is a little longer or shorter than the nominal one, with no lag besides, or the one that
    `near`, which only lags, has beyond what renewals explain.
    """
    nominal, span = signal.refresh_ns, max(1, int(stamps[-1] - stamps[0]))
    step = max(1, round(2 * STEP_NS * nominal / span))
    most = round(_OFF * nominal) // step
    origin = int(stamps[len(stamps) // 2])
    lag = _renewed(near, nominal, 0).lag_ns
    lags = {0, lag} if lag > _MOVES_NS[-1] else {0}
    return [
        near._replace(lag_ns=lag, period_ns=period, phase_ns=(origin + phase) % period, blur_ns=STEP_NS)
        for period in (nominal + move * step for move in range(-most, most + 1) if move)
        for phase in range(0, period, period // 12)
        for lag in sorted(lags)
    ]


def _phases(period_ns: int) -> range:
    return range(0, period_ns, STEP_NS)


def _renewed(sensor: Sensor, period_ns: int, move_ns: int) -> Sensor:
    lag = max(0, sensor.lag_ns - period_ns // 2 + move_ns)
    return sensor._replace(period_ns=period_ns, lag_ns=lag, blur_ns=STEP_NS)
