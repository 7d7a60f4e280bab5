"""Whether a sensor's response is found in what it says of a known load: sensors of the laboratory, polled at 250 Hz."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from laboratory.chips import BASE_W, GAINS_W, chips, response
from laboratory.programs import Floats
from laboratory.sensors import Sensor

from gpu_profile.calibration.load import Load, followed
from gpu_profile.calibration.renewals import Estimate
from gpu_profile.calibration.response import SensorResponse, find, find_stamped


def known(sensor: Sensor, seed: int = 1, **options: float) -> SensorResponse:
    found = response(sensor, chips(seed, **options), seed)  # type: ignore[arg-type]
    assert found is not None
    return found


def near(found: Estimate, truth: float, slack: float = 0.15) -> bool:
    """Within the interval, which the grid of the laboratory's curves (0.1 ms) widens."""
    return abs(found.value - truth) <= found.half_width + slack


def counter(**options: float) -> Sensor:
    return Sensor(("energy",), "counter", quantum=0.001, poll_ms=4.0, wander_ms=1.0, **options)  # type: ignore[arg-type]


def mean(**options: float) -> Sensor:
    return Sensor(("power_average",), "mean", poll_ms=4.0, wander_ms=1.0, **options)  # type: ignore[arg-type]


def exponential(constant_ms: float) -> Sensor:
    return replace(mean(period_ms=20.0, window_ms=constant_ms), kind="rc")


# ---------------------------------------------------------------------- what is there is found


@pytest.mark.parametrize(
    "sensor",
    [
        counter(),
        counter(lag_ms=137.0),
        counter(period_ms=20.0, lag_ms=3.3),
        counter(period_ms=101.7, lag_ms=60.0),
        counter(window_ms=25.0, lag_ms=12.0),
        mean(window_ms=1000.0, lag_ms=5.0),
        mean(period_ms=50.0, window_ms=167.0, lag_ms=333.0),
        mean(period_ms=101.3, window_ms=25.0),
        replace(mean(period_ms=20.0, window_ms=80.0, lag_ms=40.0), kind="rc"),
        replace(mean(window_ms=350.0), kind="rc"),
    ],
    ids=lambda sensor: f"{sensor.kind} {sensor.period_ms:g}/{sensor.window_ms:g}/{sensor.lag_ms:g} ms",
)
def test_period_lag_window_and_gains_of_a_sensor_are_found_within_their_intervals(sensor: Sensor) -> None:
    found = known(sensor)
    shape = {"counter": "mean" if sensor.window_ms else "interval", "mean": "mean", "rc": "exponential"}[sensor.kind]
    assert (found.shape, found.sure, found.reason) == (shape, True, "")
    assert near(found.period, sensor.period_ms, 0.001)
    assert near(found.lag, sensor.lag_ms)
    assert found.lag.half_width < 1.0
    assert near(found.window, sensor.window_ms, 0.003 * sensor.window_ms + 0.15)
    assert near(found.base, BASE_W, 1.0)
    for gain, truth in zip(found.gains, GAINS_W, strict=True):
        assert near(gain, truth, 1.0)
        assert gain.half_width < 5.0
    if shape != "exponential":
        assert found.part_time == pytest.approx(min(1.0, (sensor.window_ms or 100.0) / sensor.period_ms), abs=0.02)


def test_a_mean_between_two_calls_has_its_lag_and_gains() -> None:
    found = known(Sensor(("graphics",), "between", lag_ms=30.0, poll_ms=106.0, wander_ms=3.0))
    assert (found.shape, found.reason) == ("interval", "")
    assert near(found.lag, 30.0, 1.0)
    assert all(near(gain, 1.0, 0.01) for gain in found.gains)


def test_what_a_driver_keeps_with_its_moments_needs_no_polls() -> None:
    sensor = Sensor(("utilization",), "mean", period_ms=166.7, window_ms=166.7, buffered=True, quantum=0.01)
    found = known(sensor)
    assert near(found.lag, 0.0, 0.3)
    assert near(found.window, 166.7, 0.5)


@pytest.mark.parametrize("seed", range(2, 6))
def test_intervals_hold_for_any_seed(seed: int) -> None:
    found = known(counter(lag_ms=float(seed * 7)), seed)
    assert near(found.lag, seed * 7.0)
    assert near(found.gains[0], GAINS_W[0], 0.5)


