from __future__ import annotations

import numpy as np
import pytest

from gpu_profile.catalogue import Signal, signal
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, PCIE_RX, POWER_AVERAGE, UTILIZATION
from gpu_profile.join import ActiveTime, Activity, Reading, Segment, exclusive, quantile, read, segments
from gpu_profile.samples import Interval, Sample
from gpu_profile.timeline import Column
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
THROTTLE = signal("throttle_sw_thermal")


def windows(row: Signal, *values: int, length: int = 100 * MS) -> Column:
    column = Column(row, max(2, len(values)))
    for i, value in enumerate(values):
        column.append(Sample(row, T0 + i * length, T0 + (i + 1) * length, value))
    return column


def readings(row: Signal, *points: tuple[int, int]) -> Column:
    column = Column(row, max(2, len(points)))
    for t, value in points:
        column.append(Sample(row, T0 + t, T0 + t, value))
    return column


def during(a: int, b: int) -> Interval:
    return Interval(T0 + a, T0 + b)


def measured(reading: Reading | None) -> Reading:
    assert reading is not None
    return reading


# ---------------------------------------------------------------------- read


def test_a_mean_weighs_every_window_by_its_overlap() -> None:
    reading = measured(read(windows(GRAPHICS, 10_000, 0, 5_000), during(50 * MS, 250 * MS)))
    assert reading.mean == pytest.approx((0.5 * 1 + 1 * 0 + 0.5 * 0.5) / 2)
    assert reading.total == pytest.approx(0.05 * 1 + 0.05 * 0.5)
    assert (reading.maximum, reading.coverage, reading.n) == (1.0, 1.0, 3)


def test_a_mean_is_over_the_covered_part_only_and_coverage_says_how_much_that_is() -> None:
    reading = measured(read(windows(UTILIZATION, 80), during(-100 * MS, 100 * MS)))
    assert (reading.mean, reading.coverage) == pytest.approx((0.8, 0.5))


@pytest.mark.parametrize(("a", "b"), [(-20, -10), (300, 400), (10, 10), (20, 10)])
def test_what_no_sample_covers_is_absent_and_not_zero(a: int, b: int) -> None:
    assert read(windows(UTILIZATION, 50, 50), during(a * MS, b * MS)) is None


def test_an_empty_column_and_a_lone_counter_reading_say_nothing() -> None:
    assert read(Column(UTILIZATION, 2), during(0, MS)) is None
    assert read(readings(ENERGY, (0, 1234)), during(-MS, MS)) is None


def test_a_measured_zero_is_zero() -> None:
    assert measured(read(windows(UTILIZATION, 0, 0), during(0, 150 * MS))).mean == 0.0


def test_a_counters_growth_is_spread_evenly_between_its_readings() -> None:
    column = readings(ENERGY, (0, 0), (100 * MS, 30_000), (200 * MS, 40_000))
    reading = measured(read(column, during(50 * MS, 150 * MS)))
    assert reading.total == pytest.approx(15 + 5)
    assert reading.mean == pytest.approx(200)


def test_a_counters_maximum_is_its_fastest_row_however_little_of_it_overlaps() -> None:
    column = readings(ENERGY, (0, 0), (100 * MS, 30_000), (200 * MS, 40_000))
    assert measured(read(column, during(99 * MS, 200 * MS))).maximum == pytest.approx(300)


def test_resolution_is_the_widest_reading_over_the_interval_even_where_the_reading_reaches_beyond_it() -> None:
    slow = readings(PCIE_RX, (0, 0), (10_000 * MS, 1000))
    assert measured(read(slow, during(0, 100 * MS))).resolution == pytest.approx(100)
    assert measured(read(windows(GRAPHICS, *[5000] * 20), during(0, 2_000 * MS))).resolution == pytest.approx(0.05)


def test_resolution_is_that_of_the_sensors_window_where_windows_overlap() -> None:
    column = Column(POWER_AVERAGE, 64)
    for i in range(1, 31):
        column.append(Sample(POWER_AVERAGE, T0 + (i - 10) * 100 * MS, T0 + i * 100 * MS, 300_000))
    assert measured(read(column, during(0, 2_000 * MS))).resolution == pytest.approx(0.5)


def test_readings_of_no_length_are_not_counted() -> None:
    column = readings(MEMORY_USED, (0, 10), (10_000 * MS, 20), (11_000 * MS, 30))
    reading = measured(read(column, during(9_000 * MS, 11_000 * MS)))
    assert (reading.n, reading.coverage) == (1, 0.5)


# ---------------------------------------------------------------------- quantile


def test_a_quantile_weighs_values_by_time() -> None:
    column = Column(UTILIZATION, 4)
    column.append(Sample(UTILIZATION, T0, T0 + 90, 10))
    column.append(Sample(UTILIZATION, T0 + 90, T0 + 100, 99))
    found = [quantile(column, during(0, 100), q) for q in (0.0, 0.5, 0.9, 0.91, 1.0)]
    assert found == [pytest.approx(v) for v in (0.10, 0.10, 0.10, 0.99, 0.99)]
    assert quantile(column, during(85, 95), 0.51) == pytest.approx(0.99)


