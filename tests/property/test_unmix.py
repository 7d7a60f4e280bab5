from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpu_profile.timeline import Floats
from gpu_profile.unmix import Unmixer, bounded, nnls


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
    rates = nnls(problem.gram, problem.moment)
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
    free = nnls(problem.gram, problem.moment)
    assume((free <= 1).all())
    assert bounded(problem.gram, problem.moment, 1.0).tolist() == free.tolist()


@given(problems())
def test_a_unit_changes_nothing_but_the_unit(problem: Problem) -> None:
    rates = nnls(problem.gram, problem.moment)
    scaled = nnls(problem.gram, problem.moment * 2.0**40)
    assert problem.cost(scaled / 2.0**40) == pytest.approx(problem.cost(rates), rel=1e-6, abs=1e-6)


@given(problems(), st.integers(1, 12))
def test_the_order_and_grouping_of_windows_change_nothing(problem: Problem, cut: int) -> None:
    whole, parts = Unmixer(), Unmixer()
    whole.add(problem.shares, problem.values)
    for piece in (slice(cut, None), slice(None, cut)):
        parts.add(problem.shares[piece], problem.values[piece])
    assert parts.n == whole.n
    assert parts.residual == pytest.approx(whole.residual, rel=1e-6, abs=1e-9)
    for a, b in zip(whole.solve(), parts.solve(), strict=True):
        assert (a.n, bool(a.reason)) == (b.n, bool(b.reason)) or a.half_width == pytest.approx(b.half_width, rel=1e-3)


@given(problems())
def test_a_rate_without_a_reason_has_a_finite_interval_and_enough_windows(problem: Problem) -> None:
    unmixer = Unmixer()
    unmixer.add(problem.shares, problem.values)
    for rate in unmixer.solve():
        assert rate.value >= 0
        assert rate.half_width >= 0
        if not rate.reason:
            assert np.isfinite(rate.half_width)
            assert rate.n >= 4
