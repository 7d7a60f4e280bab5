"""Least squares within bounds against every way to hold its columns, tried in turn."""

from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving import least_squares
from gpu_profile.join.unmixing.solving.least_squares import bounded
from gpu_profile.join.unmixing.solving.sums import LeftOut, Sums, rates_of_each


class Problem:
    """Windows as mixtures of a few rates, with any noise."""

    def __init__(self, shares: Floats, values: Floats) -> None:
        self.shares, self.values = shares, values
        self.gram, self.moment = shares.T @ shares, shares.T @ values

    def cost(self, rates: Floats) -> float:
        return float(np.sum((self.shares @ rates - self.values) ** 2))

    def least(self, most: float = np.inf) -> float:
        """The least cost over every way to hold columns at 0 or at `most` and leave the others free."""
        states = (0, 1, 2) if np.isfinite(most) else (0, 2)
        best = np.inf
        for held in product(states, repeat=len(self.moment)):
            state = np.array(held)
            rates = np.where(state == 1, most if np.isfinite(most) else 0.0, 0.0)
            free = state == 2
            if free.any():
                rest = self.values - self.shares @ rates
                rates[free] = np.linalg.lstsq(self.shares[:, free], rest, rcond=None)[0]
            if (rates >= -1e-9).all() and (rates <= most + 1e-9).all():
                best = min(best, self.cost(np.clip(rates, 0, most)))
        return best


@st.composite
def problems(draw: st.DrawFn, largest: float = 3.0) -> Problem:
    k, n = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    shares = rng.random((n, k)) * (rng.random((n, k)) < draw(st.sampled_from([0.4, 0.7, 1.0])))
    noise = draw(st.sampled_from([0.0, 0.1, 3.0]))
    return Problem(shares, shares @ rng.uniform(0, largest, k) + rng.normal(0, noise, n))


@given(problems())
def test_non_negative_least_squares_equal_the_best_of_all_active_sets(problem: Problem) -> None:
    rates = bounded(problem.gram, problem.moment)
    assert (rates >= 0).all()
    assert problem.cost(rates) == pytest.approx(problem.least(), rel=1e-6, abs=1e-6)


@given(problems())
def test_bounded_rates_stay_within_their_bounds_and_beat_clipping(problem: Problem) -> None:
    rates = bounded(problem.gram, problem.moment, 1.0)
    assert (rates >= 0).all()
    assert (rates <= 1).all()
    assert problem.cost(rates) >= problem.least(1.0) - 1e-6


@given(problems(largest=1.0))
def test_rates_within_the_bounds_are_found_where_the_bounds_hold_no_one(problem: Problem) -> None:
    free = bounded(problem.gram, problem.moment)
    assume((free <= 1).all())
    assert bounded(problem.gram, problem.moment, 1.0).tolist() == free.tolist()


@given(st.lists(problems(largest=1.5), min_size=1, max_size=6), st.booleans())
def test_problems_that_are_solved_together_are_solved_as_well_as_alone(some: list[Problem], twice: bool) -> None:
    size = max(len(problem.moment) for problem in some)
    # Columns that some of them lack were never active in those, or are there twice in all of them.
    wider = [Problem(np.pad(each.shares, ((0, 0), (0, size - len(each.moment)))), each.values) for each in some]
    if twice:
        wider = [Problem(np.column_stack([each.shares, each.shares]), each.values) for each in wider]
    found = rates_of_each([Sums.of(each.shares, each.values, LeftOut()) for each in wider], 1.0)
    assert len(found) == len(some)
    for problem, rates in zip(wider, found, strict=True):
        assert (rates >= 0).all()
        assert (rates <= 1).all()
        alone = problem.cost(bounded(problem.gram, problem.moment, 1.0))
        assert problem.cost(rates) <= alone + 1e-6 + 1e-6 * alone


@given(problems(largest=1.5))
def test_what_is_found_by_exchanging_sets_is_the_least_of_all(problem: Problem) -> None:
    with mock.patch.object(least_squares, "bounded", side_effect=bounded) as alone:
        (rates,) = rates_of_each([Sums.of(problem.shares, problem.values, LeftOut())], 1.0)
    assume(not alone.called)
    assert problem.cost(rates) <= problem.least(1.0) + 1e-6


def test_one_loop_whose_regions_are_never_apart_has_no_other_solved_by_itself() -> None:
    rng = np.random.default_rng(2)
    shares = rng.dirichlet(np.ones(3), 50)
    alike = np.outer(np.full(50, 0.25), [1.0, 1.0, 2.0])
    some = [Sums.of(each, each @ [0.2, 0.5, 0.9], LeftOut()) for each in (shares, alike, shares)]
    with mock.patch.object(least_squares, "bounded", side_effect=bounded) as alone:
        found = rates_of_each(some, 1.0)
    assert not alone.called
    assert found[0] == pytest.approx([0.2, 0.5, 0.9])
    # Of all rates that fit, the smallest, but for rounding as a share of the ridge.
    assert found[1] == pytest.approx([2.5 / 6, 2.5 / 6, 2.5 / 3], rel=1e-3)


