"""The energy of several GPUs as one sum: no joule is lost or counted twice, whatever the order of the readings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.signals import ENERGY, POWER
from gpu_profile_exporter.serving.energy import EnergySum

ENERGY_NUMBER, POWER_NUMBER = SIGNALS.index(ENERGY), SIGNALS.index(POWER)


def samples(*readings: tuple[int, int]) -> list[int]:
    """Readings of the counter at (ms, mJ), each beside one of the power, as readers send them."""
    found: list[int] = []
    for at_ms, quanta in readings:
        end_ns = at_ms * 1_000_000
        found += [POWER_NUMBER, end_ns, end_ns, 1, ENERGY_NUMBER, end_ns, end_ns, quanta]
    return found


def test_the_second_gpu_is_interpolated_at_the_firsts_readings() -> None:
    energy = EnergySum(["a", "b"])
    energy.take("a", samples((100, 5_000), (200, 6_000), (300, 8_000)))
    energy.take("other", samples((100, 1), (300, 900_000)))
    assert not len(energy.readings()[0])  # nothing of b yet
    energy.take("b", samples((50, 70_000), (150, 71_000), (250, 73_000)))
    times, joules, resets = energy.readings()
    assert times.tolist() == [100_000_000, 200_000_000]
    assert np.diff(joules).tolist() == [1.0 + 1.5]
    assert not resets
    energy.take("b", samples((350, 74_000)))
    more, later, _ = energy.readings()
    assert more.tolist() == [300_000_000]
    assert later[0] - joules[-1] == 2.0 + 1.5


def test_readings_go_on_after_the_clock_was_set_back() -> None:
    energy = EnergySum(["a", "b"])
    for uuid in "ab":
        energy.take(uuid, samples((900_000, 5_000), (900_100, 6_000)))
    energy.readings()
    energy.take("a", samples((100, 7_000), (200, 8_000)))
    assert not len(energy.readings()[0])  # b is at the old time
    energy.take("b", samples((50, 6_000), (250, 10_000)))
    times, joules, resets = energy.readings()
    assert times.tolist() == [200_000_000]
    assert joules.tolist() == [3.0 + 4.0]
    assert not resets


def test_the_first_reading_after_the_clock_was_set_back_waits_for_no_renewals() -> None:
    energy = EnergySum(["a"], renewals=True)
    energy.take("a", samples(*((900_000 + 100 * n, 1_000 * n) for n in range(1, 400))))
    assert len(energy.readings()[0]) == 399
    energy.take("a", samples((100, 400_000), (200, 401_000)))
    assert energy.readings()[0].tolist() == [100_000_000, 200_000_000]


def test_a_reset_counter_goes_on_and_its_time_is_named() -> None:
    energy = EnergySum(["a"])
    energy.take("a", samples((100, 9_000), (200, 9_500), (300, 100), (400, 700)))
    times, joules, resets = energy.readings()
    assert len(times) == 4
    assert (joules - joules[0]).tolist() == [0, 0.5, 0.5, 1.1]
    assert resets == [(200_000_000, 300_000_000)]
    assert energy.readings()[2] == []


def test_readings_of_slow_counters_are_moved_to_the_renewals_of_each_gpu() -> None:
    """Two GPUs at 200 W and 400 W, with counters that are renewed every 130 ms and 105 ms."""
    energy = EnergySum(["a", "b"], renewals=True)
    at_ms = [100 * n + n * 7 % 5 for n in range(1, 1200)]
    for uuid, watts, period in (("a", 200, 130), ("b", 400, 105)):
        energy.take(uuid, samples(*((at, (at // period) * period * watts) for at in at_ms)))
    assert energy.last_ns == at_ms[-1] * 1_000_000
    times, joules, _ = energy.readings()
    assert len(times) == pytest.approx(1200 * 100 / 130, rel=0.01)
    power = np.diff(joules) / (np.diff(times) / 1e9)
    assert power == pytest.approx(np.full(len(power), 600.0), rel=0.02)


def test_readings_closer_than_windows_are_passed_on_as_one() -> None:
    energy = EnergySum(["a"], renewals=True)
    energy.take("a", samples(*((30 * n, 6_000 * n) for n in range(1, 1000))))
    times, joules, _ = energy.readings()
    assert set(np.diff(times).tolist()) == {120_000_000}
    assert np.diff(joules) == pytest.approx(np.full(len(times) - 1, 24.0))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 50)), min_size=3, max_size=40), st.integers(1, 5))
def test_the_growth_of_one_counter_is_kept_in_whatever_portions_it_comes(
    steps: list[tuple[int, int]], portion: int
) -> None:
    at, total, readings = 0, 0, []
    for ms, quanta in steps:
        at, total = at + ms, total + quanta
        readings.append((at, total))
    energy, times, joules = EnergySum(["a"]), [], []
    for first in range(0, len(readings), portion):
        # Readers may repeat their last reading.
        energy.take("a", samples(*readings[max(0, first - 1) : first + portion]))
        more_times, more_joules, _ = energy.readings()
        times += more_times.tolist()
        joules += more_joules.tolist()
    assert times == [each * 1_000_000 for each, _ in readings]
    assert [round(each * 1000) for each in joules] == [each - readings[0][1] for _, each in readings]
