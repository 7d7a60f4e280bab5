import gc
import weakref

import numpy as np
import pytest

from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.windows.active_time import ActiveTime, TabledTime
from gpu_profile.join.unmixing.windows.activities import Pieces, concurrency
from gpu_profile.join.unmixing.windows.probes import TAIL_NS, ProbeKind
from gpu_profile.units import NS_PER_S

T0 = 1_700_000_000 * NS_PER_S


def active(*stretches: tuple[int, int, int]) -> ActiveTime:
    """From (column, start, end), by start; shared time is of the tenth column after."""
    column, starts, ends = (np.array([s[i] for s in stretches], np.int64) for i in range(3))
    alone = column.astype(np.int16)
    return ActiveTime.of(Pieces(column, starts, ends), alone, alone + np.int16(10))


def between(time: ActiveTime, *moments: int, columns: int = 20) -> dict[int, list[float]]:
    sums = np.diff(time.until(np.array(moments), columns))
    return {column: found for column, found in enumerate(sums.tolist()) if any(found)}


def test_time_of_nothing_is_nobodys() -> None:
    assert between(active(), 0, 10) == {}
    assert [part.tolist() for part in active().lengths()] == [[], []]


def test_no_moments_have_no_sums() -> None:
    none: Ints = np.zeros(0, np.int64)
    assert active((1, 0, 10)).until(none, 3).shape == (3, 0)


def test_one_after_the_other_is_all_alone() -> None:
    assert between(active((1, 0, 10), (2, 10, 15), (1, 20, 30)), 0, 5, 12, 25, 99) == {1: [5, 5, 5, 5], 2: [0, 2, 3, 0]}


def test_the_latest_ends_take_no_memory_where_no_pieces_coincide() -> None:
    apart = active((1, 0, 10), (2, 10, 15), (1, 20, 30))
    assert apart.reached is apart.ends
    assert active((1, 0, 10), (2, 5, 8), (1, 20, 30)).reached.tolist() == [10, 10, 30]


def test_what_coincides_is_shared_equally_and_the_rest_is_alone() -> None:
    time = active((1, 0, 30), (2, 10, 20), (3, 15, 40))
    found = {column: length for column, (length,) in between(time, 0, 40).items()}
    assert found == pytest.approx({1: 10, 3: 10, 11: 5 / 2 + 5 / 3 + 10 / 2, 12: 5 / 2 + 5 / 3, 13: 5 / 3 + 10 / 2})


def test_what_an_execution_begins_with_fades_and_is_summed_up_over_executions() -> None:
    time = active((1, 0, 2_000_000), (2, 2_000_000, 9_000_000), (1, 10_000_000, 10_500_000))
    moments = np.array([0, 1_000_000, 2_000_000, 5_000_000, 9_500_000, 10_200_000, 12_000_000])
    found = time.varied(moments, np.array([-1, 0, 1]))[1][ProbeKind.START]

    def faded(since_ns: float) -> float:
        at = (np.arange(10_000) + 0.5) / 10_000 * since_ns
        return float(np.exp(-at / 3e6).mean() * since_ns)

    first, last = faded(2e6), faded(0.5e6)
    expected = [0, faded(1e6), first, first, first, first + faded(0.2e6), first + last]
    assert found[0] - found[0, 0] == pytest.approx(expected, rel=1e-6)
    assert found[1] - found[1, 0] == pytest.approx([0, 0, 0, faded(3e6), faded(7e6), faded(7e6), faded(7e6)], rel=1e-6)


def test_what_an_execution_leaves_fades_from_the_end_of_the_latest_one_on() -> None:
    time = active((1, 0, 2_000_000), (2, 2_000_000, 9_000_000), (1, 10_000_000, 10_500_000))
    moments = np.array([1_000_000, 3_000_000, 9_500_000, 10_200_000, 10_800_000, 12_000_000])
    found = time.tails(moments, np.array([-1, 1, 0]))

    def faded(since_ns: float) -> float:
        return float(TAIL_NS * -np.expm1(-since_ns / TAIL_NS))

    one, two = found[1] - found[1, 0], found[0] - found[0, 0]
    again = faded(8.5e6)
    assert one == pytest.approx([0, faded(1e6), faded(7.5e6), faded(8.2e6), again + faded(0.3e6), again + faded(1.5e6)])
    assert two == pytest.approx([0, 0, faded(0.5e6), faded(1.2e6), faded(1.8e6), faded(3e6)], abs=1.0)


