"""The timings of a sensor that are tried first: shapes, and grids of lags, renewals and periods. Pure.

Each grid is rough; `timing_search` looks more closely around what is best on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.sensor import FINE_STEPS_NS, Sensor, shown_period_ns, turn

_MS: Final = 1_000_000
#: The step of the grids.
STEP_NS: Final = 5 * _MS
LONGEST_LAG_NS: Final = 1000 * _MS
#: How far from what they were without renewals lags are tried with them, and by what share a period may be off.
_MOVES_NS: Final = (-20 * _MS, 0, 20 * _MS)
_OFF: Final = 0.03
#: Half-widths of the stamps' errors that are tried.
JITTERS_NS: Final = tuple(ms * _MS for ms in (1, 2, 5, 10, 20, 50))
#: Windows and time constants of power sensors that are tried at first, from below 25 of every 100 ms (A100, H100) to
#: more than 1 s (Yang et al., "Part-time Power Measurements", SC24).
MEANS_NS: Final = tuple(round(25 * _MS * 2 ** (step / 2)) for step in range(-1, 12))
SMOOTHINGS_NS: Final = tuple(round(15 * _MS * 2 ** (step * 0.7)) for step in range(9))
#: An energy counter may take the last so much of each of its periods for all of it, as the same boards' power does.
PARTS_NS: Final = tuple(round(12.5 * _MS * 2 ** (step / 2)) for step in range(1, 6))
#: The edges of a window are looked for in steps of this share of it.
_STRETCH: Final = 0.01
#: ... and a time constant in steps of this one.
_SMOOTHED: Final = 0.04
#: A renewal among readings that are in step is looked for in steps of this, but no more steps than this.
_DIVIDED_NS: Final = 250_000
_MOST_DIVIDED: Final = 80
#: Readings are told apart by renewals they are of if their phases are this much alike: within 80 % of the period.
_CLEAR_STEP: Final = 0.2
#: Readings come once a period if what lies between them is, on average, within this share of it.
_ONCE: Final = 0.01


def shapes(signal: Signal) -> Iterator[Sensor]:
    """The windows that are tried for a signal. Power and utilisation average over one that stamps do not tell."""
    if signal is not rows.POWER_AVERAGE:
        yield Sensor()
    if signal is rows.ENERGY:
        yield from (Sensor(window_ns=window) for window in PARTS_NS)
    if signal not in (rows.POWER_AVERAGE, rows.UTILIZATION):
        return
    yield from (Sensor(window_ns=window) for window in MEANS_NS)
    if signal is rows.UTILIZATION:
        return
    yield from (Sensor(window_ns=window, smooth=True) for window in SMOOTHINGS_NS)


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
    if not once or abs(turn(stamps, period)) < _CLEAR_STEP:
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
    phase = round((np.angle(turn(stamps, period)) / (2 * np.pi) + 0.5) % 1 * period)
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
    """Sensors whose periods are near the nominal one or equal to it, at any phase. They have no lag, or the lag of
    `near`, a sensor that only lags, beyond what renewals explain."""
    nominal, span = signal.refresh_ns, max(1, int(stamps[-1] - stamps[0]))
    step = max(1, round(2 * STEP_NS * nominal / span))
    most = round(_OFF * nominal) // step
    origin = int(stamps[len(stamps) // 2])
    lag = _renewed(near, nominal, 0).lag_ns
    lags = {0, lag} if lag > _MOVES_NS[-1] else {0}
    return [
        near._replace(lag_ns=lag, period_ns=period, phase_ns=(origin + phase) % period, blur_ns=STEP_NS)
        for period in range(nominal - most * step, nominal + most * step + 1, step)
        for phase in _phases(period)
        for lag in sorted(lags)
    ]


def near_periods(some: Iterable[Sensor], pivot_ns: int, span_ns: int, step_ns: int) -> list[Sensor]:
    """Sensors with periods near those of `some`: over a span of time, their renewals move by up to four steps.

    The last renewal before the pivot stays, or moves by a step.
    """
    found = []
    for sensor, move, turns in product(some, (-step_ns, 0, step_ns), range(-2, 3)):
        renewal = pivot_ns - (pivot_ns - sensor.phase_ns) % sensor.period_ns + move
        period = sensor.period_ns + turns * max(1, round(2 * step_ns * sensor.period_ns / max(1, span_ns)))
        found.append(sensor._replace(period_ns=period, phase_ns=renewal % period, blur_ns=step_ns))
    return found


def _phases(period_ns: int) -> range:
    return range(0, period_ns, STEP_NS)


def _renewed(sensor: Sensor, period_ns: int, move_ns: int) -> Sensor:
    lag = max(0, sensor.lag_ns - period_ns // 2 + move_ns)
    return sensor._replace(period_ns=period_ns, lag_ns=lag, blur_ns=STEP_NS)
