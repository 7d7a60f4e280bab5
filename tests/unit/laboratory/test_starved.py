import pytest
from laboratory.oracle import judge
from laboratory.run import line
from laboratory.starved import STARVED, case, outcomes_of


@pytest.mark.parametrize("kind", STARVED)
def test_a_case_has_a_truth_and_is_the_same_again_and_another_with_another_seed(kind: str) -> None:
    one, again, other = ({key: known.truth for key, known in judge(case(kind, s).run()).items()} for s in (1, 1, 2))
    assert one == again
    assert one != other


@pytest.mark.parametrize(
    ("kind", "seed", "answers"),
    [
        ("the sampler alone", 3, 12),  # energies 7 half-widths off, busy seconds 5
        ("and the device idles", 1, 3),  # a busy share of 0.474 ± 0.047 for 0.294
        ("and the device idles", 2, 3),  # 172.2 ± 4.5 W for 135.7 W
        ("and the device idles", 3, 5),  # a busy share of 0.369 ± 0.063 for 0.167
        ("and the device works on", 5, 1),  # an energy of 7.78 ± 0.04 kJ for 11.2 kJ
    ],
)
def test_a_starved_sampler_makes_no_confident_errors(kind: str, seed: int, answers: int) -> None:
    """Each window counted alike, however much time it stood for, and time without windows was as the rest."""
    found = outcomes_of(kind, seed)
    assert [line(outcome) for outcome in found if outcome.confidently_wrong] == []
    given = [each for each in found if each.quantity in {"power", "busy"} and each.answer.value is not None]
    assert len(given) >= answers


def test_time_that_no_reading_describes_is_the_reason_of_a_refusal() -> None:
    reasons = {each.answer.reason for each in outcomes_of("and the device works on", 5) if each.quantity == "busy"}
    assert any(reason.startswith("no samples describe ") and reason.endswith(" of its time") for reason in reasons)
