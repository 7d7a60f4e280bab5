import numpy as np
import pytest
from laboratory.oracle import judge
from laboratory.rows import outcomes
from laboratory.run import line
from laboratory.services import SERVICES, case


@pytest.mark.parametrize("kind", SERVICES)
def test_tasks_overlap_and_a_case_is_the_same_again_and_another_with_another_seed(kind: str) -> None:
    runs = [case(kind, seed).run() for seed in (1, 1, 2)]
    one, again, other = ({key: known.truth for key, known in judge(run).items()} for run in runs)
    assert one == again
    assert one != other
    ran = runs[0].world.executions
    inner = ran.parents >= 0 if (ran.parents >= 0).any() else np.ones(len(ran.starts), bool)
    order = np.argsort(ran.starts[inner])
    assert (np.diff(ran.starts[inner][order]) < (ran.ends - ran.starts)[inner][order][:-1]).mean() > 0.05


@pytest.mark.parametrize(
    ("kind", "seed"), [("server", 0), ("server with nested spans", 0), ("thread pool", 1), ("pipeline", 0)]
)
def test_regions_of_tasks_that_overlap_partly_have_right_rates_or_none(kind: str, seed: int) -> None:
    found = outcomes(kind, case(kind, seed))
    assert [line(outcome) for outcome in found if outcome.confidently_wrong] == []
    assert sum(outcome.answer.half_width is not None for outcome in found) >= 3


def test_power_beside_requests_that_wait_is_not_that_of_a_mean_number_of_them() -> None:
    """A batch draws as much beside two waiting requests as beside six."""
    found = [each for each in outcomes("batcher", case("batcher", 1)) if each.quantity in {"power", "busy"}]
    assert [line(outcome) for outcome in found if (outcome.half_widths or 0) > 1] == []
    assert sum(outcome.answer.half_width is not None for outcome in found) == 6


def test_power_that_adds_up_is_no_evidence_of_late_stamps() -> None:
    found = [each for each in outcomes("server", case("server", 2)) if each.quantity == "power"]
    assert [line(outcome) for outcome in found if outcome.half_widths is None or outcome.half_widths > 1] == []
