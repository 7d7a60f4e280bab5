"""The figures of the study of unmixing: a refusal is no error of a number, but makes a row worse."""

import pytest
from benchmarks.unmixing import Estimate, Outcome, _answered, _cost, _error

RIGHT = Estimate(102.0, 5.0, 100.0, "")
WRONG = Estimate(140.0, 5.0, 100.0, "")
REFUSED = Estimate(None, 0.0, 100.0, "not identifiable")


def test_refusals_count_as_unanswered_and_in_the_cost_alone() -> None:
    found = [Outcome([RIGHT, REFUSED], None), Outcome([RIGHT, WRONG], None), Outcome([REFUSED, REFUSED], None)]
    assert _error(found) == pytest.approx((0.02 + 0.21) / 2)
    assert _answered(found) == 0.5
    assert _cost(found) == pytest.approx(0.51)


def test_without_any_number_the_error_is_infinite() -> None:
    found = [Outcome([REFUSED], None)]
    assert _error(found) == float("inf")
    assert _answered(found) == 0.0
    assert _cost(found) == 1.0
