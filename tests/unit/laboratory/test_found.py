import pytest
from laboratory.found import FOUND
from laboratory.recordings import Case, analysed
from laboratory.rows import outcomes, program
from laboratory.sensors import COUNTER, GPM


@pytest.mark.parametrize("name", FOUND)
def test_no_case_that_was_found_has_a_confident_error_any_more(name: str) -> None:
    found = outcomes(name, FOUND[name])
    assert [outcome for outcome in found if outcome.confidently_wrong] == []


def test_executions_of_a_nanosecond_have_no_rates() -> None:
    """Their shares of windows are all rounding: rates of megawatts came of that, with half-widths below 0."""
    run = Case(program(3, count=3, gap_ms=(0.0, 2.0)), (COUNTER, GPM), 20.0, 3).run()
    starts = run.host[0]
    found = analysed(run._replace(host=(starts, starts + 1)))
    assert all((answer.half_width or 0.0) >= 0 for answer in found.values())
    assert [
        key for key, answer in found.items() if key[1] in {"power", "busy", "sm"} and answer.value is not None
    ] == []
