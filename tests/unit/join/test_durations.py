import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.join.durations import BUCKETS_S, DurationStats
from gpu_profile.units import NS_PER_S

durations_ns = st.one_of(st.integers(0, 100), st.integers(0, 10**9), st.integers(0, 10**14))


def stats(durations: list[int]) -> DurationStats:
    result = DurationStats()
    for duration in durations:
        result.add(duration)
    return result


@given(st.lists(durations_ns, min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_1_percent_of_the_execution_at_its_rank(durations: list[int], q: float) -> None:
    exact = sorted(durations)[math.floor(q * (len(durations) - 1))]
    assert stats(durations).quantile_s(q) == pytest.approx(exact / NS_PER_S, rel=0.01, abs=1.1e-9)


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_quantiles_of_many_random_durations_are_within_1_percent(q: float) -> None:
    durations = [round(d) for d in np.random.default_rng(7).lognormal(16, 1.5, 20_000)]
    exact = sorted(durations)[math.floor(q * (len(durations) - 1))] / NS_PER_S
    assert stats(durations).quantile_s(q) == pytest.approx(exact, rel=0.01)


@given(st.lists(durations_ns, min_size=1), st.lists(st.floats(0, 1), min_size=2))
def test_quantiles_grow_with_q_and_never_exceed_the_longest(durations: list[int], qs: list[float]) -> None:
    found = [stats(durations).quantile_s(q) or 0.0 for q in sorted(qs)]
    assert found == sorted(found)
    assert found[-1] <= max(durations) / NS_PER_S


@given(st.lists(durations_ns))
def test_cumulative_buckets_only_rise_end_at_all_calls_and_include_their_edges(durations: list[int]) -> None:
    buckets = stats(durations).cumulative()
    assert [edge for edge, _ in buckets] == [*BUCKETS_S, math.inf]
    assert [n for _, n in buckets] == [sum(d / NS_PER_S <= edge for d in durations) for edge, _ in buckets]
    assert buckets[-1][1] == len(durations)


def test_the_buckets_rise() -> None:
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_a_duration_on_an_edge_is_in_the_bucket_of_that_edge() -> None:
    assert dict(stats([100_000_000]).cumulative())[0.1] == 1
    assert dict(stats([100_000_001]).cumulative())[0.1] == 0


def test_without_executions_there_is_no_quantile() -> None:
    assert DurationStats().quantile_s(0.5) is None


@pytest.mark.parametrize("q", [-0.1, 1.1, 95, math.nan])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="lies in 0-1"):
        stats([5]).quantile_s(q)


def test_a_clock_that_steps_back_makes_no_negative_duration() -> None:
    backwards = stats([-5_000_000])
    assert (backwards.calls, backwards.total_ns, backwards.max_ns, backwards.quantile_s(0.5)) == (1, 0, 0, 0.0)


def test_items_are_absent_until_an_execution_tells_them() -> None:
    told = DurationStats()
    told.add(1)
    assert told.items is None
    told.add(1, items=0)
    assert told.items == 0.0
    told.add(1, items=2.5, failed=True)
    assert told.items == pytest.approx(2.5)
    assert (told.errors, told.calls) == (1, 3)


@given(st.lists(durations_ns, max_size=300))
def test_the_sketch_is_bounded_whatever_it_is_fed(durations: list[int]) -> None:
    kept = stats(durations)
    assert len(kept._sketch) <= min(len(durations), math.ceil(math.log(10**14) / math.log(1.02)) + 1)


def test_a_sum_is_right_beyond_64_bits() -> None:
    stats = DurationStats()
    stats.add_many(np.full(50, (1 << 63) - 1))
    assert stats.total_ns == 50 * ((1 << 63) - 1)
