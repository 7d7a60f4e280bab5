import tracemalloc

import numpy as np
import pytest

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, POWER_AVERAGE, UTILIZATION
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, Fit
from gpu_profile.join.unmixing.solving.unseen import UnseenParts
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.sensor import Sensor

MS = 1_000_000
#: A counter with renewals every 100 ms that measures all of the time.
COUNTER = Sensor(period_ns=100 * MS, phase_ns=50 * MS, lag_ns=-50 * MS, in_step=True)
#: 25 of every 100 ms, in readings at the ends of their windows.
PART = Sensor(window_ns=25 * MS)
STAMPS = np.arange(1, 301) * 100 * MS
ALONE = np.array([0.0, 1.0])


def read(stamps: np.ndarray) -> Windows:
    """The windows between readings at `stamps`, the first of which follows another one at once."""
    return Windows(np.concatenate((stamps[:1] - MS, stamps[:-1])), stamps, np.ones((len(stamps), 1)))


def loop(length_ms: float, columns: tuple[int, ...] = (1,), *, count: int = 0) -> ActiveTime:
    """Executions of this length, one after the other, of some columns in turn."""
    edges = np.rint(np.arange((count or round(31_000 / length_ms)) + 1) * length_ms * MS).astype(np.int64)
    column = np.resize(columns, len(edges) - 1)
    return ActiveTime.of(Pieces(np.arange(len(column)), edges[:-1], edges[1:]), column, column)


def unseen(active: ActiveTime, *timings: Sensor, weights: np.ndarray = ALONE, expected: bool = False) -> float:
    parts = UnseenParts(expected=expected)
    parts.renew(POWER_AVERAGE, timings or (PART,), read(STAMPS), active, len(weights))
    return parts.share(weights)


@pytest.mark.parametrize(
    ("length_ms", "share"),
    [
        (100.0, 0.75),  # each window shows the last quarter of an execution
        (50.0, 0.5),
        (200.0, 0.75),  # two quarters of a quarter
        (250.0, 0.4),  # half of every fifth, and a part seen in part counts as seen
        (150.0, 0.45),
        (75.0, 0.0),  # each third in turn
        (100.3, 0.0),  # some 90 ms of drift in 30 s, and the 25 ms of a window
        (7.3, 0.0),
        (3000.0, 0.0),
    ],
)
def test_the_parts_of_executions_that_no_window_of_a_part_time_sensor_shows_are_counted(
    length_ms: float, share: float
) -> None:
    assert unseen(loop(length_ms)) == pytest.approx(share, abs=0.05)


def test_a_loop_of_two_regions_in_step_shows_the_end_of_one_and_nothing_of_the_other() -> None:
    of_both = np.array([0.0, 0.5, 0.5])
    assert unseen(loop(50.0, (1, 2)), weights=np.array([0.0, 0.0, 1.0])) == pytest.approx(0.5, abs=0.05)
    # A region in no window has no equation, and so no rate: its parts are not counted.
    assert unseen(loop(50.0, (1, 2)), weights=of_both) == pytest.approx(0.25, abs=0.05)


def test_a_shorter_window_that_fits_too_counts_and_one_that_no_board_has_only_if_it_fits_best() -> None:
    whole, shorter = Sensor(window_ns=100 * MS), Sensor(window_ns=14 * MS)
    assert unseen(loop(100.0), whole, expected=True) == 0.0
    assert unseen(loop(100.0), whole, PART, expected=True) == pytest.approx(0.75, abs=0.05)
    assert unseen(loop(75.0), PART, shorter) == pytest.approx(0.0, abs=0.01)
    assert unseen(loop(75.0), shorter, PART) == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("lead", [POWER_AVERAGE, UTILIZATION, ENERGY])
def test_windows_in_step_with_a_loop_do_not_rule_out_that_the_sensor_measures_a_part_of_the_time(lead: Signal) -> None:
    """Readings of 0 % over a quarter of the time fitted all windows: 0.000 +-0.010 busy for 0.334."""
    whole, parts = Sensor(window_ns=100 * MS) if lead is not ENERGY else COUNTER, UnseenParts()
    parts.renew(lead, (whole,), read(STAMPS), loop(100.0), 2)
    assert parts.share(ALONE) == pytest.approx(0.75, abs=0.05)
    parts.renew(lead, (whole,), read(STAMPS), loop(73.3), 2)
    assert parts.share(ALONE) == 0.0


def test_a_smoothing_sensor_shows_two_time_constants() -> None:
    smooth = Sensor(window_ns=25 * MS, smooth=True)
    assert unseen(loop(100.0), smooth, expected=True) == pytest.approx(0.5, abs=0.05)


