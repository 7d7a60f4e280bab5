from fractions import Fraction
from itertools import pairwise
from math import floor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.catalogue import Kind, Signal, signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import MEMORY_USED, POWER, UTILIZATION
from gpu_profile.history.ledger import LONGEST_HOLD_NS
from gpu_profile.history.rows import Cumulative, wrap
from gpu_profile.history.timeline import Column
from gpu_profile.units import NS_PER_S

THROTTLE = signal("throttle_hw_thermal")
T0 = 1_700_000_000 * NS_PER_S


class Row(NamedTuple):
    start: int
    end: int
    mass: int


class History(NamedTuple):
    """A column, and the rows that it should hold by hand."""

    column: Column
    rows: list[Row]

    def up_to(self, t: int) -> Fraction:
        """The mass up to `t`, with whole quanta of a counter only."""
        total = Fraction(0)
        for start, end, mass in self.rows:
            if t >= end:
                total += mass
            elif t > start:
                total += floor(Fraction(mass) * (t - start) / (end - start))
        return total

    def covered(self, a: int, b: int) -> int:
        return sum(max(0, min(end, b) - max(start, a)) for start, end, _ in self.rows)


lengths = st.one_of(st.integers(1, 1000), st.integers(1, 10**9), st.integers(1, POWER.longest_exact_ns))
gaps = st.one_of(st.just(0), st.integers(0, 10**13))


#: Rows that go on in a history: none at all, none, or some.
olders = st.none() | st.integers(0, 12)


def kept(column: Column, rows: list[Row]) -> History:
    held = len(column)
    older = column._older
    if older is None:
        assert held == min(len(rows), column.capacity)
    else:
        assert min(len(rows), column.capacity + older) <= held
    return History(column, rows[len(rows) - held :])


@st.composite
def window_means(draw: st.DrawFn, row: Signal = POWER) -> History:
    values = st.integers(-row.limit, row.limit)
    column = Column(row, draw(st.integers(2, 6)), older=draw(olders))
    rows, t = [], T0
    for gap, length, value in draw(st.lists(st.tuples(gaps, lengths, values), max_size=40)):
        start, t = t + gap, t + gap + length
        column.append(Sample(row, start, t, value))
        rows.append(Row(start, t, value * length))
    return kept(column, rows)


@st.composite
def counters(draw: st.DrawFn) -> History:
    column = Column(THROTTLE, draw(st.integers(2, 6)), older=draw(olders))
    rows, t, raw = [], T0, draw(st.integers(0, 10**12))
    column.append(Sample(THROTTLE, t, t, raw))
    rows.append(Row(t, t, 0))
    growths = st.one_of(st.integers(0, 10), st.integers(0, 1 << 55))
    for length, growth in draw(st.lists(st.tuples(lengths, growths), max_size=40)):
        start, t, raw = t, t + length, raw + growth
        column.append(Sample(THROTTLE, t, t, raw))
        rows.append(Row(start, t, growth))
    return kept(column, rows)


histories = st.one_of(window_means(), counters())


@st.composite
def cuts(draw: st.DrawFn, history: History) -> list[int]:
    """Moments in order: in rows, on their edges, before and after everything."""
    edges = [edge for row in history.rows for edge in (row.start, row.end)] or [T0]
    near = st.tuples(st.sampled_from(edges), st.integers(-1000, 1000)).map(sum)
    all_threads = st.integers(min(edges) - 10**12, max(edges) + 10**12)
    return sorted(draw(st.lists(st.one_of(near, all_threads), min_size=2, max_size=8)))


@given(st.data(), histories)
def test_an_integral_equals_a_walk_with_fractions(data: st.DataObject, history: History) -> None:
    a, *_, b = data.draw(cuts(history))
    mass, covered = history.column.integral(a, b)
    assert covered == history.covered(a, b)
    lost = history.up_to(min((row.start for row in history.rows), default=0))
    assert lost == 0
    assert mass == history.up_to(b) - history.up_to(a)


@given(st.data(), histories)
def test_splitting_an_interval_anywhere_never_changes_its_sum(data: st.DataObject, history: History) -> None:
    moments = data.draw(cuts(history))
    pieces = [history.column.integral(a, b) for a, b in pairwise(moments)]
    whole = history.column.integral(moments[0], moments[-1])
    assert whole == Cumulative(sum(p.mass for p in pieces), sum(p.covered_ns for p in pieces))


