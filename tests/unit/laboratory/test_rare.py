import pytest
from laboratory.programs import Program, Region
from laboratory.recordings import Case
from laboratory.rows import outcomes
from laboratory.run import line
from laboratory.sensors import POWER, UTILIZATION


@pytest.mark.parametrize("length_ms", [2.0, 5.0])
def test_a_region_that_hardly_fills_a_rounded_reading_has_no_sure_busy_share(length_ms: float) -> None:
    """2 ms of 167 ms are one or two per cents of a reading: 0.783 ± 0.053 for 1, by the mean of such windows."""
    region = Region("a", length_ms, 500.0, spread=0.2, varies=0.02)
    made = Case(Program((region,), gap_ms=(1500.0, 2500.0)), (POWER, UTILIZATION), 120.0, 1)
    found = outcomes("rare", made)
    assert [line(outcome) for outcome in found if outcome.confidently_wrong] == []
    busy = next(outcome.answer for outcome in found if outcome.quantity == "busy")
    assert busy.half_width is None or busy.half_width > 0.15
