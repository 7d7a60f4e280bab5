"""Windows that are alike, and how many of them tell as much as one."""

import math

import numpy as np
import pytest
from benchmarks.unmixing_worlds import MS

from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.solving.design import Design, Windows, alike, design_effect
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.probes import ProbeKind, choose
from gpu_profile.join.unmixing.windows.sensor import Sensor


def groups_of_loop(loop_ms: float, jitter_ms: float, count: int = 200) -> int:
    """Windows of 100 ms over a loop whose first half is a region: how many groups of them are alike."""
    rng = np.random.default_rng(1)
    starts = np.arange(round(count * 100 / loop_ms)) * loop_ms + rng.uniform(0, jitter_ms, round(count * 100 / loop_ms))
    starts_ns: Ints = (starts * MS).astype(np.int64)
    column = np.ones(len(starts), np.int64)
    active = ActiveTime.of(Pieces(column, starts_ns, starts_ns + round(loop_ms / 2 * MS)), column, column)
    ends = np.arange(1, count + 1) * 100 * MS
    windows = Windows(ends - 100 * MS, ends, np.ones((count, 1)))
    return len(set(alike(Design(windows, Sensor(), counts=False).patterns(active, 2)).tolist()))


@pytest.mark.parametrize(("loop_ms", "groups"), [(100.0, 1), (75.0, 3), (110.0, 11), (50.0, 1)])
def test_a_loop_that_repeats_with_the_sensor_shows_a_few_windows_again_and_again(loop_ms: float, groups: int) -> None:
    assert groups_of_loop(loop_ms, 0.0) == groups


def test_windows_of_a_loop_that_wanders_differ() -> None:
    assert groups_of_loop(75.0, 20.0) > 100


def test_windows_differ_by_when_something_ran_in_them_and_not_only_for_how_long() -> None:
    patterns = np.array([[1.0, 0.0], [0.0, 1.0], [0.99, 0.0], [1.0, 0.0]])
    first, other, *same = alike(patterns).tolist()
    assert same == [first, first] != [other, other]
    assert alike(np.zeros((0, 2))).tolist() == []


def test_an_error_that_comes_again_and_again_tells_as_much_as_once() -> None:
    errors, groups = np.tile([1.0, -1.0, 2.0, -2.0], 25), np.tile(np.arange(4), 25)
    assert design_effect(errors, groups, 0) == pytest.approx(25)
    assert design_effect(errors, groups, 2) == pytest.approx(50)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_new_in_every_window(seed: int) -> None:
    errors, groups = np.random.default_rng(seed).normal(size=1000), np.tile(np.arange(50), 20)
    assert design_effect(errors, groups, 3) < 2


def test_windows_that_all_differ_tell_each_something() -> None:
    assert design_effect(np.array([3.0, 1.0, 2.0]), np.arange(3), 3) == 1


def test_fewer_groups_than_unknowns_tell_nothing() -> None:
    assert design_effect(np.ones(100), np.tile(np.arange(4), 25), 4) == math.inf


def test_windows_without_errors_have_no_effect() -> None:
    assert design_effect(np.zeros(100), np.tile(np.arange(10), 10), 2) == 1


def test_what_a_counter_grew_by_in_several_periods_is_of_a_part_of_each() -> None:
    """The part of 25 ms before each renewal: of two periods, one part of the region and one of nobody."""
    column = np.ones(1, np.int64)
    active = ActiveTime.of(Pieces(column, np.array([75 * MS]), np.array([100 * MS])), column, column)
    ends = np.array([100, 300]) * MS
    windows = Windows(np.array([0, 0]), ends, np.array([[10.0], [60.0]]))
    sensor = Sensor(window_ns=25 * MS, period_ns=100 * MS, phase_ns=0)
    design = Design(windows, sensor, counts=True)
    assert design.shares(active, 2)[:, 1] == pytest.approx([1.0, 1 / 3])
    assert design.values[:, 0] == pytest.approx([100.0, 200.0])


def test_a_gap_of_hours_in_a_counters_readings_takes_no_more_room_than_a_few_periods() -> None:
    column = np.ones(1, np.int64)
    day_ns = 86_400_000 * MS
    active = ActiveTime.of(Pieces(column, np.array([0]), np.array([day_ns])), column, column)
    ends = np.array([100 * MS, day_ns, day_ns + 100 * MS])
    windows = Windows(np.append(0, ends[:-1]), ends, np.full((3, 1), 10.0))
    design = Design(windows, Sensor(window_ns=25 * MS, period_ns=100 * MS, phase_ns=0), counts=True)
    assert len(design._moments) < 200
    assert design.shares(active, 2)[:, 1] == pytest.approx([1.0, 1.0, 0.0])


@pytest.mark.parametrize(
    "sensor",
    [Sensor(), Sensor(period_ns=100 * MS, phase_ns=3 * MS, blur_ns=2 * MS), Sensor(window_ns=50 * MS, lag_ns=9 * MS)],
)
@pytest.mark.parametrize("tabled", [False, True])
def test_a_sensor_has_the_same_equations_alone_and_beside_another(sensor: Sensor, *, tabled: bool) -> None:
    rng = np.random.default_rng(7)
    ends = np.cumsum(rng.integers(1, 20, 300)) * MS
    column = rng.integers(1, 3, 300)
    active = ActiveTime.of(Pieces(column, ends - MS // 2, ends), column, column)
    active = active.tabled(3) if tabled else active
    edges = np.arange(3, 23) * 100 * MS + rng.integers(0, MS, 20)
    windows = Windows(edges[:-1], edges[1:], rng.random((19, 1)))
    probes = tuple(
        each for each in choose(np.ones(3), np.ones(3), window=sensor.window_ns > 0) if each.kind is not ProbeKind.TAIL
    )
    rates = np.array([90.0, 300.0, 500.0])
    alone = Design(windows, sensor, counts=False)
    both = Design(windows, sensor, sensor._replace(lag_ns=sensor.lag_ns + MS), counts=False)
    shares, mine = alone.shares(active, 3), both.rows[0]
    expected = both.shares(active, 3)
    assert shares == pytest.approx(expected[mine], abs=1e-12)
    varied = both.probes(active, probes, expected, np.array([rates, rates]), 0)[mine]
    assert alone.probes(active, probes, shares, rates, 0) == pytest.approx(varied, rel=1e-9, abs=1e-6)


def test_a_long_window_counts_as_often_as_its_long_pieces_have_room_for_usual_ones() -> None:
    ends = np.array([100, 200, 400, 1400, 2400], np.int64) * MS
    windows = Windows(np.append(0, ends[:-1]), ends, np.ones((5, 1)))
    starts = np.append(np.array([0, 450]), np.arange(1400, 2400, 10)) * MS
    lasts = np.append(np.array([400, 800]), np.full(100, 8)) * MS
    column = np.append([1, 2], np.full(100, 1))
    active = ActiveTime.of(Pieces(column, starts, starts + lasts), column, column)
    design = Design(windows, Sensor(), counts=False)
    assert design.times(active, 3, 100 * MS).tolist() == [1, 1, 1, 8, 1]
    assert design.times(active, 3, 0).tolist() == [1] * 5