def test_a_sensor_that_measures_all_of_the_time_leaves_nothing_unseen_and_nothing_is_counted() -> None:
    for lead, sensor, whole, expected in (
        (POWER_AVERAGE, Sensor(window_ns=100 * MS), False, True),
        (ENERGY, COUNTER, False, True),
        (ENERGY, COUNTER, True, False),
        (UTILIZATION, Sensor(window_ns=100 * MS), False, True),
        (GRAPHICS, Sensor(), False, False),
    ):
        parts = UnseenParts(whole=whole, expected=expected)
        parts.renew(lead, (sensor,), read(STAMPS), loop(100.0), 2)
        assert parts.share(ALONE) == 0.0
        assert not parts._shown.any()


#: Drifts by 0.09 ms in each turn, which is by 9 ms in 30 s.
DRIFTING_MS = 300.09


@pytest.mark.parametrize(
    ("length_ms", "in_step"),
    [
        *((length, True) for length in (20.0, 50.0, 100.0, 150.0, 75.0, 200.0, 300.0, 120.0, DRIFTING_MS, 49.99)),
        *((length, False) for length in (90.0, 73.3, 100.5, 7.3, 333.7, 1234.5)),
    ],
)
def test_executions_are_in_step_if_no_window_ends_in_a_part_of_each_turn(length_ms: float, in_step: bool) -> None:
    parts = UnseenParts()
    parts.renew(ENERGY, (COUNTER,), read(STAMPS), loop(length_ms), 2)
    assert parts.in_step(3).tolist() == [in_step, in_step, False]


def test_executions_of_varying_lengths_and_few_ones_are_not_in_step() -> None:
    rng, column = np.random.default_rng(3), np.ones(600, np.int64)
    for count, spread in ((600, 0.1), (600, 0.5), (12, 0.5)):
        edges = np.rint(np.cumsum(50.0 * MS * rng.uniform(1 - spread, 1 + spread, count + 1))).astype(np.int64)
        edges *= 600 // count
        some = Pieces(np.arange(count), edges[:-1], edges[1:])
        parts = UnseenParts()
        parts.renew(ENERGY, (COUNTER,), read(STAMPS), ActiveTime.of(some, column[:count], column[:count]), 2)
        assert not parts.in_step(2).any()


def test_a_loop_that_drifts_is_in_step_until_windows_have_ended_in_all_parts_of_its_turns() -> None:
    stamps = np.arange(1, 3501) * 100 * MS
    parts, active = UnseenParts(), loop(DRIFTING_MS, count=1180)
    parts.renew(ENERGY, (COUNTER,), read(stamps[:300]), active, 2)
    parts.settle()
    parts.add(read(stamps[300:600]), active, 2)
    assert parts.in_step(2).all()
    for start in range(600, 3500, 50):
        parts.add(read(stamps[start : start + 50]), active, 2)
    assert not parts.in_step(2).any()
    parts.merge(1, 2)
    assert not parts.in_step(3).any()
    timed = UnseenParts(expected=True)
    timed.renew(ENERGY, (COUNTER,), read(stamps[:300]), active, 2)
    assert not timed.in_step(2).any()
    # Before the settled windows ended, it was in step.
    parts.renew(ENERGY, (COUNTER,), read(stamps[:2]), active, 2)
    assert parts.in_step(3).tolist() == [True, False, True]


def counted(active: ActiveTime, *timings: Sensor, stamps: np.ndarray = STAMPS, whole: bool = False) -> float:
    parts = UnseenParts(whole=whole)
    parts.renew(ENERGY, timings, read(stamps), active, 2)
    return parts.share(ALONE)


def test_a_counter_may_measure_a_part_of_each_period_unless_its_readings_or_its_board_rule_that_out() -> None:
    part = COUNTER._replace(window_ns=25 * MS)
    assert counted(loop(100.0), COUNTER, part) == pytest.approx(0.75, abs=0.05)
    assert counted(loop(100.0), Sensor(), part) == pytest.approx(0.75, abs=0.05)  # a timing without renewals
    assert counted(loop(73.3), COUNTER, COUNTER._replace(lag_ns=10 * MS)) == 0.0
    assert counted(loop(100.0), COUNTER, part, whole=True) == 0.0
    assert counted(loop(100.0), part, COUNTER, whole=True) == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("length_ms", [75.0, 100.3, 7.3])
def test_a_loop_out_of_step_with_a_counter_loses_nothing_whichever_part_it_measures(length_ms: float) -> None:
    assert counted(loop(length_ms), COUNTER, COUNTER._replace(window_ns=25 * MS)) == pytest.approx(0.0, abs=0.01)