def test_a_clock_that_drifts_has_its_own_period() -> None:
    assert near(known(counter(period_ms=100.02)).period, 100.02, 0.0005)


def test_warming_is_no_error_of_the_sensor() -> None:
    found = response(counter(), chips(3, drift=0.05), 3)
    assert found is not None
    assert found.reason == ""
    assert near(found.lag, 0.0)


# ---------------------------------------------------------------------- what is not there is not told


def test_a_sensor_of_neither_shape_is_doubted() -> None:
    world = chips(4)
    one, other = (sensor.read(world, np.random.default_rng(4))[0][2] for sensor in two_windows())  # type: ignore[arg-type]
    values = (0.6 * one.values + 0.4 * other.values) * 1e-3
    found = find(world.load, one.stamps_ns, values, counter=False)
    assert found is not None
    assert found.reason.startswith("neither a mean nor an exponential")


def test_a_counter_that_counts_earlier_power_too_is_doubted() -> None:
    """Its readings are no means of its periods, and no gain or lag of it is right."""
    world = chips(4)
    read = counter().read(world, np.random.default_rng(4))[0][2]  # type: ignore[arg-type]
    late = counter(lag_ms=250.0).read(world, np.random.default_rng(4))[0][2]  # type: ignore[arg-type]
    values = np.floor(0.6 * read.values + 0.4 * late.values) * 1e-3
    found = find(world.load, read.stamps_ns, values, counter=True)
    assert found is not None
    assert found.reason.startswith("not the mean of its periods")
    assert known(counter()).reason == ""


def test_means_between_calls_with_other_renewals_are_doubted() -> None:
    found = known(Sensor(("graphics",), "between", period_ms=105.0, poll_ms=106.0, wander_ms=3.0), seconds=20)
    assert re.fullmatch(r"renewals every 100 ms leave \d+% of the variance of its readings", found.reason)


def test_a_period_that_changes_halfway_is_no_period() -> None:
    world = chips(5)
    rng = np.random.default_rng(5)
    first, then = (counter(period_ms=period).read(world, rng)[0][2] for period in (100.0, 107.0))  # type: ignore[arg-type]
    half = len(first.values) // 2
    values = np.concatenate((first.values[:half], then.values[half:] - then.values[half] + first.values[half])) * 1e-3
    stamps = np.concatenate((first.stamps_ns[:half], then.stamps_ns[half:]))
    found = find(world.load, stamps, values, counter=True)
    assert found is not None
    assert (found.period, found.reason) == (Estimate(0.0, 0.0), "it is renewed at no steady period")


@pytest.mark.parametrize("share", [0.33, 0.5, 0.67])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (counter(), counter(lag_ms=60.0)),
        (counter(window_ms=25.0), counter()),
        (mean(window_ms=1000.0), mean(window_ms=100.0)),
        (exponential(15.0), exponential(60.0)),
    ],
    ids=["lag", "part", "window", "constant"],
)
def test_a_timing_that_changes_while_the_load_runs_is_doubted(before: Sensor, after: Sensor, share: float) -> None:
    world = chips(20)
    # Renewed at the same moments.
    one, other = (each.read(world, np.random.default_rng(0))[0][2] for each in (before, after))  # type: ignore[arg-type]
    at = round(share * len(one.values))
    first, then = one.values[:at], other.values[at:]
    shift = first[-1] - other.values[at - 1] if before.kind == "counter" else 0
    values = np.concatenate((first, then + shift)).astype(np.float64)
    found = find(world.load, one.stamps_ns, values, counter=before.kind == "counter")
    assert found is not None
    assert found.reason.startswith("its timing changed: lag")


def test_polls_that_stop_again_and_again_leave_the_timing_as_it_is() -> None:
    sensor = mean(window_ms=1000.0, noise=0.0005)
    world = chips(8)
    read = sensor.read(world, np.random.default_rng(8))[0][2]  # type: ignore[arg-type]
    kept = read.stamps_ns % 5_000_000_000 > 310_000_000
    found = find(world.load, read.stamps_ns[kept], read.values[kept].astype(np.float64), counter=False)
    assert found is not None
    assert found.reason == ""
    assert near(found.lag, 0.0)
    assert found.lag.half_width < 0.3
    assert near(found.window, 1000.0, 0.3)
    assert found.window.half_width < 0.5


