"""What moments a sensor's readings are of, against sums over every nanosecond (of small sensors)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.catalogue.signals import GRAPHICS, POWER_AVERAGE
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.solving.design import Design, Windows
from gpu_profile.join.unmixing.timing.timings import STEP_NS, lagging, renewing, shapes, stepping
from gpu_profile.join.unmixing.windows.active_time import ActiveTime, Placed
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.sensor import FINE_STEPS_NS, Sensor, clear_of, moments_of

MS = 1_000_000
few = settings(max_examples=60)


def sensor_of(**fields: Any) -> Sensor:
    # Without types to look at, nothing but what is listed is drawn.
    return Sensor(**fields)


sensors = st.builds(
    sensor_of,
    lag_ns=st.integers(-40 * MS, 120 * MS),
    window_ns=st.sampled_from([0, 25 * MS, 100 * MS, 1000 * MS]),
    blur_ns=st.sampled_from([0, MS // 10, MS // 2, 2 * MS, 10 * MS]),
    jitter_ns=st.sampled_from([0, MS, 5 * MS, 50 * MS]),
) | st.builds(
    sensor_of,
    lag_ns=st.integers(-56 * MS, 76 * MS),
    period_ns=st.just(100 * MS),
    phase_ns=st.integers(0, 100 * MS - 1),
    window_ns=st.sampled_from([0, 25 * MS, 100 * MS, 500 * MS]),
    smooth=st.booleans(),
    blur_ns=st.sampled_from([0, MS // 10, 10 * MS]),
).filter(lambda one: one.window_ns or not one.smooth)  # an exponential has a time constant
stamps = st.lists(st.integers(10**18, 10**18 + 10**10), min_size=2, max_size=30, unique=True).map(
    lambda some: np.array(sorted(some), np.int64)
)


class Asked(ActiveTime):
    """Active time that notes which moments it was asked for."""

    asked: list[Ints]

    def until(self, moments: Ints, columns: int, placed: Placed | None = None) -> np.ndarray:
        self.asked.append(moments)
        return np.zeros((columns, len(moments)))


def nothing() -> Asked:
    empty, none = np.zeros(0, np.int64), np.zeros(0, np.int16)
    result = Asked(*ActiveTime.of(Pieces(empty, empty, empty), none, none))
    result.asked = []
    return result


# ---------------------------------------------------------------------- moments


@few
@given(sensors, stamps)
def test_a_reading_is_of_the_last_renewal_before_it_or_of_the_moment_itself_less_the_lag(
    sensor: Sensor, some: Ints
) -> None:
    moments = sensor.moments(some)
    for stamp, moment in zip(some.tolist(), moments.tolist(), strict=True):
        renewal = moment + sensor.lag_ns
        if sensor.period_ns:
            assert 0 <= stamp - renewal < sensor.period_ns
            assert (renewal - sensor.phase_ns) % sensor.period_ns == 0
        else:
            assert renewal == stamp
    assert (np.diff(moments) >= 0).all()


@few
@given(st.lists(sensors, max_size=5), stamps)
def test_moments_under_several_sensors_are_those_under_each(some: list[Sensor], at: Ints) -> None:
    found = moments_of(some, at)
    assert found.shape == (len(some), len(at))
    for sensor, moments in zip(some, found, strict=True):
        assert moments.tolist() == sensor.moments(at).tolist()
    clear = [sensor.clear(at).tolist() for sensor in some]
    assert clear_of(some, at).tolist() == clear


@few
@given(sensors, stamps)
def test_stamps_are_clear_where_a_call_that_takes_a_while_changes_no_moment(sensor: Sensor, some: Ints) -> None:
    clear = sensor.clear(some)
    if not sensor.period_ns:
        assert clear.all()
    for slip in (-2 * MS, -MS, MS, 2 * MS - 1):
        moved = sensor.moments(some[clear] + slip) - sensor.moments(some[clear])
        assert (moved == (0 if sensor.period_ns else slip)).all()


@few
@given(sensors, stamps)
def test_no_reading_looks_farther_back_or_ahead_than_is_said(sensor: Sensor, some: Ints) -> None:
    windows = Windows(some[:-1], some[1:], np.ones((len(some) - 1, 1)))
    active = nothing()
    Design(windows, sensor, counts=False).shares(active, 1)
    for asked in active.asked:
        if len(asked):
            assert asked.min() >= some[0] - sensor.reach_ns
            assert asked.max() <= some[-1] + sensor.ahead_ns


@few
@given(st.integers(0, 100 * MS - 1), st.lists(st.integers(-9 * MS, 9 * MS), min_size=10, max_size=40))
def test_no_reading_in_step_is_of_later_than_is_said(phase: int, slips: list[int]) -> None:
    some = 10**18 + np.arange(len(slips) + 1) * 100 * MS + phase + np.array([0, *slips])
    windows = Windows(some[:-1], some[1:], np.ones((len(slips), 1)))
    for start in stepping([Sensor()], GRAPHICS, some):
        for sensor in (start, *start.around(FINE_STEPS_NS[0])):
            active = nothing()
            Design(windows, sensor, counts=False).shares(active, 1)
            for asked in active.asked:
                if len(asked):
                    assert asked.max() <= some[-1] + sensor.ahead_ns
                    assert asked.min() >= some[0] - sensor.reach_ns


# ---------------------------------------------------------------------- windows


@few
@given(sensors)
def test_what_a_stamps_error_may_move_is_spread_evenly_about_it(sensor: Sensor) -> None:
    spread = sensor.spread()
    assert np.array_equal(spread, -spread[::-1])
    assert len(spread) <= 16
    half = sensor.blur_ns // 2 if sensor.period_ns else max(sensor.jitter_ns, sensor.blur_ns // 2)
    assert np.abs(spread).max() <= half
    if len(spread) > 1:
        assert len(set(np.diff(spread).tolist())) <= 2


@few
@given(sensors.filter(lambda s: s.window_ns > 0))
def test_of_work_that_never_stops_every_reading_is_all(sensor: Sensor) -> None:
    offsets, factors = sensor.kernel()
    # The share of a region that is active all the time: time up to each corner, times its factor.
    assert float(offsets.astype(np.float64) @ factors) == pytest.approx(1.0, abs=1e-6)
    assert float(factors.sum()) * sensor.window_ns == pytest.approx(0.0, abs=1e-6)


@few
@given(st.sampled_from(list(shapes(POWER_AVERAGE))), st.floats(0.02, 6), st.floats(0.05, 6))
def test_the_corners_that_stand_for_a_window_give_the_share_of_what_ran_in_it(
    sensor: Sensor, since: float, length: float
) -> None:
    offsets, factors = sensor.kernel()
    tau = sensor.window_ns
    start, end = -(since + length) * tau, -since * tau
    share = float(np.clip(offsets - start, 0, end - start) @ factors)
    if sensor.smooth:
        exact = np.exp(end / tau) - np.exp(start / tau)
        # One corner's step is a twenty-fourth; a region that begins inside two of them is off by parts of each.
        assert share == pytest.approx(exact, abs=0.02)
    else:
        exact = (min(max(end, -tau), 0) - min(max(start, -tau), 0)) / tau
        assert share == pytest.approx(exact, abs=1e-6)


@few
@given(st.sampled_from([s for s in shapes(POWER_AVERAGE) if s.smooth]), st.floats(0.02, 20), st.floats(0, 1))
def test_an_exponential_of_anything_that_comes_and_goes_is_within_a_percent(
    sensor: Sensor, cycle_ms: float, duty: float
) -> None:
    offsets, factors = sensor.kernel()
    cycle = cycle_ms * MS
    moments = 1e12 + np.linspace(0, cycle, 50, endpoint=False)

    def active(at: np.ndarray) -> np.ndarray:
        return np.asarray(at // cycle * duty * cycle + np.minimum(at % cycle, duty * cycle))

    shares = active(moments[:, None] + offsets) @ factors
    assert shares.mean() == pytest.approx(duty, abs=0.01)


# ---------------------------------------------------------------------- the grid


@few
@given(sensors, st.sampled_from(FINE_STEPS_NS))
def test_the_finer_grid_holds_the_point_itself_and_reaches_as_far_as_the_coarser_left_open(
    sensor: Sensor, step: int
) -> None:
    near = list(sensor.around(step))
    assert sensor._replace(blur_ns=step) in near or (not sensor.period_ns and sensor.lag_ns < 0)
    assert {one.blur_ns for one in near} <= {step}
    if sensor.period_ns or sensor.lag_ns > sensor.blur_ns + 2 * step:
        moves = [one.lag_ns - sensor.lag_ns for one in near if one.phase_ns == sensor.phase_ns]
        assert min(moves) <= -(sensor.blur_ns // 2)
        assert max(moves) >= sensor.blur_ns // 2
    assert all(0 <= one.phase_ns < max(1, one.period_ns) for one in near)


@few
@given(stamps)
def test_every_point_of_the_grid_is_a_sensor_of_a_known_shape(some: Ints) -> None:
    for signal in (GRAPHICS, POWER_AVERAGE):
        known = set(shapes(signal))
        for sensor in [
            *lagging(shapes(signal)),
            *renewing(shapes(signal), signal),
            *stepping(shapes(signal), signal, some),
        ]:
            assert Sensor(window_ns=sensor.window_ns, smooth=sensor.smooth) in known
            assert sensor.blur_ns == STEP_NS
            assert sensor.period_ns in (0, signal.refresh_ns)
