from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.pools.watch import ResidualWatch
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.unmix import Fit

few = settings(max_examples=60)


class Load(NamedTuple):
    """Windows whose shares add up to 1, the rates that are true, and what a sensor said."""

    shares: Floats
    values: Floats
    truth: Floats

    def equations(self) -> Equations:
        result = Equations()
        result.add(self.shares, self.values)
        return result

    def fit(self) -> Fit:
        return Fit(self.equations())


@st.composite
def loads(draw: st.DrawFn, columns: tuple[int, int] = (1, 5), windows: tuple[int, int] = (1, 60)) -> Load:
    k, n = draw(st.integers(*columns)), draw(st.integers(*windows))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    weights = rng.random((n, k)) ** draw(st.sampled_from([0.5, 1.0, 8.0]))
    weights *= rng.random((n, k)) < draw(st.sampled_from([0.3, 0.7, 1.0]))
    weights[weights.sum(axis=1) == 0, 0] = 1.0
    shares = weights / weights.sum(axis=1, keepdims=True)
    truth = rng.uniform(0, 700, k) * (rng.random(k) < 0.9)
    noise = draw(st.sampled_from([0.0, 0.1, 3.0, 30.0]))
    return Load(shares, np.maximum(shares @ truth + rng.normal(0, noise, n), 0.0), truth)


def simplex(draw: Callable[..., Any], k: int) -> Floats:
    weights = np.array(draw(st.lists(st.integers(0, 5), min_size=k, max_size=k)), np.float64)
    if not weights.any():
        weights[0] = 1.0
    return np.asarray(weights / weights.sum())


# ---------------------------------------------------------------------- streaming


def sums(equations: Equations) -> list[Floats]:
    return [
        equations.gram,
        equations.moment,
        equations.sum,
        equations.square,
        equations.total,
        equations.seen.astype(np.float64),
    ]


def alike(one: Equations, other: Equations) -> bool:
    return one.n == other.n and all(np.allclose(a, b) for a, b in zip(sums(one), sums(other), strict=True))


@few
@given(loads(), st.integers(1, 60))
def test_the_order_and_grouping_of_windows_change_nothing(load: Load, cut: int) -> None:
    parts = Equations()
    for piece in (slice(cut, None), slice(None, cut)):
        parts.add(load.shares[piece], load.values[piece])
    assert alike(parts, load.equations())


@few
@given(loads(columns=(2, 5)), st.data())
def test_columns_that_are_merged_are_as_if_they_had_always_been_one(load: Load, data: st.DataObject) -> None:
    column, into = data.draw(st.permutations(range(load.shares.shape[1])))[:2]
    merged = load.equations()
    merged.merge(column, into)
    shares = load.shares.copy()
    shares[:, into] += shares[:, column]
    shares[:, column] = 0.0
    pooled = load._replace(shares=shares).equations()
    assert np.allclose(merged.gram, pooled.gram)
    assert np.allclose(merged.moment, pooled.moment)
    assert merged.seen[column] == 0
    assert pooled.seen[into] <= merged.seen[into] <= load.shares.shape[0]
    # What comes to the free column later is on its own.
    merged.add(load.shares, load.values)
    pooled.add(load.shares, load.values)
    assert np.allclose(merged.gram, pooled.gram)


@few
@given(loads(), loads())
def test_a_copy_and_a_fit_know_nothing_of_what_comes_later(load: Load, later: Load) -> None:
    equations = load.equations()
    copy, fit = equations.copy(), Fit(equations)
    solved = [fit.rate(column) for column in np.eye(equations.columns)]
    columns = equations.columns
    equations.add(later.shares, later.values)
    equations.merge(0, 1)
    assert alike(copy, load.equations())
    assert solved == [fit.rate(column) for column in np.eye(columns)]


@few
@given(loads(), st.integers(0, 2))
def test_a_signal_that_leaves_takes_nothing_of_the_others_along(load: Load, leaves: int) -> None:
    values = np.column_stack([load.values, load.values * 3, load.values + 1])
    both, rest = Equations(), Equations()
    both.add(load.shares, values)
    both.leave([leaves])
    rest.add(load.shares, values[:, [i for i in range(3) if i != leaves]])
    assert alike(both, rest)


@few
@given(loads(columns=(2, 4), windows=(40, 60)), st.integers(1, 39), st.floats(-50, 50))
def test_blocks_add_up_to_what_the_reference_leaves_of_all_windows(load: Load, cut: int, off: float) -> None:
    equations = Equations()
    first = Fit(load.equations()).solution[:, None]
    equations.refer(first + off, load.equations().seen)
    for piece in (slice(None, cut), slice(cut, None)):
        equations.add(load.shares[piece], load.values[piece])
    equations.refer(first, load.equations().seen)
    left = equations.moment - equations.gram @ first
    every = np.sum([sums for _, sums in equations._blocks], axis=0)
    assert np.allclose(every, left, atol=1e-3 * (1 + np.abs(equations.moment).max()))