@given(st.data(), histories)
def test_coverage_lies_between_none_and_all_of_an_interval(data: st.DataObject, history: History) -> None:
    a, *_, b = data.draw(cuts(history))
    assert 0 <= history.column.integral(a, b).covered_ns <= b - a


@given(st.data(), histories)
def test_a_batch_of_integrals_equals_one_at_a_time(data: st.DataObject, history: History) -> None:
    moments = data.draw(cuts(history))
    pairs = [(a, b) for a in moments for b in moments if a <= b]
    starts, ends = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
    masses, covered = history.column.integrals(starts, ends)
    assert [*zip(masses.tolist(), covered.tolist(), strict=True)] == [history.column.integral(a, b) for a, b in pairs]


@given(st.data(), histories)
def test_the_rows_of_an_interval_weigh_what_it_covers(data: st.DataObject, history: History) -> None:
    a, *_, b = data.draw(cuts(history))
    rows = history.column.rows(a, b)
    assert int(rows.weights.sum()) == history.column.integral(a, b).covered_ns
    assert (rows.weights >= 0).all()
    assert (rows.weights <= rows.lengths).all()
    if history.column.signal.kind is Kind.WINDOW_MEAN:
        walk = sum(int(v) * int(w) for v, w in zip(rows.values, rows.weights, strict=True))
        assert walk == history.column.integral(a, b).mass


@given(st.data(), histories)
def test_the_extent_of_an_interval_equals_a_look_at_its_rows(data: st.DataObject, history: History) -> None:
    a, *_, b = data.draw(cuts(history))
    rows = history.column.rows(a, b)
    found = history.column.extent(a, b)
    assert found[:2] == history.column.integral(a, b)
    held = rows.lengths > 0
    counter = history.column.signal.kind is Kind.COUNTER
    peaks = rows.values[held] / rows.lengths[held] if counter else rows.values[held]
    assert found.n == len(peaks)
    assert found.peak == (peaks.max() if len(peaks) else None)
    reaching = [end - start for start, end, _ in history.rows if start < b and end > a and (start < a or end > b)]
    assert found.edge_ns == max(reaching, default=0)


@given(st.data(), histories)
def test_a_batch_of_maxima_equals_one_at_a_time(data: st.DataObject, history: History) -> None:
    column = history.column
    moments = data.draw(cuts(history))
    pairs = [(a, b) for a in moments for b in moments if a <= b]
    starts, ends = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
    scale = column.signal.quantum * (NS_PER_S if column.signal.kind is Kind.COUNTER else 1)
    for a, b, highest, known in zip(starts.tolist(), ends.tolist(), *column.maxima(starts, ends), strict=True):
        peak = column.extent(a, b).peak
        assert known == (peak is not None)
        assert peak is None or highest == peak * scale


@given(st.data(), window_means(), st.integers(0, 40))
def test_rows_may_be_sealed_at_any_moment(data: st.DataObject, history: History, at: int) -> None:
    a, *_, b = data.draw(cuts(history))
    before = history.column.integral(a, b)
    if history.column._older and history.rows:
        history.column._older = 100
        history.column.seal(history.rows[min(at, len(history.rows) - 1)].end)
        assert history.column.integral(a, b) == before
        assert len(history.column) == len(history.rows)


@given(histories)
def test_edges_give_back_every_row_that_is_held_once(history: History) -> None:
    column = history.column
    middle = history.rows[len(history.rows) // 2].end if history.rows else T0
    found = [
        Row(int(start), int(end), int(mass))
        for after, until in ((0, middle), (middle, 1 << 62))
        for start, end, mass in zip(*column.edges(after, until), strict=True)
    ]
    # A row may weigh more than 64 bits hold; callers see it modulo 2^64, as they take rows of at most seconds.
    assert [(r.start, r.end, (r.mass - w.mass) % (1 << 64)) for r, w in zip(found, history.rows, strict=True)] == [
        (w.start, w.end, 0) for w in history.rows
    ]


@given(st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 40), st.integers(0, 100)), max_size=40))
def test_whatever_order_samples_come_in_time_is_counted_once_and_every_sample_accounted_for(
    samples: list[tuple[int, int, int]],
) -> None:
    column = Column(UTILIZATION, 64)
    taken = sum(column.append(Sample(UTILIZATION, T0 + end - length, T0 + end, v)) for end, length, v in samples)
    assert taken + sum(column.dropped.values()) == len(samples)
    assert len(column) == taken
    starts, ends, _ = column.edges(0, 1 << 62)
    assert (ends[1:] > ends[:-1]).all()
    assert (starts[1:] >= ends[:-1]).all()
    assert (starts <= ends).all()
    assert 0 <= column.total_mass <= 100 * column.total_covered_ns


