"""Sums over windows that determine rates under one timing, without probes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.least_squares import least_of_each


class LeftOut(NamedTuple):
    """Windows without equations. `unclear` ones may be on either side of a renewal; their values are from `low` to
    `high`. In `contradicting` ones a counter grew in no time."""

    unclear: int = 0
    contradicting: int = 0
    low: float = math.inf
    high: float = -math.inf

    def plus(self, other: LeftOut) -> LeftOut:
        """Both sets of windows."""
        counts = self.unclear + other.unclear, self.contradicting + other.contradicting
        return LeftOut(*counts, min(self.low, other.low), max(self.high, other.high))


class Sums(NamedTuple):
    """Normal equations of `n` windows: sums of products of shares, of shares and values, of values."""

    n: int
    left_out: LeftOut
    gram: Floats
    moment: Floats
    square: float

    @property
    def alike(self) -> float:
        """Windows that each fitted one represents: unclear ones count as fitted like these."""
        return (self.n + self.left_out.unclear) / max(1, self.n)

    @classmethod
    def of(cls, shares: Floats, values: Floats, left_out: LeftOut) -> Sums:
        """The sums for windows with these shares and values, and for the windows left out."""
        return cls(len(values), left_out, shares.T @ shares, shares.T @ values, float(values @ values))

    def plus(self, other: Sums) -> Sums:
        """The sums of both."""
        moment, square = self.moment + other.moment, self.square + other.square
        return Sums(self.n + other.n, self.left_out.plus(other.left_out), self.gram + other.gram, moment, square)

    def beyond(self, rates: Floats) -> float:
        """The distance of the furthest unclear window from the mixtures of these rates. A window's value is such a
        mixture on either side of a renewal."""
        used = rates[np.diag(self.gram) > 0]
        if not self.left_out.unclear or not len(used):
            return 0.0
        return max(0.0, float(used.min()) - self.left_out.low, self.left_out.high - float(used.max()))

    def rates(self, most: float) -> Floats:
        """The rates by column, within physics."""
        return rates_of_each([self], most)[0]

    def residual(self, rates: Floats) -> float:
        """The sum of squared residuals under these rates."""
        return max(0.0, float(self.square - 2 * rates @ self.moment + rates @ self.gram @ rates))


def rates_of_each(some: Sequence[Sums], most: float) -> list[Floats]:
    """By element: the rates with the least residual, within physics."""
    return least_of_each(np.array([each.gram for each in some]), np.array([each.moment for each in some]), most)
