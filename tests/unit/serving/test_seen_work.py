import numpy as np
import pytest

from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.seen_work import SeenWork
from gpu_profile.serving.pricing.terms import EACH, scales_of, values_of
from gpu_profile.serving.work import QUANTITIES, WorkQuantity


def work(n: int, seed: int, longest: float = 200.0) -> Floats:
    """Iterations with prompts of up to so many tokens."""
    drawn = np.random.default_rng(seed)
    result = np.zeros((n, QUANTITIES))
    result[:, WorkQuantity.TOKENS] = drawn.uniform(20, longest, n)
    result[:, WorkQuantity.PREFILL_CONTEXT] = result[:, WorkQuantity.TOKENS] ** 2 / 2
    result[:, WorkQuantity.DECODE_CONTEXT] = drawn.uniform(0, 20_000, n)
    result[:, WorkQuantity.REQUESTS] = drawn.integers(1, 20, n)
    return result


SCALES = scales_of(work(400, 1))


def values(some: Floats, seconds: float = 0.02) -> Floats:
    result: Floats = values_of(np.full(len(some), seconds), some) / SCALES
    return result


def seen(*some: Floats) -> SeenWork:
    rows = np.concatenate([values(work(400, 1)), *some])
    return SeenWork(rows.T @ rows, len(rows), SCALES)


def test_the_leverage_of_fitted_rows_adds_up_to_the_kinds_of_work_that_they_show() -> None:
    rows = values(work(400, 1))
    assert seen().leverage(rows).sum() == pytest.approx(np.linalg.matrix_rank(rows[:, EACH:]), abs=0.1)


def test_a_row_is_as_new_as_the_rows_like_it_are_few() -> None:
    longer = values(work(1, 2, longest=3000.0))
    assert seen().leverage(longer)[0] > 10
    assert seen(longer).leverage(longer)[0] == pytest.approx(1.0, abs=0.1)
    assert seen(*[longer] * 4).leverage(longer)[0] == pytest.approx(0.25, abs=0.03)
    assert not seen(longer).tests(longer)[0]
    assert seen(*[longer] * 20).tests(longer)[0]


def test_other_clocks_make_no_work_new() -> None:
    slower = values(work(50, 3), seconds=0.05)
    assert seen().leverage(slower) == pytest.approx(seen().leverage(values(work(50, 3))))


def test_a_few_tokens_more_than_ever_before_are_not_new() -> None:
    most, one = work(1, 4), work(1, 4)
    most[:, WorkQuantity.TOKENS], one[:, WorkQuantity.TOKENS] = 512.0, 514.0
    before = np.concatenate([values(most)] * 20)
    assert seen(before).leverage(values(one))[0] < 0.5
    one[:, WorkQuantity.TOKENS] = 600.0
    assert seen(before).leverage(values(one))[0] > 1