@given(st.lists(st.integers(1, 3 * LONGEST_HOLD_NS), max_size=20))
def test_an_instant_never_holds_for_longer_than_the_longest_hold(gaps: list[int]) -> None:
    column = Column(MEMORY_USED, 64)
    t = T0
    for gap in gaps:
        t += gap
        column.append(Sample(MEMORY_USED, t, t, 7))
    starts, ends, masses = column.edges(0, 1 << 62)
    assert ((ends - starts) <= LONGEST_HOLD_NS).all()
    assert masses.tolist() == (7 * (ends - starts)).tolist()


@given(st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, (1 << 63) - 1)), min_size=1, max_size=30))
@settings(max_examples=200)
def test_a_counter_never_shrinks_whatever_its_readings_do(steps: list[tuple[int, int]]) -> None:
    column = Column(THROTTLE, 64)
    t = T0
    for gap, raw in steps:
        t += gap
        before = column.total_mass
        column.append(Sample(THROTTLE, t, t, raw))
        assert column.total_mass >= before
    assert (column.edges(0, 1 << 62)[2] >= 0).all()
    assert column.total_covered_ns <= t - T0


# ---------------------------------------------------------------------- exact over long times


@pytest.mark.parametrize("shape", [(2000, None), (50, 2000)], ids=["buffer", "sealed"])
def test_27_hours_at_500_w_equal_python_ints(shape: tuple[int, int | None]) -> None:
    held = Column(POWER, shape[0], older=shape[1])
    minute = 60 * NS_PER_S
    for i in range(27 * 60):
        held.append(Sample(POWER, T0 + i * minute, T0 + (i + 1) * minute, 500_000))
    whole = 27 * 60 * minute
    assert 500_000 * whole > 1 << 63
    assert held.integral(T0, T0 + whole) == Cumulative(500_000 * whole, whole)
    assert POWER.base(held.integral(T0, T0 + whole).mass) / NS_PER_S == 500 * 27 * 3600


@pytest.mark.parametrize("shape", [(5000, None), (70, 5000)], ids=["buffer", "sealed"])
def test_30_days_at_1_kw_equal_python_ints_under_any_split(shape: tuple[int, int | None]) -> None:
    held = Column(POWER, shape[0], older=shape[1])
    step = 600 * NS_PER_S
    for i in range(30 * 144):
        held.append(Sample(POWER, T0 + i * step, T0 + (i + 1) * step, 1_000_000))
    end = T0 + 30 * 144 * step
    assert held.integral(T0, end) == Cumulative(1_000_000 * (end - T0), end - T0)
    cuts = [T0, T0 + 1, T0 + 7 * 86_400 * NS_PER_S + 12_345, end - 3, end]
    pieces = [held.integral(a, b) for a, b in pairwise(cuts)]
    assert sum(piece.mass for piece in pieces) == 1_000_000 * (end - T0)


def test_days_of_192_gb_equal_python_ints() -> None:
    held = Column(MEMORY_USED, 60_000)
    mib = 192 * 1024
    for i in range(3 * 86_400 // 5 + 1):
        t = T0 + i * LONGEST_HOLD_NS
        held.append(Sample(MEMORY_USED, t, t, mib))
    days = 3 * 86_400 * NS_PER_S
    assert mib * days > 1 << 63
    assert held.integral(T0, T0 + days) == Cumulative(mib * days, days)


@pytest.mark.parametrize("value", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_wrap_leaves_what_fits_alone(value: int) -> None:
    assert wrap(value) == value
    assert wrap(value + (1 << 64)) == value
    assert wrap(value - (5 << 64)) == value
