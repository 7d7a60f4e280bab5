"""How the sensors of real GPUs answer to a load that is known: see `tests/data/hardware`."""

import numpy as np
import pytest
from support.hardware import H200, Sensors, calibrated, load

from gpu_profile.calibration.response import find, find_stamped

#: W above idle of kernels that read memory, and of those on tensor cores, by the energy counter.
GAINS_W = pytest.approx((588.0, 576.0), rel=0.03)
MEMORY = 2


@pytest.fixture(scope="module")
def recorded() -> Sensors:
    return load(H200 / "known_load.npz").first(60)


def test_the_energy_counter_is_renewed_every_100_ms_and_measures_all_of_them(recorded: Sensors) -> None:
    before, after, mj = recorded.tables["energy"]
    found = find(recorded.load(MEMORY), (before + after) // 2, mj * 1e-3, counter=True)
    assert found is not None
    assert not found.reason
    assert found.shape == "interval", "all of each period"
    assert found.period.value == pytest.approx(100, abs=0.01)
    assert 0 <= found.lag.value - found.lag.half_width <= found.lag.value <= 15
    assert [gain.value for gain in found.gains] == GAINS_W


def test_average_power_is_a_mean_over_a_second(recorded: Sensors) -> None:
    _, after, _, average, _ = recorded.tables["power"]
    found = find(recorded.load(MEMORY), after, average * 1e-3, counter=False)
    assert found is not None
    assert found.shape == "mean"
    assert found.window.value == pytest.approx(1000, rel=0.02)
    assert [gain.value for gain in found.gains] == GAINS_W


def test_the_drivers_own_utilisation_is_the_mean_of_200_ms_up_to_its_stamp(recorded: Sensors) -> None:
    found = find_stamped(recorded.load(MEMORY), *recorded.buffered("utilization_samples", 1e-2))
    assert found is not None
    assert found.period.value == pytest.approx(200, abs=0.02)
    assert found.window.value == pytest.approx(200, abs=1)
    assert abs(found.lag.value) <= 1
    # Cut off to whole percents: a GPU that is never idle reads 99 as often as 100.
    assert [gain.value for gain in found.gains] == pytest.approx([0.9935, 0.9935], abs=0.002)


def test_the_drivers_own_power_samples_follow_within_milliseconds(recorded: Sensors) -> None:
    found = find_stamped(recorded.load(MEMORY), *recorded.buffered("power_samples", 1e-3))
    assert found is not None
    assert found.shape == "exponential"
    assert found.period.value == pytest.approx(20, abs=0.01)
    assert found.window.value == pytest.approx(15, abs=1)
    assert found.lag.value == pytest.approx(4.5, abs=1)
    assert [gain.value for gain in found.gains] == GAINS_W


def test_a_gpu_at_rest_draws_its_idle_power_at_once() -> None:
    idle = load(H200 / "idle.npz")
    _, ends, _, parts, _ = idle.tables["work"]
    last = int(ends[parts == 0].max())
    _, after, _, _, instant = idle.tables["power"]
    rest = instant[(after > last + 1_000_000_000) & (after < last + 15_000_000_000)] * 1e-3
    assert np.median(rest) == pytest.approx(122, abs=2)
    assert rest.max() < 126, "nothing decays over seconds"


def test_a_board_that_holds_products_to_its_limit_leaves_the_timing_uncertain_not_wrong() -> None:
    """In chips, products of an H100 drew less and less; in the loop after them, and by copies alone, nothing did."""
    load, drained = calibrated("chips")
    found = find_stamped(load, *drained("power"))
    looped, drained = calibrated("loop")
    beside = find_stamped(looped, *drained("power"))
    assert found is not None
    assert beside is not None
    assert found.shape == beside.shape == "exponential"
    assert found.period.value == pytest.approx(20, abs=0.01)
    for one, other in ((found.lag, beside.lag), (found.window, beside.window)):
        assert abs(one.value - other.value) <= one.half_width + other.half_width
        assert one.half_width <= 0.15 * beside.window.value


def test_utilisation_of_another_board_is_the_mean_of_200_ms_too() -> None:
    load, drained = calibrated("chips")
    found = find_stamped(load, *drained("utilization"))
    assert found is not None
    assert found.period.value == pytest.approx(200, abs=0.02)
    assert found.window.value == pytest.approx(200, abs=1)
    assert abs(found.lag.value) <= 1