def test_growth_over_several_periods_has_a_window_in_each() -> None:
    part, slow = COUNTER._replace(window_ns=25 * MS), STAMPS[::3]
    # Windows of the latest periods alone would show one third of an execution.
    assert counted(loop(150.0), COUNTER, part, stamps=slow) == pytest.approx(0.45, abs=0.05)
    assert counted(loop(75.0), COUNTER, part, stamps=slow) == pytest.approx(0.0, abs=0.01)


def test_a_reader_that_is_faster_than_the_sensor_sees_no_more() -> None:
    parts, often = UnseenParts(), np.arange(1, 1501) * 20 * MS
    parts.renew(POWER_AVERAGE, (PART._replace(period_ns=100 * MS),), read(often), loop(100.0), 2)
    assert parts.share(ALONE) == pytest.approx(0.75, abs=0.05)


def test_few_executions_at_random_moments_leave_out_parts_by_chance_alone() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        starts = np.sort(rng.uniform(0, 30_000 * MS, 12).astype(np.int64))
        some = Pieces(
            np.arange(12), starts, np.minimum(starts + 100 * MS, np.append(starts[1:], starts[-1] + 100 * MS))
        )
        column = np.ones(12, np.int64)
        assert unseen(ActiveTime.of(some, column, column)) < 0.1


def test_overlapping_executions_are_counted_too() -> None:
    one = loop(100.0)
    starts, ends = np.repeat(one.starts, 2), np.repeat(one.ends, 2)
    both = Pieces(np.arange(len(starts)), starts, ends)
    column = np.resize([1, 2], len(starts))
    parts = UnseenParts()
    parts.renew(POWER_AVERAGE, (PART,), read(STAMPS), ActiveTime.of(both, column, column + 2), 5)
    assert parts.share(np.array([0.0, 0.0, 0.0, 0.5, 0.5])) == pytest.approx(0.75, abs=0.05)


def test_many_executions_at_once_take_little_memory() -> None:
    edges = np.arange(500) * MS
    many = Pieces(np.arange(500), edges, edges + 31_000 * MS)
    column, parts = np.resize([1, 2], 500), UnseenParts()
    active = ActiveTime.of(many, column, column + 2)
    tracemalloc.start()
    try:
        parts.renew(POWER_AVERAGE, (PART,), read(STAMPS), active, 5)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()
    assert parts._shown[:, :-2].sum() == pytest.approx(300 * 25 * MS)


def test_windows_that_were_settled_stay_and_merged_columns_keep_their_time() -> None:
    parts = UnseenParts()
    parts.renew(POWER_AVERAGE, (PART,), read(STAMPS[:150]), loop(100.0), 2)
    parts.settle()
    # The other quarters are seen later.
    for quarter in (1, 2, 3):
        parts.add(read(STAMPS[150:] - quarter * 25 * MS), loop(100.0), 2)
    assert parts.share(ALONE) == 0.0
    parts.renew(POWER_AVERAGE, (PART,), read(STAMPS[:2]), loop(100.0), 2)
    assert parts.share(ALONE) == pytest.approx(0.75, abs=0.05)
    parts.merge(1, 3)
    assert parts.share(np.array([0.0, 0.0, 0.0, 1.0])) == pytest.approx(0.75, abs=0.05)
    assert parts.share(ALONE) == 0.0


def fit_of(most: float) -> Fit:
    rng = np.random.default_rng(2)
    equations = Equations(columns=2)
    shares = rng.uniform(0.2, 1.0, (300, 1)) * [[-1.0, 1.0]] + [[1.0, 0.0]]
    equations.add(shares, shares @ [50.0, 300.0] + rng.normal(0, 1.0, 300))
    return Fit(equations, most=most)


def test_the_interval_includes_any_possible_power_in_unseen_parts() -> None:
    fit, parts = fit_of(400.0), UnseenParts()
    assert parts.widened(fit, ALONE) == fit.rate(ALONE)
    # A sixteenth is unseen: each execution begins 94 ms before the next window, and lasts 100 ms.
    for moved in range(0, 94, 5):
        parts._sensor = PART
        parts.add(read(STAMPS + min(moved, 68) * MS + 25 * MS), loop(100.0), 2)
    share = parts.share(ALONE)
    assert 0.03 < share < 0.1
    rate = parts.widened(fit, ALONE)
    assert rate.reason == ""
    assert rate.value == fit.rate(ALONE).value
    assert rate.half_width == pytest.approx(share * rate.value, rel=0.1)


def test_a_rate_is_refused_if_most_of_the_executions_is_unseen() -> None:
    parts = UnseenParts()
    parts.renew(POWER_AVERAGE, (PART,), read(STAMPS), loop(100.0), 2)
    assert parts.widened(fit_of(700.0), ALONE).reason == LOCK_STEP
