import pytest

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Interval, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, PCIE_RX, POWER_AVERAGE, UTILIZATION
from gpu_profile.history.timeline import Column
from gpu_profile.join.reading import Reading, quantiles, read
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S


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
    found = quantiles(column, during(0, 100), 0.0, 0.5, 0.9, 0.91, 1.0)
    assert found == [pytest.approx(v) for v in (0.10, 0.10, 0.10, 0.99, 0.99)]
    assert quantiles(column, during(85, 95), 0.51) == pytest.approx([0.99])


def test_a_quantile_of_nothing_is_absent() -> None:
    assert quantiles(Column(UTILIZATION, 2), during(0, 10), 0.5) == [None]
    assert quantiles(readings(MEMORY_USED, (0, 10)), during(-5, 5), 0.5, 1.0) == [None, None]


def test_a_quantile_outside_0_to_1_or_of_a_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="lies in 0-1, not 95"):
        quantiles(windows(UTILIZATION, 5), during(0, 1), 0.5, 95)
    with pytest.raises(ValueError, match="energy: a counter has growth"):
        quantiles(readings(ENERGY, (0, 0), (10, 5)), during(0, 10), 0.5)
