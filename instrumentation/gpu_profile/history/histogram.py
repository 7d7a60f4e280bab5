"""A mergeable, time-weighted histogram in bounded memory, for values that have left the history. Pure.

Bins are 2^k quanta wide and begin at multiples of their width, so a wider bin is always a pair of narrower ones. The
width is the smallest at which all values fit. It depends on the least and the largest value alone. The bins are
therefore the same whether values are added together or merged in parts, in any order.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: The most bins. If values need a width of 2^k, they did not fit at half of it, so their range exceeds 255·2^(k-1).
#: A bin is therefore narrower than 0.8 % of the range, and its middle is within 0.4 % of each of its values.
MOST_BINS: Final = 256
#: Sums of floats below this are exact.
_EXACT: Final = 1 << 53
#: A quantile is replaced by the closest fraction with at most this denominator, so that 0.1 means exactly 1/10.
_DENOMINATOR: Final = 10**9


class Bin(NamedTuple):
    """The values from `low` to `high`, both included, and the ns for which the signal had one of them."""

    low: int
    high: int
    weight: int


class Histogram:
    """The time that a signal had each value. Values are in whole quanta, weights in ns."""

    __slots__ = ("_bins", "_high", "_low", "_shift", "weight")

    def __init__(self) -> None:
        #: The sum of all weights, exact.
        self.weight = 0
        self._bins: dict[int, int] = {}
        self._shift = 0
        self._low = self._high = 0

    @property
    def bins(self) -> tuple[Bin, ...]:
        """The bins that are not empty, in ascending order. The outer ones end at the least and the largest value."""
        width = 1 << self._shift
        return tuple(
            Bin(max(i * width, self._low), min((i + 1) * width - 1, self._high), self._bins[i])
            for i in sorted(self._bins)
        )

    def add(self, values: Ints, weights: Ints) -> None:
        """Add `values`, each with its weight in ns. ValueError if the lengths differ or a weight is negative."""
        if len(values) != len(weights):
            raise ValueError(f"each value needs a weight: {len(values)} values, {len(weights)} weights")
        if len(weights) and weights.min() < 0:
            raise ValueError(f"a weight is a time, not {weights.min()} ns")
        lasting = weights > 0
        if not lasting.all():
            values, weights = values[lasting], weights[lasting]
        if len(values):
            self._widen(int(values.min()), int(values.max()))
            self._add(values >> self._shift, weights)

    def _add(self, places: Ints, weights: Ints) -> None:
        if len(places) == 1:
            self._fill(int(places[0]), int(weights[0]))
        elif int(weights.max()) * len(weights) >= _EXACT:
            # bincount adds floats, which are not exact here: halve the batch, down to a single weight if need be.
            half = len(places) // 2
            self._add(places[:half], weights[:half])
            self._add(places[half:], weights[half:])
        else:
            first = int(places.min())
            sums = np.bincount(places - first, weights)
            for i in np.flatnonzero(sums).tolist():
                self._fill(first + i, int(sums[i]))

    def _fill(self, place: int, weight: int) -> None:
        self._bins[place] = self._bins.get(place, 0) + weight
        self.weight += weight

    def merge(self, other: Histogram) -> None:
        """Add all values of `other`, with the same result as adding them here directly."""
        if other.weight:
            bins, shift = list(other._bins.items()), other._shift
            self._widen(other._low, other._high)
            for place, weight in bins:
                self._fill(place >> (self._shift - shift), weight)

    def _widen(self, low: int, high: int) -> None:
        """Double the width until values from `low` to `high` fit, and fold the bins."""
        if self.weight:
            low, high = min(low, self._low), max(high, self._high)
        self._low, self._high = low, high
        shift = self._shift
        while (high >> shift) - (low >> shift) >= MOST_BINS:
            shift += 1
        if shift > self._shift:
            folded: dict[int, int] = {}
            for place, weight in self._bins.items():
                wide = place >> (shift - self._shift)
                folded[wide] = folded.get(wide, 0) + weight
            self._bins, self._shift = folded, shift

    def quantile(self, q: float) -> float | None:
        """The value in quanta that the signal did not exceed for the share `q` (0-1) of the time.

        The middle of a bin: off by at most 0.4 % of the range of all values, and exact if 256 bins of one quantum
        suffice. 0 and 1 give the least and the largest value exactly. None without values. ValueError for `q` outside
        0-1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies in 0-1, not {q}")
        if not self.weight:
            return None
        rank = ceil(Fraction(q).limit_denominator(_DENOMINATOR) * self.weight)
        if not rank:
            return float(self._low)
        if rank == self.weight:
            return float(self._high)
        bins = self.bins
        reached = accumulate(each.weight for each in bins)
        low, high, _ = next(each for each, weight in zip(bins, reached, strict=True) if weight >= rank)
        return (low + high) / 2
