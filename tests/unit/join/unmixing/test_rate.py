"""Intervals whose parts lie on one side of the estimate, and intervals that physics cuts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.rate import (
    STAMPED,
    UNMARKED,
    WIDEST_HALF_WIDTH,
    Rate,
    biased,
    total,
    ways_of,
    within,
)
from gpu_profile.join.unmixing.solving.unmix import TIMING, Fit


def _fit(*factors: float) -> tuple[Fit, Fit]:
    """The fit of a region of 500 W, and the fit beside timings under which it draws a multiple of that."""
    rng = np.random.default_rng(1)
    share = rng.uniform(0.2, 0.8, 300)
    equations = Equations()
    equations.add(np.stack([1 - share, share], axis=1), 100 + 400 * share + rng.normal(0, 1, 300))
    alone = Fit(equations, most=1000.0)
    others = [np.array([alone.rates * [1, factor]] * 2) for factor in factors]
    return alone, Fit(equations, others=others, most=1000.0)


@pytest.mark.parametrize("factors", [(0.68,), (1.45,), (0.68, 0.9), (0.85, 1.28)])
def test_a_rate_is_given_if_it_is_certain_enough_around_the_middle_of_all_timings(factors: tuple[float, ...]) -> None:
    alone, beside = _fit(*factors)
    region = np.array([0.0, 1.0])
    sure, rate = alone.rate(region), beside.rate(region)
    ends = [sure.value * factor for factor in (1.0, *factors)]
    assert rate.reason == ""
    assert rate.value == sure.value
    assert rate.half_width == pytest.approx(max(abs(end - sure.value) for end in ends) + sure.half_width)
    assert rate.half_width > WIDEST_HALF_WIDTH * rate.value


def test_timings_on_both_sides_of_the_estimate_leave_it_refused() -> None:
    _, beside = _fit(0.7, 1.3)
    assert beside.rate(np.array([0.0, 1.0])).reason == TIMING


def test_a_narrow_middle_does_not_hide_work_in_pauses_that_is_impossible() -> None:
    rng = np.random.default_rng(1)
    share, equations = rng.uniform(0.8, 0.9, 300), Equations()
    equations.add(np.stack([1 - share, share], axis=1), 2000 - 1800 * share + rng.normal(0, 1, 300))
    assert "outside regions is not possible" in Fit(equations, most=4000.0).rate(np.array([0.0, 1.0])).reason


def test_the_largest_change_in_each_direction_is_at_least_0() -> None:
    assert ways_of(np.array([-3.0, 1.0, -5.0])) == (5, 1)
    assert ways_of(np.array([2.0, 4.0])) == (0, 4)
    assert ways_of(np.zeros(0)) == (0, 0)
    assert ways_of(np.float64(-2.0)) == (2, 0)
    assert ways_of(np.array([-3.0, 1.0]), 2.0) == (1, 0)


def test_late_stamps_and_unmarked_executions_are_no_chance() -> None:
    assert total({"": 1.0, TIMING: 6.0, STAMPED: 0.5, UNMARKED: 2.0}) == biased(7.0, 2.5)


def test_each_end_of_an_interval_has_the_changes_in_its_own_direction() -> None:
    widths, ways = {"": 1.0, TIMING: 7.0, UNMARKED: 2.0}, {TIMING: (6.0, 2.0), UNMARKED: (0.0, 2.0)}
    below, above = biased(8.0, 0.0), biased(4.0, 2.0)
    assert within(50.0, widths, ways, math.inf) == pytest.approx((50 + (above - below) / 2, (above + below) / 2))


def test_an_interval_ends_at_the_bounds_of_physics_if_its_value_is_possible() -> None:
    assert within(0.9, {"": 0.3}, {}, 1.0) == pytest.approx((0.8, 0.2))
    assert within(50.0, {"": 60.0}, {}, math.inf) == pytest.approx((55.0, 55.0))
    for value in (-0.1, 1.1):
        assert within(value, {"": 0.3}, {}, 1.0)[1] == math.inf
    assert within(0.5, {"": math.inf}, {}, math.inf) == (0.5, math.inf)


def test_the_mean_of_windows_that_a_region_fills_is_narrower_than_a_range_of_timings() -> None:
    rng = np.random.default_rng(1)
    share, equations = rng.uniform(0.96, 0.99, 300), Equations()
    equations.add(np.stack([1 - share, share], axis=1), 100 + 400 * share + rng.normal(0, 1, 300))
    alone = Fit(equations, most=1000.0)
    others = [np.stack([alone.rates * [1, 0.68], alone.rates])]
    rate = Fit(equations, others=others, most=1000.0).rate(np.array([0.0, 1.0]))
    assert rate.method == "overlap"
    assert rate.half_width < WIDEST_HALF_WIDTH * rate.value


@pytest.mark.parametrize("rest", [0.0, 300.0])
def test_the_interval_of_such_a_mean_covers_the_rate_at_either_end_of_its_bounds(rest: float) -> None:
    rng, region, covered = np.random.default_rng(3), np.array([0.0, 1.0]), 0
    for _ in range(300):
        equations = Equations()
        equations.add(np.tile([0.05, 0.95], (40, 1)), 0.95 * 300 + 0.05 * rest + rng.normal(0, 20, 40))
        rate = Fit(equations, most=1000.0)._overlap(region, 40)
        assert rate is not None
        covered += abs(rate.value - 300) <= rate.half_width
    assert covered >= 0.93 * 300


def test_a_small_bias_refuses_no_rate_that_may_be_wide_and_a_large_one_refuses_any() -> None:
    wide = Rate(166.0, 141.0, 99)
    assert not wide.beside(5.0, 400.0, "why").reason
    assert wide.beside(100.0, 400.0, "why").reason == "why"
    assert not Rate(166.0, 20.0, 99).beside(50.0, 400.0, "why").reason
    assert Rate(166.0, 20.0, 99).beside(120.0, 400.0, "why").reason == "why"
