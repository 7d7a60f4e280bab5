from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.history.histogram import MOST_BINS, Histogram

Held = list[tuple[int, int]]

shares = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 0.95, 0.99, 1.0]), st.floats(0, 1))
values = st.one_of(st.integers(-3, 3), st.integers(-200, 1000), st.integers(0, 10**6), st.integers(-(2**63), 2**63 - 1))
weights = st.one_of(st.integers(0, 3), st.integers(0, 10**9), st.integers(0, 2**63 - 1))
held = st.lists(st.tuples(values, weights), max_size=20)


def histogram(*parts: Held) -> Histogram:
    """Of values and times, added part by part."""
    result = Histogram()
    for part in parts:
        columns = np.array(part, np.int64).reshape(-1, 2).T
        result.add(*columns)
    return result


def merged(*parts: Histogram) -> Histogram:
    result = Histogram()
    for part in parts:
        result.merge(part)
    return result


def quantile(part: Held, q: float) -> int | None:
    rank = Fraction(q).limit_denominator(10**9) * sum(weight for _, weight in part)
    reached = 0
    for value, weight in sorted(part):
        reached += weight
        if weight and reached >= rank:
            return value
    return None


def seen(part: Held) -> list[int]:
    return [value for value, weight in part if weight]


@given(held)
def test_the_weight_and_the_bins_are_those_of_a_loop_in_python(part: Held) -> None:
    result = histogram(part)
    assert result.weight == sum(weight for _, weight in part)
    assert len(result.bins) <= MOST_BINS
    for low, high, weight in result.bins:
        assert weight == sum(time for value, time in part if low <= value <= high)
    assert sum(weight for _, _, weight in result.bins) == result.weight


@given(held, shares)
def test_a_quantile_is_within_0_4_percent_of_the_range_of_what_went_in(part: Held, q: float) -> None:
    found, truth = histogram(part).quantile(q), quantile(part, q)
    if truth is None:
        assert found is None
    else:
        assert found is not None
        # A float of a value near 2^63 is itself rounded.
        rounding = abs(truth) * 2.0**-52
        assert abs(Fraction(found) - truth) <= Fraction(max(seen(part)) - min(seen(part)), 250) + Fraction(rounding)


@given(st.lists(st.tuples(st.integers(1000, 1255), st.integers(1, 10**9)), min_size=1), shares)
def test_values_that_fit_in_as_many_bins_give_exact_quantiles(part: Held, q: float) -> None:
    assert histogram(part).quantile(q) == quantile(part, q)


@given(held, held, held)
def test_what_is_added_in_parts_gives_the_bins_of_what_is_added_at_once(a: Held, b: Held, c: Held) -> None:
    whole = histogram(a + b + c)
    assert histogram(a, b, c).bins == whole.bins
    assert histogram(c, a, b).bins == whole.bins
    assert merged(histogram(a), histogram(b), histogram(c)).bins == whole.bins


@given(held, held, held)
def test_merging_is_associative_and_commutative(a: Held, b: Held, c: Held) -> None:
    left = merged(merged(histogram(a), histogram(b)), histogram(c))
    right = merged(histogram(a), merged(histogram(b), histogram(c)))
    turned = merged(histogram(c), histogram(b), histogram(a))
    assert left.bins == right.bins == turned.bins
    assert left.weight == right.weight == turned.weight


@given(held, held)
def test_what_was_merged_in_stays_as_it_was(a: Held, b: Held) -> None:
    part = histogram(b)
    whole = histogram(a)
    whole.merge(part)
    whole.merge(histogram([(2**40, 5), (-(2**40), 5)]))
    assert part.bins == histogram(b).bins


@given(held, st.lists(shares, min_size=2))
def test_quantiles_grow_with_q_and_stay_within_what_was_seen(part: Held, qs: list[float]) -> None:
    found = [value for q in sorted(qs) if (value := histogram(part).quantile(q)) is not None]
    assert found == sorted(found)
    if found:
        assert float(min(seen(part))) <= found[0]
        assert found[-1] <= float(max(seen(part)))
