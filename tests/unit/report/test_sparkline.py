import math

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.report.sparkline import HEIGHTS, sparkline


def test_each_ratio_is_a_height_and_an_unknown_one_is_blank() -> None:
    assert sparkline([0.0, 0.124, 0.125, 0.5, 0.99, 1.0]) == "▁▁▂▅██"
    assert sparkline([None, 0.0, None]) == " ▁ "
    assert sparkline([]) == ""


@given(st.lists(st.none() | st.floats(-10, 10)))
def test_ratios_outside_are_at_the_edges(ratios: list[float | None]) -> None:
    drawn = sparkline(ratios)
    assert len(drawn) == len(ratios)
    for ratio, character in zip(ratios, drawn, strict=True):
        if ratio is None:
            assert character == " "
        else:
            assert character == HEIGHTS[min(7, max(0, math.floor(ratio * 8)))]
