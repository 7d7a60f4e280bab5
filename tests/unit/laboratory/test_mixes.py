"""The mix of cases is fixed: a change of it changes what every later figure means."""

import numpy as np
import pytest
from laboratory import programs, recordings, sensors
from laboratory.mixes import VIOLATIONS, digest, draw
from laboratory.search import as_python

#: Of 2,000 cases. Whoever changes it measures the cases before and after, and says so in the commit.
DIGEST = "61bef2ae8ae61684"


def test_the_mix_is_the_agreed_one() -> None:
    assert digest(2000) == DIGEST


def test_every_violation_and_none_are_drawn() -> None:
    drawn = [draw(number).violations for number in range(400)]
    assert {name for names in drawn for name in names} == {*VIOLATIONS}
    assert () in drawn
    assert max(map(len, drawn)) == 3


@pytest.mark.parametrize("number", range(20))
def test_a_case_that_is_found_can_be_written_down(number: int) -> None:
    case = draw(number).case
    names = {**vars(programs), **vars(recordings), **vars(sensors), "np": np}
    assert eval(as_python(case), names) == case  # noqa: S307 - the expression is our own
