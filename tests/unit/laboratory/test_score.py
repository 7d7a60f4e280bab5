"""Scores and verdicts of made-up answers."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from laboratory.oracle import Target
from laboratory.recordings import Answer
from laboratory.score import Kind, Outcome, clustered, score, too_many, verdict


def outcomes(answer: Callable[[int, float], Answer], *, half_width: float = 1.0, seeds: int = 30) -> list[Outcome]:
    """Five regions of 100 to 180 W for every seed; the oracle knows each to `half_width`."""
    return [
        Outcome("row", seed, f"r{k}", "power", Target(truth, half_width, truth), answer(seed * 5 + k, truth))
        for seed in range(seeds)
        for k, truth in enumerate((100.0, 120.0, 140.0, 160.0, 180.0))
    ]


ERRORS = np.random.default_rng(1).normal(size=150)


def honest(n: int, truth: float) -> Answer:
    return Answer(truth + float(ERRORS[n]), 1.96)


def biased(n: int, truth: float) -> Answer:
    return Answer(truth + 10 + float(ERRORS[n]), 1.96)


def refusing(n: int, truth: float) -> Answer:
    return Answer(None, reason="energy per call: not identifiable: lock-step")


def faults(found: Sequence[Outcome], kind: Kind = "violated") -> str:
    return "; ".join(verdict("row", kind, found).faults)


def test_honest_answers_hold_in_every_kind_of_row() -> None:
    for kind in ("clean", "violated", "unmarked"):
        assert faults(outcomes(honest), kind) == ""
    found = score(outcomes(honest))
    assert found.coverage == pytest.approx(0.95, abs=0.04)
    assert found.interval[0] < found.coverage < found.interval[1]
    assert found.answered == found.answerable == 150


def test_biased_answers_fall_short() -> None:
    assert "cover 0%" in faults(outcomes(biased))
    assert "150 of 150 beyond three half-widths" in faults(outcomes(biased), "unmarked")
    assert verdict("row", "violated", outcomes(biased)).cost == 1.0


def test_unmarked_work_may_miss_by_less_than_three_half_widths() -> None:
    near = outcomes(lambda n, truth: Answer(truth + 3.0, 1.96))
    assert "cover 0%" in faults(near)
    assert faults(near, "unmarked") == ""


def test_a_row_that_only_refuses_falls_short_unless_the_oracle_refuses_too() -> None:
    assert faults(outcomes(refusing)) == "power: answered 0 of 150"
    assert score(outcomes(refusing)).refusals == {"not identifiable: lock-step": 150}
    hopeless = outcomes(refusing, half_width=math.inf)
    assert faults(hopeless) == ""
    assert verdict("row", "violated", hopeless).cost == 0.0


def test_numbers_without_half_width_and_flag_must_be_right() -> None:
    wrong = outcomes(lambda n, truth: Answer(truth * 1.2))
    assert "150 of 150 unflagged numbers off by over 10%" in faults(wrong)
    assert all(each.confidently_wrong for each in wrong)
    assert faults(outcomes(lambda n, truth: Answer(truth * 1.2, flagged=True))) == ""
    assert faults(outcomes(lambda n, truth: Answer(truth * 1.05))) == ""


def test_clean_rows_are_held_to_more() -> None:
    some = outcomes(lambda n, truth: honest(n, truth) if n % 10 else refusing(n, truth))
    assert faults(some) == ""
    assert "answered 135 of 150" in faults(some, "clean")
    wide = outcomes(lambda n, truth: Answer(truth * 1.05, truth * 0.1))
    assert faults(wide) == ""
    assert "median error 5.0%" in faults(wide, "clean")


def test_live_answers_have_to_be_the_same() -> None:
    same = [each._replace(live=each.answer) for each in outcomes(honest)]
    assert faults(same, "replay") == ""
    other = [each._replace(live=each.answer._replace(half_width=2.0)) for each in outcomes(honest)]
    assert faults(other, "replay") == "power: 150 of 150 differ live"


def test_answers_of_one_seed_that_fail_together_widen_the_interval() -> None:
    together = clustered([(seed, seed % 5 > 0) for seed in range(30) for _ in range(6)])
    apart = clustered([(seed, (seed + k) % 5 > 0) for seed in range(30) for k in range(6)])
    assert together[1] - together[0] > 2 * (apart[1] - apart[0])
    assert clustered([]) == (0.0, 1.0)


@pytest.mark.parametrize(("count", "n", "expected"), [(1, 20, False), (2, 20, True), (3, 150, False), (5, 150, True)])
def test_one_per_cent_beyond_is_allowed_with_what_chance_adds(count: int, n: int, expected: bool) -> None:
    assert too_many(count, n) is expected
