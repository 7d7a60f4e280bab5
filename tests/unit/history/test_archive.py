import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.history.archive import BlockArchive, decode, encode, pack, pack_moments, unpack, unpack_moments
from gpu_profile.history.rows import Cumulative, Ints, RowTable, joined, wrap

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
moments = st.integers(-(1 << 61), 1 << 61)
HEADER = len(pack(np.array([0])))


@given(st.lists(st.one_of(int64, st.integers(-3, 3), st.sampled_from([-(1 << 63), (1 << 63) - 1])), min_size=1))
def test_any_values_come_back_as_they_went_in(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert unpack(pack(array), len(array)).tolist() == values


@given(st.lists(moments, min_size=1, unique=True))
def test_any_rising_moments_come_back_as_they_went_in(edges: list[int]) -> None:
    array = np.array(sorted(edges), np.int64)
    assert unpack_moments(pack_moments(array), len(array)).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [
        ([7] * 100, 0),
        (range(0, 25_500, 100), 1),
        ([1980 - 15 * (i % 20) for i in range(100)], 1),
        ([1_000_000_000 + i % 65_536 for i in range(0, 70_000, 7)], 2),
        (range(0, 1 << 24, 65_537), 1),
        ([0, *range(1, 1 << 24, 65_537)], 3),
        ([0, 1, (1 << 63) - 1], 8),
    ],
    ids=["always the same", "a step of 100", "steps down", "far from 0", "another step", "3 bytes", "8 bytes"],
)
def test_values_take_no_more_bytes_than_their_range_in_steps_needs(values: list[int], bytes_each: int) -> None:
    array = np.array(list(values), np.int64)
    assert len(pack(array)) == HEADER + bytes_each * len(array)


def test_steady_stamps_take_hardly_any_room_and_jitter_only_what_it_is_wide() -> None:
    even = 1_700_000_000 * 10**9 + np.arange(1000) * 10_000_000
    jitter = np.random.default_rng(1).integers(-100, 100, 1000) * 1000
    assert len(pack_moments(even)) < 100
    assert len(pack_moments(even + jitter)) < 100 + 1 * 1000


def table(rows: list[tuple[int, int, int]], before: Cumulative, *, counter: bool) -> RowTable:
    """Rows of `(gap, length, value)`; a counter's value is what it grew by."""
    starts, ends, masses, covered, values = [], [], [], [], []
    at, mass, time = 1_000, before.mass, before.covered_ns
    for gap, length, value in rows:
        starts.append(at + gap)
        at += gap + length
        ends.append(at)
        mass += value if counter else value * length
        time += length
        values.append(value)
        masses.append(wrap(mass))
        covered.append(time)
    columns: list[Ints] = [np.array(part, np.int64) for part in (starts, ends, values, masses, covered)]
    return RowTable(*columns, before.mass, counter)  # type: ignore[arg-type, call-arg]


def shaped(lengths: st.SearchStrategy[int]) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    gaps = st.one_of(st.just(0), st.integers(0, 10**12))
    return st.lists(st.tuples(gaps, lengths, int64), min_size=1, max_size=30)


lengths = st.one_of(st.integers(1, 10), st.integers(1, 10**15))


@given(shaped(lengths), st.builds(Cumulative, int64, st.integers(0, 1 << 60)))
def test_rows_with_values_come_back_with_their_sums_to_the_last_bit(
    rows: list[tuple[int, int, int]], before: Cumulative
) -> None:
    there = table(rows, before, counter=False)
    back = decode(encode(there, []), len(rows), int(there.starts[0]), before, counter=False)
    assert [part.tolist() for part in back[:5]] == [part.tolist() for part in there[:5]]
    assert back.before == there.before


@given(shaped(lengths.map(lambda n: n)), st.builds(Cumulative, int64, st.integers(0, 1 << 60)))
def test_a_counters_rows_come_back_but_for_its_readings(rows: list[tuple[int, int, int]], before: Cumulative) -> None:
    there = table(rows, before, counter=True)
    back = decode(encode(there, []), len(rows), int(there.starts[0]), before, counter=True)
    for field in ("starts", "ends", "masses", "covered"):
        assert getattr(back, field).tolist() == getattr(there, field).tolist()


def history(rows: int, block: int) -> tuple[BlockArchive, RowTable]:
    rng = np.random.default_rng(3)
    drawn = [(int(gap), int(n), int(v)) for gap, n, v in rng.integers(0, 50, (rows, 3))]
    whole = table([(gap, 1 + n, v) for gap, n, v in drawn], Cumulative(5, 7), counter=False)
    held = BlockArchive.empty(counter=False)
    for lo in range(0, rows, block):
        held = held.with_block(whole.between(lo, lo + block), [])
    return held, whole


def test_a_history_answers_as_its_rows_would_wherever_an_interval_begins_and_ends() -> None:
    held, whole = history(100, 9)
    for a in range(900, int(whole.ends[-1]), 61):
        assert held.cumulative(a) == whole.cumulative(a)
        for b in range(a, int(whole.ends[-1]) + 100, 97):
            rows = whole.overlapping(a, b)
            peak, n = whole.peak(rows)
            assert held.extent(a, b) == (0, 0, peak, n, whole.reach(a, b, rows))


def test_a_view_keeps_the_rows_of_the_moments_and_sums_of_all() -> None:
    held, whole = history(100, 9)
    asked = np.array([1_000, 1_200, int(whole.ends[50])])
    view = joined([piece.table for piece in held.view(asked, asked)])
    assert len(view.ends) < 40
    assert [view.cumulative(t) for t in asked.tolist()] == [whole.cumulative(t) for t in asked.tolist()]
    assert view.ends[-1] == whole.ends[-1]
    assert view.masses[-1] == whole.masses[-1]


def test_a_history_never_changes() -> None:
    held, _ = history(40, 10)
    shorter = held.without(2)
    assert (held.rows, shorter.rows) == (40, 20)
    assert shorter.start_ns > held.start_ns
    assert shorter.cumulative(shorter.end_ns) == held.cumulative(held.end_ns)
    assert held.without(0) is held


def test_only_blocks_that_nobody_needs_are_surplus() -> None:
    held, whole = history(40, 10)
    assert [held.surplus(rows, None) for rows in (0, 1, 10, 11, 30, 31, 100)] == [4, 3, 3, 2, 1, 0, 0]
    assert held.surplus(100, int(whole.ends[9]) - 1) == 0
    assert held.surplus(100, int(whole.ends[9])) == 1
