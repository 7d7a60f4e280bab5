import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.serving.pricing.terms import DURATION, TERMS, gradients_of, scales_of, terms_of
from gpu_profile.serving.work import QUANTITIES, WorkQuantity

_AMOUNTS = st.floats(0, 1e5)


@given(
    st.lists(st.tuples(_AMOUNTS, _AMOUNTS, _AMOUNTS, _AMOUNTS), min_size=1, max_size=6),
    st.floats(1e-4, 1.0),
    st.integers(0, 1000),
)
def test_the_requests_shares_of_every_term_add_up_to_it(
    requests: list[tuple[float, ...]], seconds: float, seed: int
) -> None:
    own = np.array([(*amounts, 1.0) for amounts in requests])
    work = own.sum(axis=0, keepdims=True)
    prices = np.random.default_rng(seed).uniform(0, 1, TERMS)
    prices[DURATION] = 0.0
    terms = terms_of(np.array([seconds]), work, prices, scales_of(work))
    # A bend of an iteration with next to no tokens is a fraction of next to nothing.
    assert (own @ terms.shares[0]).sum(axis=0) == pytest.approx(terms.values[0], rel=1e-6, abs=1e-9)


def test_without_a_prediction_of_durations_the_time_is_in_equal_parts() -> None:
    work = np.array([[100.0, 0.0, 5000.0, 0.0, 4.0]])
    terms = terms_of(np.array([0.02]), work, np.zeros(TERMS), np.ones(TERMS))
    assert terms.shares[0, WorkQuantity.REQUESTS, DURATION] == pytest.approx(0.005)
    assert not terms.shares[0, : QUANTITIES - 1, DURATION].any()
    assert terms.fixed[0, DURATION] == pytest.approx(0.005)


def test_gradients_are_the_growth_of_the_terms_with_one_more_unit() -> None:
    work = np.array([[300.5, 9e5, 5e4, 100.0, 4.0], [3.0, 0.0, 2e3, 0.0, 3.0]])
    scales, duration_prices = scales_of(work), np.linspace(0.0, 1e-3, TERMS)
    seconds = terms_of(np.zeros(2), work, duration_prices, scales).values @ duration_prices
    for quantity in WorkQuantity:
        more = work + np.eye(QUANTITIES)[quantity] * 1e-3
        longer = terms_of(np.zeros(2), more, duration_prices, scales).values @ duration_prices
        before, after = (terms_of(s, w, duration_prices, scales).values for s, w in ((seconds, work), (longer, more)))
        gradients = gradients_of(seconds, work, duration_prices, scales, before)
        assert gradients[:, quantity] == pytest.approx((after - before) / 1e-3, rel=1e-3, abs=1e-6)
