"""The timings of a sensor that are tried first: shapes, and grids of lags, renewals and periods. Pure.

Each grid is rough; `timing_search` looks more closely around its best points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.sensor import FINE_STEPS_NS, Sensor, shown_period_ns, turn

_MS: Final = 1_000_000
#: The step of the grids.
STEP_NS: Final = 5 * _MS
LONGEST_LAG_NS: Final = 1000 * _MS
#: Changes of a lag that are tried with renewals, and the largest relative error of a period.
_MOVES_NS: Final = (-20 * _MS, 0, 20 * _MS)
_OFF: Final = 0.03
#: Half-widths of stamp errors that are tried.
JITTERS_NS: Final = tuple(ms * _MS for ms in (1, 2, 5, 10, 20, 50))
#: Windows and time constants of power sensors that are tried first, from below 25 of every 100 ms (A100, H100) to more
#: than 1 s (Yang et al., "Part-time Power Measurements", SC24).
MEANS_NS: Final = tuple(round(25 * _MS * 2 ** (step / 2)) for step in range(-1, 12))
SMOOTHINGS_NS: Final = tuple(round(15 * _MS * 2 ** (step * 0.7)) for step in range(9))
#: Parts of its period that an energy counter may count for all of it, like the same boards' power. The first one is
#: the shortest window that gives rates.
PARTS_NS: Final = tuple(round(12.5 * _MS * 2 ** (step / 2)) for step in range(6))
#: The steps of the search for the period of such a sensor, as the movement of a renewal over all windows.
PARTING_STEPS_NS: Final = (2_500_000, 1_000_000, 500_000, 250_000)
#: The window of most boards (H100, H200).
_USUAL_NS: Final = 100 * _MS
#: The step of a closer grid of lags.
LAG_STEP_NS: Final = 2_500_000
#: The step of a search for the edges of a window, as a share of the window.
_STRETCH: Final = 0.01
#: ... and that for a time constant.
_SMOOTHED: Final = 0.04
#: The step of a search for a renewal among readings in step, and the most steps.
_DIVIDED_NS: Final = 250_000
_MOST_DIVIDED: Final = 80
#: Readings determine their renewals if their phases are at least this much alike: within 80 % of the period.
_CLEAR_STEP: Final = 0.2
#: The regions with the most time, and their fewest executions, that show the length of a loop.
_LOOPS: Final = 4
_FEWEST_TURNS: Final = 20
#: Readings come once a period if the mean time between them is within this share of it.
_ONCE: Final = 0.01


def shapes(signal: Signal) -> Iterator[Sensor]:
    """The windows that are tried for a signal. For power and utilisation, stamps do not determine the window."""
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
    """The grid of lags for sensors of some shapes: the longer the window, the fewer lags.

    For the usual window of 100 ms, executions of a loop that hardly varies still distinguish lags 5 ms apart.
    """
    return [
        s._replace(lag_ns=lag, blur_ns=STEP_NS)
        for s in some
        for lag in range(0, LONGEST_LAG_NS + 1, STEP_NS if s.window_ns <= _USUAL_NS else s.window_ns // 10)
    ]


def following(some: Iterable[Sensor], starts: Ints, stamps: Ints) -> list[Sensor]:
    """The grid of lags behind the renewals of new readings at `stamps`. The readings before each came at `starts`.

    Empty if new readings do not come once a period. The phase is not searched: a clock that drifts by some millionths
    loses the phase of a period of 10 ms within minutes.
    """
    period = shown_period_ns(stamps)
    # A reader slightly faster than the sensor is in step with itself, but sometimes reads nothing new. Or new readings
    # come at every phase of the sensor's period: then their renewals are ambiguous.
    once = abs(float((stamps - starts).mean()) / period - 1) <= _ONCE + 1 / len(stamps)
    if not once or abs(turn(stamps, period)) < _CLEAR_STEP:
        return []
    step = min(STEP_NS, max(FINE_STEPS_NS[1], period // 5))
    return [
        s._replace(period_ns=period, lag_ns=lag, blur_ns=step, in_step=True, follows=True)
        for s, lag in product(some, range(0, LONGEST_LAG_NS + 1, step))
    ]


def stepping(some: Iterable[Sensor], signal: Signal, stamps: Ints) -> list[Sensor]:
    """Sensors with renewals once a nominal period and readings in step with them.

    Such readings do not determine the phase of the renewals, only their distance before the readings.
    """
    period = signal.refresh_ns
    # As far from the readings as possible, so that each counts for its intended renewal.
    phase = round((np.angle(turn(stamps, period)) / (2 * np.pi) + 0.5) % 1 * period)
    return [
        s._replace(period_ns=period, phase_ns=phase, lag_ns=s.lag_ns - period // 2, blur_ns=STEP_NS, in_step=True)
        for s in some
    ]


def dividing(some: Iterable[Sensor], stamps: Ints) -> list[Sensor]:
    """Sensors like `some` in step, but with a renewal among the readings that come once a period: a few readings come
    before it and most after it, or the other way round."""
    sensors = []
    for sensor in some:
        since = (stamps - sensor.phase_ns) % sensor.period_ns
        low, high = int(since.min()), int(since.max())
        step = max(_DIVIDED_NS, (high - low) // _MOST_DIVIDED)
        for move in range(low, high + step, step):
            phase = (sensor.phase_ns + move) % sensor.period_ns
            # The moments of the readings either before or after the renewal stay unchanged.
            sensors += [
                sensor._replace(phase_ns=phase, lag_ns=lag, blur_ns=_DIVIDED_NS, in_step=False)
                for lag in (sensor.lag_ns + move, sensor.lag_ns + move - sensor.period_ns)
            ]
    return [each for each in sensors if each.lag_ns > -STEP_NS]


def stretching(some: Iterable[Sensor]) -> list[Sensor]:
    """Sensors with windows whose edges are near the edges of `some`, within the step of the grid."""
    sensors = []
    for sensor in some:
        step = max(STEP_NS, round(sensor.window_ns * _STRETCH))
        late, long = (
            range(-most, most + 1) for most in (sensor.window_ns // 10 // step, sensor.window_ns // 4 // step)
        )
        if sensor.smooth:
            # Smoothing has no edges, but a mean age.
            windows = [round(sensor.window_ns * (1 + move * _SMOOTHED)) for move in range(-7, 8)]
            lags = {window: sensor.lag_ns + sensor.window_ns - window for window in windows}
            sensors += [
                sensor._replace(lag_ns=lag, window_ns=window)
                for window, middle in lags.items()
                for lag in {0, *(middle + move * step for move in range(-4, 5))}
            ]
            continue
        sensors += [
            sensor._replace(lag_ns=sensor.lag_ns + end * step, window_ns=sensor.window_ns + (start - end) * step)
            for end, start in product(late, long)
        ]
    return [each for each in sensors if each.window_ns > 0 and (each.period_ns or each.lag_ns >= 0)]


def plain(sensor: Sensor) -> Sensor:
    """The sensor without renewals that has a renewing sensor's mean lag."""
    return sensor._replace(period_ns=0, phase_ns=0, lag_ns=max(0, sensor.lag_ns + sensor.period_ns // 2), in_step=False)


def renewing(some: Iterable[Sensor], signal: Signal) -> list[Sensor]:
    """Sensors with renewals once a nominal period, at any phase, near `some` without renewals."""
    period = signal.refresh_ns
    renewed = dict.fromkeys(_renewed(s, period, move) for s in some for move in _MOVES_NS)
    return [s._replace(phase_ns=phase) for s in renewed for phase in _phases(period)]


def drifting(near: Sensor, signal: Signal, stamps: Ints) -> list[Sensor]:
    """Sensors with periods near the nominal one or equal to it, at any phase. Their lag is 0, or the lag of `near`, a
    sensor without renewals, minus the part that renewals explain.

    If the new readings at `stamps` come at another pace, also sensors with periods near that. A reader may be as slow,
    or the sensor. None with fewer than two readings.
    """
    if len(stamps) < 2:
        return []
    shown, span = shown_period_ns(stamps), max(1, int(stamps[-1] - stamps[0]))
    origin = int(stamps[len(stamps) // 2])
    sensors = []
    for middle in (signal.refresh_ns, *([shown] if abs(shown / signal.refresh_ns - 1) > _OFF else [])):
        step = max(1, round(2 * STEP_NS * middle / span))
        most = round(_OFF * middle) // step
        lag = _renewed(near, middle, 0).lag_ns
        lags = {0, lag} if lag > _MOVES_NS[-1] else {0}
        sensors += [
            near._replace(lag_ns=lag, period_ns=period, phase_ns=(origin + phase) % period, blur_ns=STEP_NS)
            for period in range(middle - most * step, middle + most * step + 1, step)
            for phase in _phases(period)
            for lag in sorted(lags)
        ]
    return sensors


def parting(some: Iterable[Sensor]) -> list[Sensor]:
    """Sensors like `some` with renewals at any phase that measure other parts of each period.

    In a loop, a part and the rest of the loop's length give readings that vary alike, with other rates.
    """
    return [
        s._replace(window_ns=part, phase_ns=phase, lag_ns=0, blur_ns=STEP_NS)
        for s in dict.fromkeys(s._replace(window_ns=0, phase_ns=0, lag_ns=0) for s in some)
        for part in PARTS_NS
        for phase in _phases(s.period_ns)
    ]


def locked(near: Sensor, signal: Signal, active: ActiveTime) -> list[Sensor]:
    """Sensors like `near` with renewals in step with the program's loop, if one of its multiples is near the nominal
    period.

    The readings of such a sensor hardly vary. Equal rates of all regions explain that under any other period.
    """
    nominal, sensors = signal.refresh_ns, []
    lengths = np.bincount(active.alone, active.ends - active.starts)
    for column in np.argsort(-lengths, kind="stable")[:_LOOPS].tolist():
        starts = active.starts[active.alone == column]
        if len(starts) < _FEWEST_TURNS:
            continue
        turn_ns = shown_period_ns(starts)
        period = turn_ns * max(1, round(nominal / turn_ns))
        if abs(period / nominal - 1) <= _OFF:
            some = (_renewed(near, period, move) for move in _MOVES_NS)
            sensors += [s._replace(window_ns=0, phase_ns=phase) for s in some for phase in _phases(period)]
    return list(dict.fromkeys(sensors))


def near_lags(sensor: Sensor, range_ns: int) -> list[Sensor]:
    """The sensor with every lag of the closer grid in a range around its own."""
    return [sensor._replace(lag_ns=sensor.lag_ns + move) for move in range(-range_ns, range_ns + 1, LAG_STEP_NS)]


def near_periods(some: Iterable[Sensor], pivot_ns: int, span_ns: int, step_ns: int) -> list[Sensor]:
    """Sensors with periods near the periods of `some`: their renewals move by up to four steps over a span of time.

    The last renewal before the pivot stays, or moves by a step.
    """
    sensors = []
    for sensor, move, turns in product(some, (-step_ns, 0, step_ns), range(-2, 3)):
        renewal = pivot_ns - (pivot_ns - sensor.phase_ns) % sensor.period_ns + move
        period = sensor.period_ns + turns * max(1, round(2 * step_ns * sensor.period_ns / max(1, span_ns)))
        sensors.append(sensor._replace(period_ns=period, phase_ns=renewal % period, blur_ns=step_ns))
    return sensors


def _phases(period_ns: int) -> range:
    return range(0, period_ns, STEP_NS)


def _renewed(sensor: Sensor, period_ns: int, move_ns: int) -> Sensor:
    lag = max(0, sensor.lag_ns - period_ns // 2 + move_ns)
    return sensor._replace(period_ns=period_ns, lag_ns=lag, blur_ns=STEP_NS)