@given(st.integers(1, 5), st.floats(1e-3, 1.0), st.integers(0, 1 << 32))
def test_where_windows_leave_rates_open_they_are_as_small_as_those_found_alone(k: int, weak: float, seed: int) -> None:
    """A column that is rarely active took rates of tens of thousands of watts along with another."""
    rng = np.random.default_rng(seed)
    first = rng.random((20, 1)) + 0.1
    shares = np.column_stack((first * rng.uniform(weak, 1.0, k), first * weak))
    sums = Sums.of(shares, first[:, 0] * 100.0, LeftOut())
    (found,) = rates_of_each([sums], np.inf)
    alone = bounded(sums.gram, sums.moment, np.inf)
    assert np.linalg.norm(found) <= 1.01 * np.linalg.norm(alone)


def test_a_matrix_that_cannot_be_solved_takes_nothing_from_the_others() -> None:
    gram = np.array([[[1.0, 1.0 + 1e-12], [1.0 + 1e-12, 1.0]], np.eye(2)])
    assert rates_of_each([Sums(2, LeftOut(), each, np.ones(2), 2.0) for each in gram], 5.0)[1] == pytest.approx(
        [1.0, 1.0]
    )


def test_rates_at_both_bounds_are_found_without_solving_one_by_one() -> None:
    rng = np.random.default_rng(1)
    some = []
    for _ in range(100):
        shares = rng.dirichlet(np.ones(7), 200)
        some.append(Sums.of(shares, shares @ [0.0, 1.0, 0.4, 1.0, 0.0, 0.7, 1.0] + rng.normal(0, 0.05, 200), LeftOut()))
    with mock.patch.object(least_squares, "bounded", side_effect=bounded) as alone:
        found = rates_of_each(some, 1.0)
    assert not alone.called
    assert np.mean(found, axis=0) == pytest.approx([0.0, 1.0, 0.4, 1.0, 0.0, 0.7, 1.0], abs=0.03)


@given(problems())
def test_a_unit_changes_nothing_but_the_unit(problem: Problem) -> None:
    rates = bounded(problem.gram, problem.moment)
    scaled = bounded(problem.gram, problem.moment * 2.0**40)
    assert problem.cost(scaled / 2.0**40) == pytest.approx(problem.cost(rates), rel=1e-6, abs=1e-6)


@given(problems(), st.integers(-10, 10))
def test_columns_of_very_different_sizes_are_found_as_well(problem: Problem, power: int) -> None:
    size = np.ones(len(problem.moment))
    size[0] = 2.0**power
    rates = bounded(problem.gram * np.outer(size, size), problem.moment * size) * size
    assert problem.cost(rates) == pytest.approx(problem.least(), rel=1e-4, abs=1e-4)


@given(problems(), st.integers(0, 3))
def test_a_column_that_is_there_twice_makes_the_fit_no_worse(problem: Problem, which: int) -> None:
    twice = np.column_stack([problem.shares, problem.shares[:, which % len(problem.moment)]])
    both = Problem(twice, problem.values)
    rates = bounded(both.gram, both.moment)
    assert (rates >= 0).all()
    assert both.cost(rates) == pytest.approx(problem.least(), rel=1e-6, abs=1e-6)


@given(problems(), st.permutations(range(4)))
def test_the_order_of_columns_changes_no_fit(problem: Problem, order: list[int]) -> None:
    place = [i for i in order if i < len(problem.moment)]
    rates = bounded(problem.gram[np.ix_(place, place)], problem.moment[place], 1.0)
    back = np.empty(len(place))
    back[place] = rates
    assert problem.cost(back) == pytest.approx(problem.cost(bounded(problem.gram, problem.moment, 1.0)), abs=1e-6)


def test_without_columns_there_are_no_rates() -> None:
    assert bounded(np.zeros((0, 0)), np.zeros(0)).shape == (0,)
    assert bounded(np.zeros((0, 0)), np.zeros(0), 1.0).shape == (0,)


def test_columns_that_were_never_active_stay_at_nothing() -> None:
    assert bounded(np.zeros((2, 2)), np.zeros(2)).tolist() == [0.0, 0.0]
    assert bounded(np.diag([2.0, 0.0]), np.array([1.0, 0.0]), 1.0).tolist() == [0.5, 0.0]


def test_a_rate_above_its_bound_is_held_there_and_the_others_take_the_rest() -> None:
    shares = np.array([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    rates = bounded(shares.T @ shares, shares.T @ (shares @ [2.0, 0.4]), 1.0)
    assert rates[0] == 1.0
    left = shares @ [2.0, 0.4] - shares[:, 0]
    assert rates[1] == pytest.approx(min(1.0, shares[:, 1] @ left / (shares[:, 1] @ shares[:, 1])))
