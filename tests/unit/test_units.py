import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.units import nanoseconds, percent, seconds, si


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"),
        (1, "1.00 J"),
        (999.4, "999 J"),
        (999.96, "1.00 kJ"),
        (0.0999996, "100 mJ"),
        (1_234_567, "1.23 MJ"),
        (5e9, "5.00 GJ"),
        (12e12, "12.0 TJ"),
        (12e15, "12000 TJ"),
        (-0.5, "-500 mJ"),
        (0.0, "0 J"),
        (3e-6, "3.00 µJ"),
        (5e-9, "5.00 nJ"),
        (5e-10, "0.50 nJ"),
        (math.inf, "inf J"),
        (math.nan, "nan J"),
    ],
)
def test_values_read_with_a_prefix_and_three_digits(value: float, text: str) -> None:
    assert si(value, "s" if text.endswith("s") else "J") == text


@given(st.floats(1e-9, 1e15))
def test_a_prefixed_value_is_within_half_of_its_last_digit(value: float) -> None:
    number, unit = si(value, "W").split()
    scale = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}[unit.removesuffix("W")]
    assert float(number) * scale == pytest.approx(value, rel=0.0051)


@given(st.floats(1e-12, 1e15))
def test_what_is_not_zero_is_not_shown_as_no_value(value: float) -> None:
    assert not si(value, "J").startswith("0 J")


@given(st.integers(0, 1 << 53))
def test_seconds_and_nanoseconds_are_inverse(ns: int) -> None:
    assert nanoseconds(seconds(ns)) == pytest.approx(ns, abs=max(1, ns >> 50))


def test_a_ratio_reads_as_a_percentage() -> None:
    assert (percent(0.1234), percent(1, 0), percent(0)) == ("12.3 %", "100 %", "0.0 %")
