from typing import Any

import numpy as np
import pytest
from unit.history.columns import MS, T0, THROTTLE, column, reading, window

from gpu_profile.catalogue import Signal, signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import (
    CLOCK_SM,
    ECC_CORRECTED,
    ENERGY,
    MEMORY_USED,
    PCIE_RX,
    PCIE_TX,
    POWER,
    UTILIZATION,
)
from gpu_profile.history.ledger import LONGEST_HOLD_NS
from gpu_profile.history.rows import Cumulative
from gpu_profile.history.timeline import Column
from gpu_profile.units import NS_PER_S

# ---------------------------------------------------------------------- nothing, and the edges of what is known


def test_an_empty_column_knows_nothing() -> None:
    empty = Column(UTILIZATION, 2)
    assert len(empty) == 0
    assert (empty.watermark_ns, empty.oldest_ns, empty.last) == (None, None, None)
    assert empty.integral(T0, T0 + NS_PER_S) == Cumulative(0, 0)
    assert empty.cumulative(T0) == Cumulative(0, 0)
    assert len(empty.rows(T0, T0 + 1).values) == 0
    assert [len(part) for part in empty.edges(0, T0)] == [0, 0, 0]
    masses, covered = empty.integrals(np.array([T0]), np.array([T0 + 1]))
    assert (masses.tolist(), covered.tolist()) == ([0], [0])


@pytest.mark.parametrize(
    ("a", "b"),
    [(-10, -5), (-10, 0), (100, 200), (150, 10**16), (50, 50), (0, 0), (100, 100)],
    ids=[
        "before",
        "up to the start",
        "after",
        "long after",
        "nothing inside",
        "nothing at the start",
        "nothing at end",
    ],
)
def test_an_interval_outside_the_history_or_of_no_length_covers_nothing(a: int, b: int) -> None:
    held = Column(UTILIZATION, 4)
    held.append(window(T0, T0 + 100, 40))
    assert held.integral(T0 + a, T0 + b) == Cumulative(0, 0)
    masses, covered = held.integrals(np.array([T0 + a]), np.array([T0 + b]))
    assert (masses.tolist(), covered.tolist()) == ([0], [0])
    assert not held.rows(T0 + a, T0 + b).weights.any()


def test_only_the_part_of_a_row_that_overlaps_counts() -> None:
    held = Column(UTILIZATION, 4)
    held.append(window(T0, T0 + 100, 40))
    held.append(window(T0 + 100, T0 + 200, 60))
    assert held.integral(T0 + 90, T0 + 110) == Cumulative(10 * 40 + 10 * 60, 20)
    assert held.integral(T0 - 1000, T0 + 10) == Cumulative(400, 10)
    assert held.rows(T0 + 90, T0 + 110).weights.tolist() == [10, 10]
    assert held.rows(T0 + 90, T0 + 110).lengths.tolist() == [100, 100]


def test_a_gap_is_covered_by_nobody_and_adds_nothing() -> None:
    held = Column(UTILIZATION, 4)
    held.append(window(T0, T0 + 100, 40))
    held.append(window(T0 + 10**15, T0 + 10**15 + 100, 60))
    assert held.integral(T0, T0 + 10**15 + 100) == Cumulative(100 * 40 + 100 * 60, 200)
    assert held.integral(T0 + 100, T0 + 10**15) == Cumulative(0, 0)


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    held = column(THROTTLE, (T0, 0), (T0 + 10, 5))
    with pytest.raises(ValueError, match="ends before it starts"):
        held.integral(T0 + 1, T0)
    with pytest.raises(ValueError, match="ends before it starts"):
        held.rows(T0 + 1, T0)
    with pytest.raises(ValueError, match="ends before it starts"):
        held.integrals(np.array([T0, T0 + 1]), np.array([T0 + 1, T0]))


def test_a_gap_inside_old_rows_is_covered_by_nothing_in_a_batch_either() -> None:
    power = Column(POWER, 2, older=12)
    for start in (0, 1, 2, 4, 5, 6, 7):  # nothing covers 3 to 4
        power.append(window(T0 + start, T0 + start + 1, 1, POWER))
    edges = [(T0 + a, T0 + b) for a in range(9) for b in range(a, 9)]
    for a, b in edges:
        # Beside it only intervals at its edges: what lies between is not read row by row.
        masses, covered = power.integrals(np.array([a, a, b]), np.array([a, b, b]))
        assert (int(masses[1]), int(covered[1])) == power.integral(a, b)


