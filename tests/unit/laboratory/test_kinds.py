import numpy as np
import pytest
from laboratory.kinds import KINDS, draw
from laboratory.oracle import judge
from laboratory.run import line


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_of_a_kind_has_a_truth_and_is_the_same_again_and_another_with_another_seed(kind: str) -> None:
    runs = [draw(kind, seed).case.run() for seed in (1, 1, 2)]
    one, again, other = ({key: known.truth for key, known in judge(run).items()} for run in runs)
    assert one == again
    assert one != other
    assert all(np.isfinite(truth) and truth >= 0 for truth in one.values())
    assert {quantity for _, quantity in one} >= {"power", "busy"}
    for run in runs:
        assert run.host[0].shape == run.host[1].shape == (len(run.world.executions.starts),)
        assert (run.host[1] >= run.host[0]).all()


def test_a_first_part_that_is_as_long_in_every_execution_is_told_from_the_rest() -> None:
    """As prefill before decode: by the length of an execution alone, 12 of 18 intervals missed, one by 3.6 times."""
    found = [o for o in draw("prefill, then decode", 3).outcomes() if o.quantity in {"power", "busy", "sm"}]
    assert len(found) == 18
    assert all(outcome.half_widths is not None and outcome.half_widths < 1.5 for outcome in found)


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_work_that_goes_on_after_its_region_makes_no_confident_errors(seed: int) -> None:
    """Before what follows a region was told from it: 24 % of the power of six programs beyond three half-widths."""
    outcomes = draw("asynchronous tails", seed).outcomes()
    assert sum(outcome.answer.half_width is not None for outcome in outcomes) > 5
    assert [line(outcome) for outcome in outcomes if outcome.confidently_wrong] == []


def test_rates_are_known_though_the_counter_stands_still_now_and_then() -> None:
    """With zero growth and then twice as much taken at their word, half-widths were ±37 to ±50 W, and one refused."""
    found = [outcome for outcome in draw("sensor hiccups", 3).outcomes() if outcome.quantity == "power"]
    assert len(found) == 5
    assert all(outcome.answer.half_width is not None and outcome.answer.half_width < 15 for outcome in found)
    assert [line(outcome) for outcome in found if outcome.confidently_wrong] == []


def test_repeated_readings_of_mean_power_make_no_wrong_rate() -> None:
    """Taken at their word: 130 ± 45 W for 399."""
    assert [line(o) for o in draw("sensor hiccups", 8).outcomes() if o.confidently_wrong] == []
