"""Medians of timings, and how sure they are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.roofline.repeats import Repeats

times = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@given(times)
def test_the_median_lies_in_its_interval_and_the_interval_in_the_timings(taken: list[float]) -> None:
    found = Repeats.of(taken)
    assert min(taken) <= found.low_s <= found.median_s <= found.high_s <= max(taken)
    assert found.n == len(taken)


@given(times, st.randoms())
def test_the_order_of_timings_does_not_matter(taken: list[float], shuffle: random.Random) -> None:
    other = list(taken)
    shuffle.shuffle(other)
    assert Repeats.of(other) == Repeats.of(taken)


def test_a_single_timing_has_no_interval_of_its_own() -> None:
    found = Repeats.of([0.5])
    assert (found.median_s, found.low_s, found.high_s, found.half_width) == (0.5, 0.5, 0.5, None)


@pytest.mark.parametrize(("n", "left_out"), [(5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (30, 9)])
def test_the_interval_is_that_of_published_tables_of_the_median_s_order_statistics(n: int, left_out: int) -> None:
    found = Repeats.of([float(i) for i in range(n)])
    assert (found.low_s, found.high_s) == (left_out, n - 1 - left_out)


def test_intervals_hold_the_median_of_what_is_sampled_as_often_as_they_say() -> None:
    chance = random.Random(7)  # noqa: S311 - no secrets here
    inside = 0
    for _ in range(2_000):
        found = Repeats.of([chance.lognormvariate(0, 1) for _ in range(15)])
        inside += found.low_s <= 1.0 <= found.high_s
    assert inside / 2_000 >= 0.94


def test_no_timings_are_an_error() -> None:
    with pytest.raises(ValueError, match="no timings"):
        Repeats.of([])