def test_a_batch_cuts_intervals_that_could_overflow_and_gives_python_ints_where_sums_do_not_fit() -> None:
    held, hour = Column(POWER, 64), 3600 * NS_PER_S
    for i in range(40):
        held.append(window(T0 + i * hour, T0 + (i + 1) * hour, POWER.limit, POWER))
    starts, ends = np.array([0, T0, T0]), np.array([T0 + 40 * hour, T0 + 10, 1 << 62])
    masses, covered = held.integrals(starts, ends)
    assert masses.tolist() == [40 * hour * POWER.limit, 10 * POWER.limit, 40 * hour * POWER.limit]
    assert covered.tolist() == [40 * hour, 10, 40 * hour]
    assert held.integrals(starts[1:2], ends[1:2])[0].dtype == np.int64


@pytest.mark.parametrize(
    ("starts", "ends"),
    [([0.5], [2.5]), ([float("nan")], [1.0]), ([1, 2], [3])],
    ids=["parts of a nanosecond", "no moment", "an edge too few"],
)
def test_a_batch_refuses_edges_that_are_not_pairs_of_whole_nanoseconds(starts: list[Any], ends: list[Any]) -> None:
    held = Column(POWER, 4)
    for ask in (held.integrals, held.maxima):
        with pytest.raises(ValueError, match="two arrays of whole ns, of the same length"):
            ask(np.array(starts), np.array(ends))


def test_a_column_needs_room_for_two_rows() -> None:
    with pytest.raises(ValueError, match="at least 2 rows, not 1"):
        Column(POWER, 1)


# ---------------------------------------------------------------------- what is left out, and why


def test_late_and_duplicate_samples_are_left_out_and_counted() -> None:
    held = Column(UTILIZATION, 8)
    assert held.append(window(T0, T0 + 100, 40))
    assert not held.append(window(T0, T0 + 100, 99))
    assert not held.append(window(T0, T0 + 50, 99))
    assert held.dropped == {"duplicate": 1, "late": 1}
    assert held.integral(T0, T0 + 100) == Cumulative(4000, 100)


def test_overlapping_windows_count_no_time_twice() -> None:
    held = Column(POWER, 8)
    for i in range(1, 6):
        held.append(window(T0 + 100 * i - 1000, T0 + 100 * i, 7, POWER))
    assert held.integral(T0 - 10_000, T0 + 10_000) == Cumulative(7 * 1400, 1400)


def test_a_window_that_ends_before_it_starts_has_no_length() -> None:
    held = Column(UTILIZATION, 8)
    assert held.append(window(T0 + 500, T0 + 100, 40))
    assert held.integral(T0, T0 + NS_PER_S) == Cumulative(0, 0)


@pytest.mark.parametrize("value", [2 * UTILIZATION.limit, -2 * UTILIZATION.limit, 0xFFFF_FFFF, 1 << 80])
def test_values_far_beyond_a_signals_limit_are_left_out_and_counted(value: int) -> None:
    held = Column(UTILIZATION, 4)
    held.append(window(T0, T0 + 100, 40))
    assert not held.append(window(T0 + 100, T0 + 200, value))
    assert held.dropped == {"implausible": 1}
    assert held.integral(T0, T0 + 200) == Cumulative(4000, 100)


@pytest.mark.parametrize("value", [-1, 1 << 63, (1 << 64) - 1])
def test_a_counter_that_does_not_fit_is_left_out_and_counted(value: int) -> None:
    held = column(THROTTLE, (T0, 100), (T0 + NS_PER_S, value), (T0 + 2 * NS_PER_S, 300))
    assert held.dropped == {"implausible": 1}
    assert held.integral(T0, T0 + 2 * NS_PER_S) == Cumulative(200, 2 * NS_PER_S)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5, "7", None])
def test_values_that_are_no_whole_numbers_are_left_out_and_counted(value: Any) -> None:
    held = Column(UTILIZATION, 4)
    held.append(window(T0, T0 + 100, 40))
    assert not held.append(window(T0 + 100, T0 + 200, value))
    assert not held.append(window(T0 + 100, value, 40))
    assert not held.append(window(value, T0 + 200, 40))
    assert held.dropped == {"not a whole number": 3}
    assert held.integral(T0, T0 + 200) == Cumulative(4000, 100)


def test_a_whole_number_of_another_type_is_as_good_as_an_int() -> None:
    held = Column(POWER, 4)
    assert held.append(window(np.int64(T0), np.int64(T0 + 10**12), np.int32(4_000_000), POWER))  # type: ignore[arg-type]
    assert held.integral(T0, T0 + 10**12) == Cumulative(4 * 10**18, 10**12)


