"""The slow factor that regions' power has in common: where it is found, and that rates stay means over all time."""

from __future__ import annotations

import numpy as np
import pytest
from laboratory.rows import ROWS

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.common_factor import CommonFactor, restored, stretches
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.units import NS_PER_S

RATES = np.array([100.0, 200.0, 300.0, 500.0])
ENDS: Ints = np.arange(600) * NS_PER_S // 10


def shares_of(seed: int, weights: Floats | None = None) -> Floats:
    """The active shares of windows of 100 ms over 60 s, around the `weights[n, columns]`."""
    drawn: Floats = np.random.default_rng(seed).gamma(4.0, 1.0, (len(ENDS), len(RATES)))
    drawn *= 1.0 if weights is None else weights
    result: Floats = drawn / drawn.sum(axis=1, keepdims=True)
    return result


def throttled(shares: Floats, factors: Floats, seed: int = 0) -> Floats:
    """Readings under factors of the power above that of column 0."""
    above = factors[:, None] * (RATES - RATES[0])
    values: Floats = (shares * (RATES[0] + above)).sum(axis=1) + np.random.default_rng(seed).normal(0, 2.0, len(shares))
    return values


def means_of(shares: Floats, factors: Floats) -> Floats:
    """The mean rate of each column over its time."""
    rates: Floats = RATES[0] + (RATES - RATES[0]) * (factors @ shares) / shares.sum(axis=0)
    return rates


def solved(shares: Floats, values: Floats, common: CommonFactor) -> Equations:
    """The equations of the mean rates."""
    factors = common.factors(shares, values, stretches(ENDS, common.length_ns))
    equations = Equations()
    equations.add(shares, common.divided(shares, values, factors))
    return restored(equations.taking(common.taken(shares, factors)))


def rates_of(equations: Equations) -> Floats:
    return np.asarray(np.linalg.solve(equations.gram, equations.moment[:, 0]))


STEPS = np.select([ENDS < 20 * NS_PER_S, ENDS < 40 * NS_PER_S], [1.0, 0.8], 0.6)


@pytest.mark.parametrize("seed", range(10))
def test_steady_rates_have_no_factor(seed: int) -> None:
    shares = shares_of(seed)
    assert CommonFactor.of(ENDS, shares, throttled(shares, np.ones(len(ENDS)), seed), np.inf, NS_PER_S // 10) is None


@pytest.mark.parametrize("seed", range(4))
def test_rates_that_fall_together_are_found_to_a_per_cent(seed: int) -> None:
    shares = shares_of(seed)
    values = throttled(shares, STEPS, seed)
    common = CommonFactor.of(ENDS, shares, values, np.inf, NS_PER_S // 10)
    assert common is not None
    equations = solved(shares, values, common)
    assert rates_of(equations) == pytest.approx(means_of(shares, STEPS), rel=0.02)
    # Without factors, the residual has a standard deviation of some 30 W.
    left = float(equations.square[0] - rates_of(equations) @ equations.moment[:, 0]) / len(ENDS)
    assert np.sqrt(left) < 6.0


@pytest.mark.parametrize("seed", range(4))
def test_a_region_that_runs_mostly_in_throttled_time_has_its_rate_of_that_time(seed: int) -> None:
    weights = np.ones((len(ENDS), len(RATES)))
    weights[:300, 3] = 0.5
    shares, factors = shares_of(seed, weights), np.where(np.arange(len(ENDS)) < 300, 1.0, 0.6)
    values = throttled(shares, factors, seed)
    common = CommonFactor.of(ENDS, shares, values, np.inf, NS_PER_S // 10)
    assert common is not None
    equations = solved(shares, values, common)
    truth = means_of(shares, factors)
    # The rate at the average factor of the run would be 420 W.
    assert truth[3] < 405
    assert rates_of(equations) == pytest.approx(truth, rel=0.02)
    assert abs(equations.followed[3]) > 10


def test_the_factors_of_stretches_take_from_the_columns_what_they_take_from_the_values() -> None:
    shares = shares_of(0)
    values, common = throttled(shares, STEPS), CommonFactor(NS_PER_S, RATES)
    factors = common.factors(shares, values, stretches(ENDS, NS_PER_S))
    taken = (values - common.divided(shares, values, factors)).sum()
    assert common.taken(shares, factors)[0].sum() == pytest.approx(taken, abs=1e-6)
    assert abs(taken) > 1000


def test_regions_that_run_in_stretches_of_their_own_have_no_factor() -> None:
    """Only different stretches show their rates: a factor would explain any."""
    shares = np.zeros((len(ENDS), len(RATES)))
    shares[np.arange(len(ENDS)), np.arange(len(ENDS)) // 100 % 4] = 1.0
    assert CommonFactor.of(ENDS, shares, throttled(shares, STEPS), np.inf, NS_PER_S // 10) is None


def test_time_of_a_region_without_a_rate_has_no_factor() -> None:
    shares = shares_of(0)
    values = throttled(shares, STEPS)
    place = stretches(ENDS, NS_PER_S)
    assert (CommonFactor(NS_PER_S, RATES[:3]).factors(shares, values, place) == 1.0).all()
    assert (CommonFactor(NS_PER_S, RATES).factors(shares, values, place) != 1.0).all()


def test_a_merged_column_takes_along_what_was_taken() -> None:
    equations = Equations()
    equations.add(shares_of(0), np.ones(len(ENDS)))
    equations.taking(np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]))
    equations.merge(3, 1)
    assert equations.taken.tolist() == [[1.0, 6.0, 3.0, 0.0], [5.0, 14.0, 7.0, 0.0]]
    assert equations.copy().taken.tolist() == equations.taken.tolist()


def test_clocks_that_fall_twice_leave_each_region_its_mean_power() -> None:
    """Without factors, one of six has an answer: the change was taken for noise."""
    row = next(row for row in ROWS if row.name == "9: throttled in steps")
    powers = [each for each in row.outcomes(0) if each.quantity == "power"]
    assert len(powers) == 6
    for each in powers:
        assert each.half_widths is not None
        assert each.half_widths < 1.0
