import numpy as np
import pytest

from gpu_profile.driver.simulated.activity import LoggedActivity, Shifted
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.driver.simulated.physics import SimulatedQuantity
from gpu_profile.driver.simulated.script import Phase, script
from gpu_profile.driver.simulated.sensors import Sensors
from gpu_profile.driver.simulated.worklog import RECORD, Records

H200 = MODELS["H200 SXM"]
MS = 1_000_000
S = 1_000 * MS


def kernels(*spans: tuple[int, int]) -> Records:
    return np.array([(a, b, 0, 0, 3, 0, 1e12, 1e9, 0, 0, 1, 0.5) for a, b in spans], RECORD)


def wave(duty: float, period_s: float) -> Sensors:
    phase = Phase(duration_s=10, duty=duty, period_s=period_s)
    return Sensors(H200, Shifted(script([phase], H200, loop=True), 0), 0)


def test_square_wave_has_its_duty_as_busy_share() -> None:
    sensors = wave(0.3, 0.04)
    assert sensors.mean(SimulatedQuantity.BUSY, 4 * S, 4 * S) == pytest.approx(0.3)
    assert sensors.mean(SimulatedQuantity.TENSOR, 4 * S, 4 * S) == pytest.approx(0.3 * 0.6)
    assert sensors.mean(SimulatedQuantity.DRAM, 4 * S, 4 * S) == pytest.approx(0.3 * 0.3)


def test_wave_at_the_sensor_s_period_reads_as_constant_and_a_slower_one_beats() -> None:
    locked = {wave(0.5, 1 / 6).utilization(t)[0] for t in range(2 * S, 4 * S, 10 * MS)}
    beating = {wave(0.5, 0.2).utilization(t)[0] for t in range(2 * S, 4 * S, 10 * MS)}
    assert locked <= {49, 50, 51}
    assert min(beating) < 45
    assert max(beating) > 55


def test_instant_power_sees_a_quarter_of_its_refresh_period() -> None:
    # Busy for the last 25 ms of each 100 ms: the instant reading takes the quarter for the whole.
    phases = [Phase(duration_s=0.075), Phase(duration_s=0.025, duty=1.0, period_s=0.025)]
    sensors = Sensors(H200, Shifted(script(phases, H200, loop=True), 0), 0)
    instant, average = sensors.power_instant_mw(5 * S), sensors.power_average_mw(5 * S)
    assert (average - 75_000) * 4 == pytest.approx(instant - 75_000, rel=1e-5)


def test_once_through_a_script_ends_idle() -> None:
    activity = script([Phase(duration_s=1, duty=1.0, period_s=0.1)], H200, loop=False)
    assert activity.totals(50 * S)[SimulatedQuantity.BUSY] == pytest.approx(1.0)
    assert activity.many(np.array([S, 50 * S]))[:, SimulatedQuantity.BUSY] == pytest.approx([1.0, 1.0])


def test_many_moments_of_activities_in_a_row_are_those_of_each_moment() -> None:
    phases = [Phase(duration_s=0.3, duty=0.5, period_s=0.1), Phase(duration_s=0.2), Phase(duration_s=0.1, duty=1.0)]
    rng = np.random.default_rng(1)
    for loop in (False, True):
        activity = script(phases, H200, loop=loop)
        at = np.concatenate((rng.integers(0, 2 * S, 200), [0, 300 * MS, 500 * MS, 600 * MS, 5 * S]))
        assert np.array_equal(activity.many(at), np.array([activity.totals(t) for t in at.tolist()]))
        assert activity.many(at[:0]).shape == (0, len(SimulatedQuantity))


def test_phase_that_ends_within_a_step_is_cut_there() -> None:
    phases = [Phase(duration_s=1.5, duty=0.5, period_s=1.0), Phase(duration_s=0.5)]
    activity = script(phases, H200, loop=True)
    assert activity.totals(2 * S)[SimulatedQuantity.BUSY] == pytest.approx(1.0)
    assert activity.totals(20 * S)[SimulatedQuantity.BUSY] == pytest.approx(10.0)


def test_temperature_rises_slowly_with_power() -> None:
    sensors = Sensors(H200, Shifted(script([Phase(duration_s=100, duty=1.0, period_s=1)], H200, loop=False), 0), 0)
    seen = [sensors.temperature_c(t * S) for t in (0, 5, 10, 30)]
    assert seen == sorted(seen)
    assert seen[0] < 40
    assert 60 < seen[-1] <= 80
    assert sensors.temperature_c(200 * S) == seen[0]


def test_work_that_reaches_too_far_back_is_refused() -> None:
    activity = LoggedActivity(H200)
    assert activity.extend(kernels((10 * S, 11 * S)), 10 * S)
    assert activity.extend(kernels((9 * S + MS, 9 * S + 2 * MS)), 11 * S)
    assert not activity.extend(kernels((5 * S, 6 * S)), 11 * S)


def test_history_is_bounded_and_the_total_stays_exact() -> None:
    activity = LoggedActivity(H200)
    for i in range(500):
        activity.extend(kernels(*((i * S + k * 100 * MS, i * S + k * 100 * MS + 50 * MS) for k in range(10))), i * S)
    assert activity.totals(1000 * S)[SimulatedQuantity.BUSY] == pytest.approx(250.0)
    assert len(activity._t) < 3000


def test_anchored_totals_outlive_the_history() -> None:
    activity = LoggedActivity(H200, [2 * S])
    activity.extend(kernels((S, S + 500 * MS), (3 * S, 4 * S)), 4 * S)
    for i in range(100):
        activity.extend(kernels(((10 + i) * S, (10 + i) * S + 1)), (10 + i) * S)
    assert activity.totals(2 * S)[SimulatedQuantity.BUSY] == pytest.approx(0.5)