@pytest.mark.parametrize("stamp", [1 << 62, -(1 << 62), 1 << 80])
def test_stamps_that_are_no_time_are_left_out_and_counted(stamp: int) -> None:
    held = Column(UTILIZATION, 4)
    assert not held.append(window(T0, stamp, 1))
    assert not held.append(window(stamp, T0, 1))
    assert held.dropped == {"implausible": 2}


def test_a_reset_counter_loses_the_growth_that_nobody_saw_and_says_so() -> None:
    held = column(THROTTLE, (T0, 900), (T0 + 100, 1000), (T0 + 200, 30), (T0 + 300, 50))
    assert held.dropped == {"reset": 1}
    assert held.integral(T0, T0 + 300) == Cumulative(100 + 20, 200)


@pytest.mark.parametrize(
    ("row", "before"), [(ECC_CORRECTED, 5), (signal("pcie_replays"), 7), (THROTTLE, 3_000_000_000)]
)
def test_a_counter_that_restarts_after_a_driver_reload_is_not_taken_for_one_that_wrapped(
    row: Signal, before: int
) -> None:
    held = column(row, (T0, before), (T0 + 5 * NS_PER_S, 0), (T0 + 6 * NS_PER_S, 2))
    assert held.dropped == {"reset": 1}
    assert held.total_mass == 2


@pytest.mark.parametrize("row", [PCIE_RX, PCIE_TX])
def test_a_32_bit_counter_that_wraps_goes_on(row: Signal) -> None:
    held = column(row, (T0, (1 << 32) - 700), (T0 + NS_PER_S, 300))
    assert held.dropped == {"wrapped": 1}
    assert held.integral(T0, T0 + NS_PER_S) == Cumulative(1000, NS_PER_S)


def test_a_64_bit_counter_that_falls_below_where_it_was_has_restarted() -> None:
    held = column(PCIE_RX, (T0, (1 << 32) + 5), (T0 + NS_PER_S, 1000))
    assert held.dropped == {"reset": 1}


def test_a_wrap_that_would_mean_an_impossible_rate_is_a_reset() -> None:
    held = column(PCIE_RX, (T0, 10), (T0 + 1000, 0))
    assert held.dropped == {"reset": 1}
    assert held.total_mass == 0


def test_a_counter_that_its_driver_has_not_renewed_yet_keeps_its_row_open() -> None:
    held = Column(ENERGY, 8)
    for i, raw in enumerate([1000, 1000, 1000, 4000]):
        held.append(reading(T0 + 20 * MS * i, raw, ENERGY))
    assert held.dropped == {"duplicate": 2}
    assert held.integral(T0, T0 + 60 * MS) == Cumulative(3000, 60 * MS)
    assert held.integral(T0, T0 + 20 * MS) == Cumulative(1000, 20 * MS)


def test_a_counter_that_stays_still_for_longer_than_its_refresh_did_not_grow() -> None:
    held = column(ENERGY, (T0, 1000), (T0 + 200 * MS, 1000))
    assert held.dropped == {}
    assert held.integral(T0, T0 + 200 * MS) == Cumulative(0, 200 * MS)


def test_a_counters_first_reading_says_nothing_of_the_time_before_it() -> None:
    held = column(THROTTLE, (T0, 123_456))
    assert held.integral(0, T0 + NS_PER_S) == Cumulative(0, 0)
    assert held.total_mass == 0
    assert held.last == Sample(THROTTLE, T0, T0, 123_456)


# ---------------------------------------------------------------------- instants


def test_an_instant_holds_back_to_the_reading_before_it() -> None:
    held = column(MEMORY_USED, (T0, 100), (T0 + NS_PER_S, 300))
    assert held.integral(T0, T0 + NS_PER_S) == Cumulative(300 * NS_PER_S, NS_PER_S)


@pytest.mark.parametrize(("gap", "covered"), [(LONGEST_HOLD_NS, LONGEST_HOLD_NS), (LONGEST_HOLD_NS + 1, 0)])
def test_an_instant_holds_for_at_most_the_longest_hold(gap: int, covered: int) -> None:
    held = column(CLOCK_SM, (T0, 1000), (T0 + gap, 1980))
    assert held.integral(T0, T0 + gap).covered_ns == covered
    assert held.last == Sample(CLOCK_SM, T0 + gap, T0 + gap, 1980)
