"""Windows of sensors that repeat themselves: nothing is lost, and nobody is told that a device drew nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds import DEVICE, MS, T0

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.family import SignalFamily
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces


def counted(growths: list[int], every_ms: int = 100) -> Timeline:
    """An energy counter that was read so often, and grew by so many mJ since the reading before."""
    result, total = Timeline(DEVICE, capacity=10_000), 0
    result.append([Sample(rows.ENERGY, T0, T0, 0)])
    for i, growth in enumerate(growths, start=1):
        total += growth
        end = T0 + i * every_ms * MS
        result.append([Sample(rows.ENERGY, end, end, total)])
    return result


def averaged(milliwatts: list[int]) -> Timeline:
    result = Timeline(DEVICE, capacity=10_000)
    for i, value in enumerate(milliwatts):
        start = T0 + i * 100 * MS
        result.append([Sample(rows.POWER_AVERAGE, start, start + 100 * MS, value)])
    return result


def fetched(family: SignalFamily, times: list[int]) -> Windows:
    """What fetching at these times, in ms, gives in all."""
    return Windows.joined([family.fetch(T0 + ms * MS)[0] for ms in times])


def lengths(windows: Windows) -> list[int]:
    return [int(length) for length in (windows.ends - windows.starts) // MS]


@pytest.mark.parametrize("times", [[2000], [500, 800, 1000, 2000], list(range(0, 2001, 50))])
def test_a_counter_that_was_stuck_has_one_window_for_all_of_that_time(times: list[int]) -> None:
    found = fetched(SignalFamily(counted([10] * 5 + [0, 0, 0, 40] + [10] * 5), (rows.ENERGY,), T0), times)
    assert lengths(found) == [100] * 5 + [400] + [100] * 5
    assert found.masses[:, 0] == pytest.approx([0.01] * 5 + [0.04] + [0.01] * 5)


def test_a_counter_that_was_stuck_for_half_a_minute_has_one_window_for_that_too() -> None:
    """What was measured is neither lost nor told of the last ten seconds alone."""
    family = SignalFamily(counted([10] * 10 + [0] * 299 + [3000] + [10] * 10), (rows.ENERGY,), T0)
    found = fetched(family, list(range(1000, 33_000, 1000)))
    assert lengths(found) == [100] * 10 + [30_000] + [100] * 10
    assert found.masses[10, 0] == pytest.approx(3.0)
    assert family.covered_s == pytest.approx(32.0)


def test_a_counter_that_is_read_faster_than_it_is_renewed_is_not_stuck() -> None:
    family = SignalFamily(counted([0, 0, 0, 0, 10] * 8, every_ms=20), (rows.ENERGY,), T0)
    assert lengths(fetched(family, [800])) == [100] * 8


def test_a_counter_that_is_renewed_each_second_is_not_stuck() -> None:
    family = SignalFamily(counted(([0] * 9 + [100]) * 20), (rows.ENERGY,), T0)
    # When it did not grow is a part of what shows its timing.
    assert lengths(fetched(family, [10_000, 20_000])) == [200] * 100


def test_windows_that_are_not_next_to_each_other_are_not_one() -> None:
    timeline = counted([10, 0])
    # The process had no reader for a while: what the counter grew by meanwhile is in no window.
    timeline.append([Sample(rows.ENERGY, T0 + 900 * MS, T0 + 900 * MS, 500)])
    found = fetched(SignalFamily(timeline, (rows.ENERGY,), T0), [900])
    assert set(lengths(found)) <= {100, 800}


@given(st.lists(st.sampled_from([0, 0, 7, 13]), max_size=60), st.lists(st.integers(0, 6500), max_size=6))
def test_no_growth_is_lost_and_no_time_before_the_last_of_it(growths: list[int], times: list[int]) -> None:
    family = SignalFamily(counted(growths), (rows.ENERGY,), T0)
    found = fetched(family, [*sorted(times), 6500])
    grew = np.flatnonzero(growths)
    assert float(found.masses.sum()) == pytest.approx(sum(growths) / 1000)
    assert (found.starts[1:] == found.ends[:-1]).all()
    if len(grew) and not (np.diff(grew) > 90).any():
        assert family.covered_s == pytest.approx((grew[-1] + 1) / 10)


def test_a_power_reading_that_repeats_the_one_before_counts_for_the_total_alone() -> None:
    family = SignalFamily(
        averaged([200_000, 201_001, 199_000] * 5 + [199_000, 199_000, 203_000]), (rows.POWER_AVERAGE,), T0
    )
    found = fetched(family, [900, 1500, 1800])
    assert len(found.ends) == 16
    assert family.n == 18
    assert family.measured[0] == pytest.approx(0.1 * (600.001 * 5 + 199 * 2 + 203))


def test_a_device_that_always_draws_the_same_keeps_its_windows() -> None:
    family = SignalFamily(averaged([200_000] * 30), (rows.POWER_AVERAGE,), T0)
    assert len(fetched(family, [1000, 2000, 3000]).ends) >= 27


def test_readings_in_whole_watts_that_are_equal_by_chance_keep_their_windows() -> None:
    watts = np.random.default_rng(1).integers(195, 205, 300)
    timeline = averaged([int(each) for each in watts])
    found = fetched(SignalFamily(timeline, (rows.POWER_AVERAGE,), T0), [10_000, 20_000, 30_000])
    assert (np.diff(watts) == 0).sum() > 20
    assert len(found.ends) > 295


@pytest.mark.parametrize("times", [[20_000], list(range(0, 20_101, 300))])
@pytest.mark.parametrize("coarse", [1, 1000, 5000, 10_000])
def test_the_step_of_a_coarse_sensor_follows_from_its_readings(coarse: int, times: list[int]) -> None:
    drawn = np.random.default_rng(0).normal(300_000, 20_000, 200)
    family = SignalFamily(averaged([round(w / coarse) * coarse for w in drawn]), (rows.POWER_AVERAGE,), T0)
    found = fetched(family, times)
    assert family.step(rows.POWER_AVERAGE) == pytest.approx(coarse / 1000)
    assert len(found.ends) == 200


def test_few_levels_of_power_may_be_those_of_the_coarsest_sensor() -> None:
    """Of a steady device, no reading differs."""
    for milliwatts, step in ([60_000, 300_000], 10.0), ([60_000, 62_000], 2.0), ([60_000], 0.001):
        family = SignalFamily(averaged(milliwatts * 60), (rows.POWER_AVERAGE,), T0)
        fetched(family, [6000])
        assert family.step(rows.POWER_AVERAGE) == pytest.approx(step)


@pytest.mark.parametrize(("spread_w", "alike"), [(0.0, True), (2.0, True), (3.0, True), (8.0, False), (20.0, False)])
def test_readings_are_alike_if_few_differ_by_more_than_a_step(spread_w: float, alike: bool) -> None:
    watts = np.random.default_rng(0).normal(303.0, spread_w, 300)
    # The program starts and ends: its first and last readings are far off.
    readings = [60, 180, *(int(round(each, -1)) for each in watts), 120, 60]
    family = SignalFamily(averaged([each * 1000 for each in readings]), (rows.POWER_AVERAGE,), T0)
    fetched(family, [30_400])
    assert family.step(rows.POWER_AVERAGE) == pytest.approx(10.0)
    assert family.alike is alike


def test_without_readings_none_are_alike() -> None:
    assert not SignalFamily(averaged([]), (rows.POWER_AVERAGE,), T0).alike


def test_the_steps_of_other_signals_are_the_drivers() -> None:
    family = SignalFamily(averaged([60_000]), (rows.POWER_AVERAGE,), T0)
    assert family.step(rows.UTILIZATION) == pytest.approx(0.01)
    assert family.step(rows.ENERGY) == 0.0


def test_active_time_that_windows_leave_out_is_not_covered() -> None:
    family = SignalFamily(averaged([100_000] * 10), (rows.POWER_AVERAGE,), T0 + 60 * MS)
    fetched(family, [1000])
    active = ActiveTime.of(
        Pieces(np.array([0, 1]), T0 + MS * np.array([60, 150]), T0 + MS * np.array([90, 180])),
        np.array([1, 1], np.int16),
        np.zeros(2, np.int16),
    )
    family.count(active, 2, 0)
    # The first window began before the family. The executions of the last 200 ms may be in windows to come, except for
    # the length of one of them.
    for active_s, uncovered_s in ((0.06, 0.03), (0.26, 0.14)):
        covered, uncovered = family.covered(np.array([0.88, active_s]))
        assert (covered.tolist(), uncovered.tolist()) == (
            pytest.approx([0.87, 0.03]),
            pytest.approx([0.0, uncovered_s]),
        )


def test_active_time_is_covered_where_windows_cover_all_time() -> None:
    family = SignalFamily(averaged([100_000] * 10), (rows.POWER_AVERAGE,), T0)
    fetched(family, [1000])
    active = ActiveTime.of(
        Pieces(np.array([0]), np.array([T0]), np.array([T0 + 500 * MS])), np.array([1], np.int16), np.zeros(1, np.int16)
    )
    family.count(active, 2, 0)
    covered, uncovered = family.covered(np.array([0.5, 0.5]))
    assert (covered.tolist(), uncovered.tolist()) == ([0.5, 0.5], [0.0, 0.0])