# ---------------------------------------------------------------------- what is given


@few
@given(loads(), st.data())
def test_the_rate_of_columns_together_is_their_rates_together(load: Load, data: st.DataObject) -> None:
    fit = load.fit()
    weights = simplex(data.draw, len(fit.rates))
    rate = fit.rate(weights)
    if rate.method == "unmixed":
        assert rate.value == pytest.approx(float(np.clip(weights @ fit._means @ fit.solution, 0.0, fit.most)), abs=1e-6)
        assert rate.n == max(fit._seen[weights > 0])


@few
@given(loads(), st.data())
def test_a_rate_without_a_reason_has_a_narrow_interval_and_one_from_equations_enough_windows(
    load: Load, data: st.DataObject
) -> None:
    fit = load.fit()
    rate = fit.rate(simplex(data.draw, len(fit.rates)))
    assert rate.value >= 0
    assert rate.half_width >= 0
    if not rate.reason:
        assert rate.half_width <= 0.25 * max(rate.value, fit.mean) + 1e-9
        if rate.method == "unmixed":
            assert rate.n >= 4


@few
@given(loads(windows=(2, 60)), st.data())
def test_without_noise_no_number_that_is_given_is_wrong(load: Load, data: st.DataObject) -> None:
    exact = load._replace(values=load.shares @ load.truth)
    fit = exact.fit()
    weights = simplex(data.draw, len(fit.rates))
    rate = fit.rate(weights)
    if not rate.reason:
        assert abs(rate.value - weights @ load.truth) <= rate.half_width + 0.01 * max(1.0, fit.mean)


@few
@given(loads(columns=(1, 3)), st.integers(1, 200), st.data())
def test_a_load_that_repeats_itself_in_every_window_gives_the_mean_and_no_parts(
    load: Load, n: int, data: st.DataObject
) -> None:
    # One mixture, over and over: all that is known is what it draws as a whole.
    one = np.tile(load.shares[0], (n, 1))
    noise = np.random.default_rng(n).normal(0, 1e-3, n)
    fit = Load(one, np.maximum(one @ load.truth + noise, 0), load.truth).fit()
    for column, rate in enumerate(fit.rate(column) for column in np.eye(len(fit.rates))):
        if not rate.reason:
            assert abs(rate.value - load.truth[column]) <= rate.half_width + 0.02
    whole = fit.rate(one[0])
    if n >= 16 and one[0] @ load.truth > 1:
        assert whole.reason == ""
        assert whole.value == pytest.approx(one[0] @ load.truth, abs=0.01)


@few
@given(loads(columns=(2, 3), windows=(40, 60)), st.floats(0.1, 0.9))
def test_columns_that_no_window_tells_apart_have_no_number_of_their_own_but_one_together(
    load: Load, part: float
) -> None:
    # The last column is halves of two regions that always run in the same proportion.
    last = load.shares[:, -1:]
    shares = np.column_stack([load.shares[:, :-1], part * last, (1 - part) * last])
    truth = np.append(load.truth[:-1], [900.0, 100.0])
    rng = np.random.default_rng(0)
    fit = Load(shares, shares @ truth + rng.normal(0, 0.5, len(shares)), truth).fit()
    k = len(truth)
    for column in (k - 2, k - 1):
        rate = fit.rate(np.eye(k)[column])
        # Where the rest of its windows leaves little open, the overlap tells: within its bounds.
        assert rate.reason or (rate.method == "overlap" and abs(rate.value - truth[column]) <= rate.half_width + 1.0)
    together = np.zeros(k)
    together[-2:] = part, 1 - part
    assert fit._gram[-1, -1] == 0 or fit.rate(together).value == pytest.approx(together @ truth, rel=0.25)


@few
@given(loads(windows=(3, 40)), st.data())
def test_windows_are_as_doubtful_as_the_rates_they_are_made_of(load: Load, data: st.DataObject) -> None:
    fit = load.fit()
    weights = simplex(data.draw, len(fit.rates))
    watch = ResidualWatch()
    watch.expect(fit, fit.solution.astype(np.float32))
    values, doubts = watch.predict(np.zeros((1, 0)), weights[None, :])
    doubt = float(doubts[0])
    assert values[0] == pytest.approx(float(weights @ fit.solution))
    if not np.isfinite(fit.noise) or (fit._seen[weights > 0] == 0).any():
        assert doubt == np.inf
    else:
        gram = np.linalg.pinv(fit._gram)
        assert doubt >= 0
        if np.linalg.matrix_rank(fit._gram) == len(weights) and np.linalg.cond(fit._gram) < 1e6:
            assert doubt == pytest.approx(fit.noise * float(weights @ gram @ weights), rel=1e-3, abs=1e-12)
