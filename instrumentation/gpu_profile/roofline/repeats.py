"""The median of several timings of the same call, with its confidence interval. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final, NamedTuple

#: The confidence level of the median's interval.
_CONFIDENCE: Final = 0.95


class Repeats(NamedTuple):
    """`n` timings in seconds: their median and its 95 % confidence interval, `low_s` to `high_s`.

    The interval comes from order statistics, which assume only that the timings are independent. Fewer than six timings
    have no 95 % interval: it is then from the shortest to the longest. For one timing all three are equal.
    """

    n: int
    median_s: float
    low_s: float
    high_s: float

    @staticmethod
    def of(times_s: Sequence[float]) -> Repeats:
        """Raises ValueError if `times_s` is empty."""
        if not times_s:
            raise ValueError("no timings")
        ordered, n = sorted(times_s), len(times_s)
        median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        skip = _outside(n)
        return Repeats(n, median, ordered[skip], ordered[n - 1 - skip])

    @property
    def half_width(self) -> float | None:
        """Half of the interval, relative to the median. None for a single timing or a median of 0."""
        return None if self.n < 2 or not self.median_s else (self.high_s - self.low_s) / 2 / self.median_s


def _outside(n: int) -> int:
    """How many of `n` ordered timings to skip at each end, so that the rest spans the median with 95 % confidence.

    The median is outside of the k-th to (n - k - 1)-th timing with probability 2 P(Binomial(n, 1/2) <= k), the usual
    distribution-free interval of a median.
    """
    k, outside = 0, 2 / 2**n
    while k + 1 <= (n - 1) // 2 and outside + 2 * comb(n, k + 1) / 2**n <= 1 - _CONFIDENCE:
        k += 1
        outside += 2 * comb(n, k) / 2**n
    return k