def test_a_quantile_of_nothing_is_absent() -> None:
    assert quantile(Column(UTILIZATION, 2), during(0, 10), 0.5) is None
    assert quantile(readings(MEMORY_USED, (0, 10)), during(-5, 5), 0.5) is None


def test_a_quantile_outside_0_to_1_or_of_a_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="lies in 0-1, not 95"):
        quantile(windows(UTILIZATION, 5), during(0, 1), 95)
    with pytest.raises(ValueError, match="energy: a counter has growth"):
        quantile(readings(ENERGY, (0, 0), (10, 5)), during(0, 10), 0.5)


# ---------------------------------------------------------------------- segments, exclusive


def activity(key: str, start: int, end: int | None, parent: str | None = None) -> Activity:
    return Activity(key, parent, f"region {key}", start, end)


def keys(cuts: list[Segment]) -> list[tuple[int, int, str]]:
    return [(cut.start_ns, cut.end_ns, "".join(sorted(str(a.key) for a in cut.innermost))) for cut in cuts]


def test_without_activities_all_time_is_nobodys() -> None:
    assert segments([], 0, 10) == [Segment(0, 10, ())]
    assert segments([], 10, 10) == []


def test_a_parent_gets_the_time_in_which_no_child_of_its_runs() -> None:
    nested = [activity("p", 0, 100), activity("c", 20, 50, "p"), activity("g", 30, 40, "c")]
    assert keys(segments(nested, 0, 120)) == [
        (0, 20, "p"),
        (20, 30, "c"),
        (30, 40, "g"),
        (40, 50, "c"),
        (50, 100, "p"),
        (100, 120, ""),
    ]


def test_a_child_that_spans_its_parent_leaves_it_nothing() -> None:
    assert keys(segments([activity("p", 0, 10), activity("c", 0, 10, "p")], 0, 10)) == [(0, 10, "c")]


def test_a_child_that_outlives_its_parent_keeps_running_alone() -> None:
    cuts = segments([activity("p", 0, 10), activity("c", 5, 15, "p")], 0, 20)
    assert keys(cuts) == [(0, 5, "p"), (5, 10, "c"), (10, 15, "c"), (15, 20, "")]


def test_an_activity_whose_parent_is_not_active_here_counts_like_any_other() -> None:
    assert keys(segments([activity("a", 0, 9), activity("b", 0, 9, "elsewhere")], 0, 9)) == [(0, 9, "ab")]


def test_concurrent_innermost_activities_share_a_segment() -> None:
    cuts = segments([activity("a", 0, 30), activity("b", 10, 20), activity("c", 10, 30)], 0, 30)
    assert keys(cuts) == [(0, 10, "a"), (10, 20, "abc"), (20, 30, "ac")]


def test_an_activity_that_still_runs_reaches_to_the_end_and_edges_are_clipped() -> None:
    assert keys(segments([activity("a", -50, None), activity("b", 90, 500)], 0, 100)) == [(0, 90, "a"), (90, 100, "ab")]


def test_an_activity_of_no_length_or_outside_of_the_stretch_takes_no_time() -> None:
    outside = [activity("a", 5, 5), activity("b", -9, 0), activity("c", 10, 20), activity("d", 8, 3)]
    assert segments(outside, 0, 10) == [Segment(0, 10, ())]


def test_an_execution_that_is_met_twice_counts_once() -> None:
    assert keys(segments([activity("a", 0, None), activity("a", 0, 6)], 0, 10)) == [(0, 6, "a"), (6, 10, "")]


def test_what_does_not_divide_goes_to_the_first_activities_of_the_segment() -> None:
    column = readings(THROTTLE, (0, 0), (10, 11))
    cuts = [Segment(T0, T0 + 10, (activity("a", 0, 9), activity("b", 0, 9), activity("c", 0, 9)))]
    assert exclusive(column, cuts) == ({"a": 4, "b": 4, "c": 3}, 0)


def test_nobodys_time_is_the_rest() -> None:
    column = windows(UTILIZATION, 50, length=100)
    cuts = segments([activity("a", T0 + 10, T0 + 30)], T0, T0 + 100)
    assert exclusive(column, cuts) == ({"a": 50 * 20}, 50 * 80)


# ---------------------------------------------------------------------- active time


def test_active_time_of_a_window_is_the_overlap_with_the_regions_exclusive_time() -> None:
    active = ActiveTime(segments([activity("a", 100, 200), activity("b", 150, 250)], 100, 300))
    assert (active.total_ns("region a"), active.total_ns("region b")) == (75, 75)
    starts, ends = np.array([0.0, 25, 75, -50]), np.array([50.0, 100, 175, 10])
    assert active.during("region a", starts, ends).tolist() == [50, 50, 12.5, 10]


def test_active_time_of_nothing_has_no_regions() -> None:
    assert list(ActiveTime([]).regions) == []
    assert list(ActiveTime([Segment(0, 10, ())]).regions) == []
