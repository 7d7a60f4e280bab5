"""Sensors of the laboratory: conservation, impulse responses, stamps."""

from dataclasses import replace

import numpy as np
import pytest
from laboratory.curves import World, make, sums
from laboratory.programs import LEAD_S, PER_MS, PER_S, Floats, Program, Region
from laboratory.sensors import Readings, Sensor

EXACT = Sensor(("energy",), "counter", noise=0.0, wander_ms=0.0)
#: One unit of mass in one step, at 3,000 ms of the grid.
IMPULSE = np.zeros(6000 * PER_MS)
IMPULSE[3000 * PER_MS] = 1.0


@pytest.fixture(scope="module")
def world() -> World:
    regions = tuple(Region(f"r{k}", 5.0 + 3 * k, 200.0 + 100 * k) for k in range(3))
    return make(Program(regions), 20.0, np.random.default_rng(2))


def read(sensor: Sensor, world: World) -> Readings:
    return sensor.read(world, np.random.default_rng(7))[0][2]


@pytest.mark.parametrize("period_ms", [10.0, 20.0, 100.0, 100.03, 102.0])
@pytest.mark.parametrize("lag_ms", [0.0, 250.0])
def test_what_a_counter_adds_up_is_the_integral_of_the_power(world: World, period_ms: float, lag_ms: float) -> None:
    found = read(replace(EXACT, period_ms=period_ms, lag_ms=lag_ms), world)
    total = np.interp(found.renewals - lag_ms * PER_MS, np.arange(len(world.power) + 1), sums(world.power)) / PER_S
    assert (found.values - found.values[0]) / 1000 == pytest.approx(total - total[0], abs=0.0021)


def test_a_counter_that_measures_part_of_the_time_takes_it_for_all(world: World) -> None:
    found = read(replace(EXACT, window_ms=25.0), world)
    seen = [world.power[int(r) - 250 : int(r)].mean() for r in np.rint(found.renewals[1:])]
    assert np.diff(found.values) / 1000 == pytest.approx(np.array(seen) * 0.1, rel=0.01)


def response(sensor: Sensor, delays_ms: Floats) -> Floats:
    """What a sensor says so long after the impulse, per ms of its window."""
    return sensor.apply(sums(IMPULSE), (3000 + delays_ms) * PER_MS) * PER_MS


def test_a_boxcar_holds_an_impulse_for_its_window_after_its_lag() -> None:
    found = response(Sensor(("power_average",), "mean", window_ms=40.0, lag_ms=20.0), np.array([19.0, 21, 59, 61]))
    assert found.tolist() == pytest.approx([0.0, 1 / 40, 1 / 40, 0.0])


def test_a_smoothed_sensor_forgets_an_impulse_exponentially() -> None:
    delays = np.arange(0.5, 900, 1.0)
    found = response(Sensor(("power_average",), "rc", window_ms=150.0), delays)
    assert found.sum() == pytest.approx(1.0, rel=0.01)
    assert (found * delays).sum() == pytest.approx(150.0, rel=0.05)
    at = np.array([75.0, 300.0])
    assert np.interp(at, delays, found) == pytest.approx(np.exp(-at / 150) / 150, rel=0.15)


def test_the_same_sensor_on_a_coarser_grid() -> None:
    rng = np.random.default_rng(5)
    curve = rng.uniform(0, 1, 6000 * PER_MS)
    renewals = np.arange(3000.0, 5000.0, 100) * PER_MS
    for sensor in (EXACT, Sensor(("power_average",), "mean", window_ms=150.0), replace(EXACT, window_ms=25.0)):
        fine = sensor.apply(sums(curve), renewals)
        coarse = sensor.apply(sums(curve.reshape(-1, 5).mean(axis=1)), renewals, 5)
        assert coarse == pytest.approx(fine, rel=1e-9)


def test_readings_bear_the_stamp_of_the_poll_and_repeat_until_the_sensor_renews_itself(world: World) -> None:
    found = read(replace(EXACT, poll_ms=20.0, period_ms=100.0), world)
    assert set(np.diff(found.stamps_ns).tolist()) <= {20_000_000 + us * 1000 for us in (-1, 0, 1)}
    assert np.all(found.stamps_ns % 1000 == 0)
    age = found.stamps_ns / 100_000 + LEAD_S * PER_S - found.renewals
    assert 0 <= age.min() < age.max() < 100 * PER_MS
    repeats = np.diff(found.values) == 0
    assert repeats.mean() == pytest.approx(0.8, abs=0.02)


def test_windows_of_gpm_follow_one_another_and_add_up(world: World) -> None:
    found = read(Sensor(("graphics",), "between", noise=0.0), world)
    assert np.array_equal(found.starts_ns[1:], found.stamps_ns[:-1])
    weighed = (found.values[1:] * 1e-4 * np.diff(found.renewals)).sum()
    whole = np.diff(np.interp(found.renewals[[0, -1]], np.arange(len(world.busy) + 1), sums(world.busy)))[0]
    assert weighed == pytest.approx(whole, rel=1e-3)


def test_a_buffered_utilisation_is_whole_per_cents_of_its_window(world: World) -> None:
    found = read(Sensor(("utilization",), "mean", 167.0, 500.0, quantum=0.01, noise=0.0, buffered=True), world)
    assert np.diff(found.stamps_ns) == pytest.approx(167e6, abs=2000)
    some = int(np.rint(found.renewals[40]))
    assert found.values[40] == pytest.approx(world.busy[some - 5000 : some].mean() * 100, abs=0.51)


def test_a_coarse_counter_adds_up_the_same(world: World) -> None:
    exact, coarse = (read(replace(EXACT, quantum=quantum), world) for quantum in (0.0, 0.01629))
    assert np.ptp(coarse.values) == pytest.approx(np.ptp(exact.values), abs=2 * 17)
    assert set(np.unique(np.diff(coarse.values) % 16)) == {0}


def test_gain_noise_and_lost_samples(world: World) -> None:
    exact = read(EXACT, world)
    assert np.ptp(read(replace(EXACT, gain=1.05), world).values) == pytest.approx(np.ptp(exact.values) * 1.05, rel=1e-4)
    assert len(read(replace(EXACT, lost=0.3), world).values) == pytest.approx(0.7 * len(exact.values), rel=0.15)
    noisy = read(replace(EXACT, noise=0.05), world)
    ratio = np.diff(noisy.values) / np.diff(exact.values)
    assert ratio.std() == pytest.approx(0.05, rel=0.3)