@pytest.mark.parametrize("seed", range(4))
def test_what_executions_leave_has_the_mean_over_each_columns_time_that_a_fine_grid_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ends = T0 + np.cumsum(rng.integers(200_000, 6_000_000, 300))
    starts = ends - np.minimum(np.diff(ends, prepend=T0), rng.integers(100_000, 6_000_000, 300))
    column = rng.integers(1, 4, 300).astype(np.int16)
    means = ActiveTime.of(Pieces(column.astype(np.int64), starts, ends), column, np.zeros_like(column)).tail_means(
        np.array([-1, 0, -1, 1])
    )
    grid = np.arange(int(starts[0]), int(ends[-1]), 10_000)
    place = np.searchsorted(starts, grid, side="right") - 1
    owner = np.where(grid < ends[place], column[place], 0)
    for slot, of in enumerate((1, 3)):
        own = np.append(np.iinfo(np.int64).min // 2, ends[column == of])
        left = np.exp(-(grid - own[np.searchsorted(own, grid, side="right") - 1]) / TAIL_NS)
        expected = [float(left[owner == each].mean()) for each in range(4)]
        assert means[:, slot] == pytest.approx(expected, rel=0.02, abs=1e-3)


def test_no_moments_have_nothing_that_varies_also_where_pieces_coincide() -> None:
    none, slots = np.zeros(0, np.int64), np.array([-1, 0, 1])
    for time in (active((1, 0, 10), (2, 20, 30)), active((1, 0, 10), (2, 5, 30)), active()):
        running, varied = time.tabled(3).varied(none, slots)
        assert running.shape == (3, 0)
        assert {found.shape for found in varied.values()} == {(2, 0)}


def test_tables_are_made_once_where_pieces_do_not_coincide_and_are_gone_with_what_has_them() -> None:
    apart = active((1, 0, 10), (2, 20, 30))
    tabled = apart.tabled(3)
    assert isinstance(tabled, TabledTime)
    assert tabled.tabled(3) is tabled
    together = active((1, 0, 10), (2, 5, 30))
    assert together.tabled(3) is together
    assert apart.tabled(10**6) is apart
    tabled.varied(np.array([5, 25]), np.array([-1, 0, 1]))
    tabled.until(np.array([5, 25]), 3)
    gone = weakref.ref(tabled._before)
    gc.disable()
    try:
        del tabled
        assert gone() is None
    finally:
        gc.enable()


def test_two_pieces_of_one_column_that_coincide_share_with_each_other() -> None:
    assert between(active((1, 0, 10), (1, 0, 10)), 0, 10) == {11: [10]}


def test_a_piece_long_before_the_moments_counts_if_it_still_runs_then() -> None:
    assert between(active((1, 0, 1000), (2, 5, 6), (2, 7, 8)), 500, 600) == {1: [100]}


def test_moments_that_are_equal_or_outside_have_nothing_between() -> None:
    time = active((1, 10, 20), (2, 12, 14))
    assert between(time, 0, 5, 10) == {}
    assert between(time, 15, 15) == {}
    assert between(time, 20, 30, 99) == {}


def test_digits_hold_for_a_nanosecond_in_a_day_of_stamps_of_today() -> None:
    day = 24 * 3600 * NS_PER_S
    time = active((1, T0, T0 + day), (2, T0 + day, T0 + day + 1), (1, T0 + day + 1, T0 + 2 * day))
    assert between(time, T0 + day - 3, T0 + day, T0 + day + 1, T0 + day + 4) == {1: [3, 0, 3], 2: [0, 1, 0]}
    shared = active((1, T0, T0 + day), (2, T0 + day - 2, T0 + day))
    found = between(shared, T0 + day - 4, T0 + day - 2, T0 + day)
    assert found == {1: [2, 0], 11: [0, 1], 12: [0, 1]}


def test_the_highest_number_of_a_column_in_two_bytes_finds_its_row() -> None:
    most = np.iinfo(np.int16).max
    alone = np.array([most], np.int16)
    time = ActiveTime.of(Pieces(alone.astype(np.int64), np.array([0]), np.array([10])), alone, alone)
    sums = time.until(np.array([0, 2, 7, 10]), most + 1)
    assert sums[most].tolist() == [0, 2, 7, 10]
    assert not sums[:most].any()


def test_lengths_are_one_for_each_piece_alone_and_shared() -> None:
    alone, shared = active((1, 0, 30), (2, 10, 20)).lengths()
    assert (alone.tolist(), shared.tolist()) == ([20, 0], [5, 5])


def test_of_several_changes_at_one_moment_the_last_one_counts() -> None:
    found = Pieces(np.arange(3), np.array([0, 5, 5]), np.array([5, 9, 7]))
    changes, counts = concurrency(found)
    assert list(zip(changes.tolist(), counts.tolist(), strict=True)) == [(0, 1), (5, 2), (7, 1), (9, 0)]


def test_the_typical_piece_of_a_column_is_the_one_that_most_of_its_time_is_in() -> None:
    time = active((1, 0, 10), (1, 20, 50), (2, 60, 65))
    assert time.typical_ns(20)[:4].tolist() == [0, (10 * 10 + 30 * 30) / 40, 5, 0]
    assert active().typical_ns(3).tolist() == [0, 0, 0]


def test_time_between_two_moments_may_be_of_long_pieces_only() -> None:
    time = active((1, 0, 30), (2, 40, 45), (1, 45, 60), (3, 50, 90))
    assert time.spent(10, 70, 20).tolist() == pytest.approx([0, 25, 5, 10, *[0] * 7, 5, 0, 5, *[0] * 6])
    assert time.spent(10, 70, 20, least_ns=16).tolist() == pytest.approx([0, 20, 0, 10, *[0] * 9, 5, *[0] * 6])