def two_windows() -> tuple[Sensor, Sensor]:
    """Of one sensor, so to speak: a mean over 25 ms and one over 25 ms a quarter of a second earlier."""
    return mean(window_ms=25.0, noise=0.0005), mean(window_ms=25.0, lag_ms=250.0, noise=0.0005)


@pytest.mark.parametrize(
    "values",
    [np.zeros(5000), np.full(5000, 3.0), np.repeat(np.arange(20.0), 250)],
    ids=["zero", "constant", "next to never"],
)
def test_a_sensor_that_does_not_answer_has_no_response(values: Floats) -> None:
    world = chips(5, 20)
    assert find(world.load, np.arange(5000) * 4_000_000, values, counter=False) is None


def test_noise_is_not_taken_for_an_answer() -> None:
    world, rng = chips(6, 20), np.random.default_rng(6)
    found = find(world.load, np.arange(5000) * 4_000_000, rng.normal(100.0, 5.0, 5000), counter=False)
    assert found is None or all(abs(gain.value) <= 2 * gain.half_width for gain in found.gains)


def test_no_load_and_no_readings_are_no_error() -> None:
    none = np.zeros(0, np.int64)
    assert find(Load(none, none, none), np.arange(100) * 10**7, np.arange(100.0), counter=True) is None
    assert find(chips(7, 10).load, none, np.zeros(0), counter=True) is None


def test_a_level_that_a_sensor_hardly_answers_to_makes_its_timing_no_less_certain() -> None:
    rng = np.random.default_rng(5)
    lengths = rng.choice([10.37, 20.71, 51.93], 300) * 1e6
    edges = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    levels = rng.integers(-1, 2, 300)
    on = levels >= 0
    load = Load(edges[:-1][on], edges[1:][on], levels[on])
    grid = np.arange(0, edges[-1], 100_000)
    place = np.searchsorted(edges, grid, "right") - 1
    for weak in (250.0, 0.5):
        power = np.select([levels[place] == 0, levels[place] == 1], [300.0, weak], 0.0)
        answered, follows = np.zeros(len(grid)), math.exp(-0.1 / 15)
        for n in range(1, len(grid)):
            answered[n] = follows * answered[n - 1] + (1 - follows) * power[n - 1]
        stamps = np.arange(100_000_000, edges[-1], 20_000_000)
        values = np.interp(stamps - 5_000_000, grid, answered) + 100 + rng.normal(0, 1, len(stamps))
        found = find_stamped(load, stamps, values)
        assert found is not None
        assert found.lag.value == pytest.approx(5, abs=0.3)
        assert found.window.value == pytest.approx(15, abs=0.3)
        assert max(found.lag.half_width, found.window.half_width) < 0.3


@pytest.mark.parametrize("constant", [0.5, 15.0, 400.0])
def test_an_exponential_follows_as_its_equation_says(constant: float) -> None:
    edges = np.array([3.0, 10.0, 10.0, 40.0, 55.0, 55.5])
    step, shown, told = 1e-3, 0.0, []
    grid = np.arange(0.0, 80.0, step)
    for on in (np.searchsorted(edges, grid + step / 2, "right") % 2).tolist():
        told.append(shown)
        shown += (on - shown) * step / constant
    assert followed(grid, edges, constant) == pytest.approx(np.array(told), abs=2 * step / constant)
    assert followed(grid[:6].reshape(2, 3), edges, constant).tolist() == [[0.0] * 3] * 2


def test_readings_without_any_noise_are_no_trouble() -> None:
    edges = np.cumsum(np.full(400, 20_000_000, np.int64))
    load = Load(edges[:-1:2], edges[1::2], np.zeros(200, np.int64))
    stamps = np.arange(100_000_000, edges[-1], 20_000_000)
    place = np.searchsorted(edges, stamps - 1, "right") - 1
    found = find_stamped(load, stamps, np.where(place % 2 == 0, 300.0, 0.0))
    assert found is not None
    assert np.isfinite([found.lag.value, found.window.value, found.noise]).all()
