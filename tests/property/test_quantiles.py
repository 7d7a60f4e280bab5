from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile import quantiles
from gpu_profile.quantiles import OrderIndex

T0 = 1_700_000_000 * 10**9


class Row(NamedTuple):
    start: int
    end: int
    value: int


class Case(NamedTuple):
    rows: list[Row]
    intervals: list[tuple[int, int]]

    def indexed(self, *, most_levels: int = 128, hot_rows: int = 65_536) -> OrderIndex:
        starts, ends, values = np.array(self.rows, np.int64).reshape(-1, 3).T
        return OrderIndex(starts, ends, values, most_levels=most_levels, hot_rows=hot_rows)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.array(self.intervals, np.int64).reshape(-1, 2).T
        return a, b

    def weights(self, a: int, b: int) -> list[tuple[int, int]]:
        """Values and their times within `(a, b]`, in the order of values."""
        overlaps = ((value, min(end, b) - max(start, a)) for start, end, value in self.rows)
        return sorted((value, time) for value, time in overlaps if time > 0)

    def quantile(self, a: int, b: int, q: float) -> int | None:
        weights = self.weights(a, b)
        rank = Fraction(q).limit_denominator(10**9) * sum(time for _, time in weights)
        reached = 0
        for value, time in weights:
            reached += time
            if reached >= rank:
                return value
        return None

    @property
    def range(self) -> int:
        values = [row.value for row in self.rows]
        return max(values) - min(values) if values else 0


lengths = st.one_of(st.integers(0, 5), st.just(100), st.integers(1, 10**16))
gaps = st.one_of(st.just(0), st.integers(0, 10), st.integers(0, 10**16))
levels = st.one_of(st.integers(0, 3), st.integers(-100, 10_000), st.integers(-(2**63), 2**63 - 1))
shares = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 0.95, 0.99, 1.0]), st.floats(0, 1))
chunk_bits = st.sampled_from([0, 1, 2, 15])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, t = [], T0
    for gap, length, value in draw(st.lists(st.tuples(gaps, lengths, levels), max_size=25)):
        rows.append(Row(t + gap, t + gap + length, value))
        t = rows[-1].end
    edges = [moment + d for row in rows for moment in row[:2] for d in (-1, 0, 1)]
    moments = st.one_of(st.integers(T0 - 10, t + 10), st.sampled_from(edges or [T0]))
    pairs = draw(st.lists(st.tuples(moments, moments), max_size=8))
    return Case(rows, [(min(pair), max(pair)) for pair in pairs])


@given(cases(), shares, chunk_bits)
def test_a_quantile_equals_that_of_a_weighted_loop(case: Case, q: float, bits: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_CHUNK_BITS", bits)
        index = case.indexed()
        values, known = index.quantiles(*case.moments, q)
    assert index.exact
    assert index.error == 0
    found = [value if sure else None for value, sure in zip(values.tolist(), known.tolist(), strict=True)]
    assert found == [case.quantile(a, b, q) for a, b in case.intervals]


@given(cases(), shares, chunk_bits)
def test_beyond_the_hot_window_an_answer_is_off_by_at_most_the_error_and_below_1_percent_of_the_range(
    case: Case, q: float, bits: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_CHUNK_BITS", bits)
        index = case.indexed(most_levels=2, hot_rows=2)
        values, known = index.quantiles(*case.moments, q)
    assert index.error * 100 <= case.range
    # An answer is the middle of one of 128 bins.
    assert index.error <= (case.range // 128 + 1) // 2
    assert index.exact == (index.error == 0)
    truths = [case.quantile(a, b, q) for a, b in case.intervals]
    assert known.tolist() == [truth is not None for truth in truths]
    off = [abs(value - truth) for value, truth in zip(values.tolist(), truths, strict=True) if truth is not None]
    assert all(each <= index.error for each in off)


@given(cases(), st.lists(shares, min_size=1, max_size=4), st.booleans())
def test_several_quantiles_are_those_asked_for_one_by_one_and_grow_with_q(
    case: Case, qs: list[float], binned: bool
) -> None:
    index = case.indexed(most_levels=2, hot_rows=2) if binned else case.indexed()
    values, known = index.quantiles(*case.moments, sorted(qs))
    assert values.shape == (len(case.intervals), len(qs))
    for column, q in enumerate(sorted(qs)):
        alone, sure = index.quantiles(*case.moments, q)
        assert alone.tolist() == values[:, column].tolist()
        assert sure.tolist() == known.tolist()
    assert (values[:, 1:] >= values[:, :-1]).all()


@given(cases(), shares)
def test_an_answer_does_not_depend_on_what_was_asked_before(case: Case, q: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_CHUNK_BITS", 2)
        together = case.indexed().quantiles(*case.moments, q)[0].tolist()
        index = case.indexed()
        one_by_one = [index.quantiles([a], [b], q)[0][0] for a, b in reversed(case.intervals)]
    assert together == one_by_one[::-1]
