"""Several timings of the same call: their median, and how sure it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final, NamedTuple

#: Of the interval of the median.
_CONFIDENCE: Final = 0.95


class Repeats(NamedTuple):
    """`n` timings in seconds: their median and the interval that it is in with 95 % confidence.

    The interval is that of order statistics, which assumes nothing of the timings but that they are independent. Below
    six there is none as sure as that: it is then from the least to the most. Of one timing all three are the same.
    """

    n: int
    median_s: float
    low_s: float
    high_s: float

    @staticmethod
    def of(times_s: Sequence[float]) -> Repeats:
        """ValueError if there are none."""
        if not times_s:
            raise ValueError("no timings")
        ordered, n = sorted(times_s), len(times_s)
        median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        skip = _outside(n)
        return Repeats(n, median, ordered[skip], ordered[n - 1 - skip])

    @property
    def half_width(self) -> float | None:
        """Half of the interval, relative to the median; None of a single timing, which has none."""
        return None if self.n < 2 or not self.median_s else (self.high_s - self.low_s) / 2 / self.median_s


def _outside(n: int) -> int:
    """How many of `n` ordered timings can be left out at either end: the median is then between those left.

    With k left out it is outside with twice P(Binomial(n, 1/2) <= k): any text on distribution-free intervals.
    """
    k, outside = 0, 2 / 2**n
    while k + 1 <= (n - 1) // 2 and outside + 2 * comb(n, k + 1) / 2**n <= 1 - _CONFIDENCE:
        k += 1
        outside += 2 * comb(n, k) / 2**n
    return k
