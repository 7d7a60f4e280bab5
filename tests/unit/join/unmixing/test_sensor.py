import numpy as np
import pytest

from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, PCIE_RX, POWER_AVERAGE
from gpu_profile.join.unmixing.timing.timings import renewing, shapes, stepping
from gpu_profile.join.unmixing.windows.sensor import IN_STEP, NEAR_STEP, Sensor, in_step

MS = 1_000_000
T0 = 1_700_000_000_000_000_000


def test_without_renewals_a_reading_is_of_a_fixed_time_before_its_stamp() -> None:
    assert Sensor(lag_ns=40 * MS).moments(np.array([T0, T0 + 7])).tolist() == [T0 - 40 * MS, T0 + 7 - 40 * MS]


def test_between_two_renewals_all_readings_are_of_the_first() -> None:
    sensor = Sensor(period_ns=100 * MS, phase_ns=30 * MS, lag_ns=5 * MS)
    stamps = np.array([T0 + 29 * MS, T0 + 30 * MS, T0 + 129 * MS, T0 + 130 * MS])
    assert (sensor.moments(stamps) - T0).tolist() == [-75 * MS, 25 * MS, 25 * MS, 125 * MS]


def test_right_beside_a_renewal_it_is_not_clear_what_a_reading_is_of() -> None:
    sensor = Sensor(period_ns=100 * MS, phase_ns=30 * MS)
    at = np.array([27, 28, 29, 30, 31, 32, 33]) * MS + T0
    assert sensor.clear(at).tolist() == [True, False, False, False, False, True, True]
    vaguer = sensor._replace(blur_ns=2 * MS)
    assert vaguer.clear(at).tolist() == [False, False, False, False, False, False, True]


def test_only_power_averages_over_a_window_that_its_stamps_do_not_tell() -> None:
    assert list(shapes(GRAPHICS)) == [Sensor()]
    # A counter may measure a part of each of its periods.
    whole, *parts = shapes(ENERGY)
    assert whole == Sensor()
    assert all(0 < part.window_ns < ENERGY.refresh_ns and not part.smooth for part in parts)
    windows = {(shape.window_ns // MS, shape.smooth) for shape in shapes(POWER_AVERAGE)}
    for wanted in (25, 100, 1000):
        assert min(abs(window / wanted - 1) for window, smooth in windows if not smooth) < 0.2
    assert any(smooth for _, smooth in windows)


def test_a_boxcar_of_25_ms_is_the_difference_of_two_moments() -> None:
    offsets, factors = Sensor(window_ns=25 * MS).kernel()
    assert offsets.tolist() == [0, -25 * MS]
    assert factors.tolist() == [1 / (25 * MS), -1 / (25 * MS)]


def test_without_a_window_of_its_own_a_reading_is_the_difference_between_the_ends_of_two_rows() -> None:
    offsets, factors = Sensor(jitter_ns=MS).kernel()
    assert offsets.tolist() == [-MS // 2, MS // 2, -MS // 2, MS // 2]
    assert factors.tolist() == [0.5, 0.5, -0.5, -0.5]


@pytest.mark.parametrize("tau_ms", [25, 100, 500])
def test_an_exponential_answers_to_a_step_as_it_should(tau_ms: int) -> None:
    offsets, factors = Sensor(window_ns=tau_ms * MS, smooth=True).kernel()
    for since in np.linspace(0.1, 8, 40) * tau_ms * MS:
        # Work that began `since` ago and goes on.
        share = float(np.maximum(offsets + since, 0) @ factors)
        assert share == pytest.approx(1 - np.exp(-since / (tau_ms * MS)), abs=0.01)


def test_errors_of_the_stamps_are_tried_evenly_and_finer_ones_need_fewer_moments() -> None:
    assert Sensor().spread().tolist() == [0]
    assert Sensor(blur_ns=2 * MS).spread().tolist() == [-MS // 2, MS // 2]
    assert Sensor(jitter_ns=MS).spread().tolist() == [-MS // 2, MS // 2]
    assert len(Sensor(jitter_ns=50 * MS).spread()) == 16
    assert len(Sensor(jitter_ns=50 * MS, period_ns=100 * MS).spread()) == 1


# ---------------------------------------------------------------------- in step with the renewals


@pytest.mark.parametrize(
    ("step_ms", "slip_ms", "least", "most"),
    [
        (100, 0, 1.0, 1.0),
        (100, 1, IN_STEP, 1.0),
        (200, 1, IN_STEP, 1.0),
        (100, 25, NEAR_STEP, IN_STEP),
        (105, 0, 0.0, 0.1),
        (50, 0, 0.0, 0.1),
        (100, 50, 0.0, 0.2),
    ],
)
def test_how_much_readings_are_in_step(step_ms: int, slip_ms: int, least: float, most: float) -> None:
    rng = np.random.default_rng(0)
    stamps = T0 + np.arange(400) * step_ms * MS + rng.uniform(-slip_ms, slip_ms, 400).astype(np.int64) * MS
    assert least - 1e-9 <= in_step(GRAPHICS, stamps) <= most + 1e-9


def test_signals_that_never_renew_themselves_are_in_step_with_nothing() -> None:
    assert in_step(PCIE_RX, T0 + np.arange(10) * 100 * MS) == 0.0


@pytest.mark.parametrize("phase_ms", [0, 3, 50, 97])
def test_in_step_each_reading_is_taken_for_a_renewal_of_its_own_whatever_the_phase(phase_ms: int) -> None:
    rng = np.random.default_rng(0)
    stamps = T0 + (np.arange(50) * 100 + phase_ms) * MS + rng.integers(-5 * MS, 5 * MS, 50)
    for sensor in stepping([Sensor()], GRAPHICS, stamps):
        assert sensor.in_step
        moments = sensor.moments(stamps)
        assert set(np.diff(moments).tolist()) == {100 * MS}
        assert sensor.clear(stamps).all()


def test_out_of_step_every_phase_is_tried() -> None:
    found = renewing([Sensor()], GRAPHICS)
    phases = sorted({sensor.phase_ns for sensor in found if not sensor.lag_ns})
    around = np.diff([*phases, phases[0] + 100 * MS])
    assert around.max() <= max(sensor.blur_ns for sensor in found)
    assert not any(sensor.in_step for sensor in found)
