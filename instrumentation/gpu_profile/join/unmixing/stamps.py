"""How far the stamps of executions may be off, and what that leaves of the equations. Pure.

The share of a window in which a region was active is measured by stamps, which a host takes late. Where nothing else
varies, as in a loop that is locked to the sensor, all that the shares vary by may be errors of stamps, and least
squares takes it for information. The errors are bounded three times. An execution's length is the difference of two
stamps, so half of the variance of lengths of a region bounds the variance of a stamp's error. A late stamp makes the
stretch before it longer and the one after it shorter: the covariance of the two is minus the variance of its error,
where they have nothing else in common. And no error of the shares can explain more than the values leave unexplained
(Klepper and Leamer, Econometrica 52 (1984), 163): the largest error that fits is the largest under which the variance
of the readings' own error is not negative. The stamps are the same for all sensors: the steadiest bounds them for all.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.active_time import Columns
from gpu_profile.join.unmixing.activities import Activities, Pieces
from gpu_profile.join.unmixing.equations import Equations

#: What is more than this is not the stamps': hosts take them late by 0.2-1 ms, and a few per cent by ten times that.
#: No stamp is better than the other one: clocks are read, and marks put, within some microseconds.
HOST_NS: Final = 2_000_000
BEST_NS: Final = 10_000
#: A longer pause tells nothing of the stamp before it, and a bound is this many standard errors above what is found.
_LONGEST_NS: Final = 20_000_000
_SURE: Final = 2.0
#: Executions of a region that tell how its lengths vary.
_FEWEST: Final = 20
#: Once so many executions are known, one in so many slices of time tells enough of how they go on.
_MANY: Final = 3_000
_EVERY: Final = 4
#: The stamps are as bad as those of the regions that are this share of the active time at least.
_QUARTILE: Final = 0.25
#: A pause that stamps may have made up themselves, in standard deviations of their errors: two regions follow directly.
_DIRECTLY: Final = 3.0
_HALVINGS: Final = 30
#: What a sensor's windows say of the stamps is looked at again when there are so many times as many; fewer per unknown
#: than this say nothing of it.
_GROWTH: Final = 1.5
_WINDOWS_PER_UNKNOWN: Final = 4
#: The first executions of a process have no marks of the device.
_NEARLY_ALL: Final = 0.98


class StampErrors(NamedTuple):
    """What errors of stamps may add to the equations: the covariance of the shares, `[columns, columns]`, summed over
    the windows, at most; the shares of it that they add at least, and most likely, by the stamps alone; and the largest
    that the windows of all sensors allow."""

    most: Floats
    least: float = 0.0
    likely: float = 0.5
    allowed: float = 1.0


class Stamps:
    """What executions tell of their stamps: how much the lengths of each column's vary, and which follow each other."""

    def __init__(self) -> None:
        self._lengths: Floats = np.zeros((3, 1))
        self._follows: Floats = np.zeros((1, 1))
        #: Of each column's last and first stamps: how many pairs of executions that follow each other, and sums over
        #: them of the product and the squares of what the stretches before and after the stamp differ by.
        self._edges: Floats = np.zeros((2, 4, 1))
        #: Slices of time that there were, and the length of those that were taken in.
        self._slices = 0
        self.elapsed_ns = 0
        #: By leading signal: how many windows it had, and the largest variance of a stamp's error that they allow.
        self._allowed: dict[Signal, tuple[int, float]] = {}
        #: Executions that ended, and those of them that the device itself stamped.
        self.counted = self.marked = 0

    @property
    def exact(self) -> bool:
        """Whether all stamps but a few are the device's own: a host's may all be late by as much."""
        return 0 < self.counted * _NEARLY_ALL <= self.marked

    def take(
        self, activities: Activities, found: Pieces, columns: Columns, count: int, between: tuple[int, int]
    ) -> None:
        """Take in a slice of time between two moments, its activities cut to it, and their pieces with the column of
        each."""
        self._slices += 1
        if self._slices % _EVERY and self._lengths[0].sum() > _MANY:
            return
        start_ns, end_ns = between
        self.elapsed_ns += end_ns - start_ns
        more = count - len(self._follows)
        if more > 0:
            self._follows = np.pad(self._follows, (0, more))
            self._lengths = np.pad(self._lengths, ((0, 0), (0, more)))
            self._edges = np.pad(self._edges, ((0, 0), (0, 0), (0, more)))
        whole = (activities.starts > start_ns) & (activities.ends < end_ns)
        lengths, own = (activities.ends - activities.starts)[whole].astype(np.float64), activities.columns[whole]
        for power in range(3):
            self._lengths[power] += np.bincount(own, lengths**power, count)
        self._take_edges(found, columns, between)
        before, after = columns[:-1].astype(np.int64), columns[1:].astype(np.int64)
        pauses = found.starts[1:] - found.ends[:-1]
        # With a pause between them there are two stamps, and what they err by is nobody's loss or gain.
        directly = pauses <= 0
        met = np.bincount(before[directly] * count + after[directly], minlength=count * count).astype(np.float64)
        self._follows += met.reshape(count, count)
        self._follows[:, 0] += np.bincount(before[~directly], minlength=count)
        self._follows[0] += np.bincount(after[~directly], minlength=count)

    def _take_edges(self, found: Pieces, columns: Columns, between: tuple[int, int]) -> None:
        start_ns, end_ns = between
        lengths, pauses = (found.ends - found.starts).astype(np.float64), found.starts[1:] - found.ends[:-1]
        whole = (found.starts > start_ns) & (found.ends < end_ns)
        # Which region is beside tells more of a stretch's length than any stamp: its mean is left out.
        n, total, _ = self._lengths
        usual = lengths - (total / np.maximum(n, 1.0))[columns]
        for edge, stamped, other in ((0, slice(None, -1), slice(1, None)), (1, slice(1, None), slice(None, -1))):
            # Up to the far end of the next one: a stamp that is very late moves the near one too.
            beside = pauses + usual[other]
            told = whole[:-1] & whole[1:] & (pauses >= 0) & (pauses < _LONGEST_NS)
            own = columns[stamped][told].astype(np.int64)
            order = np.argsort(own, kind="stable")
            own, length, beside = own[order], lengths[stamped][told][order], beside[told][order]
            # What changes slowly, as clocks do, is the same in two soon after each other. Of two in a row, one would be
            # beside the other; with the next but one there is no stretch in common.
            pair = own[2:] == own[:-2]
            length, beside, own = (length[2:] - length[:-2])[pair], (beside[2:] - beside[:-2])[pair], own[2:][pair]
            for i, each in enumerate((None, length * beside, length**2, beside**2)):
                self._edges[edge, i] += np.bincount(own, each, self._edges.shape[2])

    def _by_edges(self) -> tuple[float, float | None, float]:
        """What the covariance beside stamps says the variance of their errors is at least, likely and at most, in ns²;
        None where it says nothing."""
        found, doubt = np.zeros(2), np.zeros(2)
        for edge, sums in enumerate(self._edges):
            told = sums[0] >= _FEWEST
            if not told.any():
                return 0.0, None, math.inf
            n, products, lengths, besides = sums[:, told]
            # Differences have twice the variance; as each is in two of them, half of the pairs count.
            weights = 2 * n**3 / np.maximum(lengths * besides, 1.0)
            found[edge] = -(weights * products / (2 * n)).sum() / weights.sum()
            doubt[edge] = 1 / weights.sum()
        low, high = (np.maximum(0.0, found + side * _SURE * np.sqrt(doubt)) for side in (-1, 1))
        mean = max(0.0, float(found.mean()))
        # Of what is no more than its own doubt, nothing is believed (the positive part of James and Stein's estimate).
        likely = max(0.0, mean - float(doubt.sum()) / 4 / mean) if mean else 0.0
        return float(low.min()), likely, float(high.max())

    def bound_by(self, lead: Signal, equations: Equations, kernel: float) -> None:
        """Bound the errors by what the windows of a family leave unexplained; `kernel` as in `errors`."""
        p, n = len(equations.probes), equations.n
        before, _ = self._allowed.get(lead, (0, 0.0))
        spare = n - equations.columns
        if before <= n < _GROWTH * before or n < _WINDOWS_PER_UNKNOWN * len(equations.gram) or spare <= 0:
            return
        variance, square = self.variance, float(equations.square[0])
        most = self.errors(equations.columns, n, kernel).most
        share = largest(equations.gram[p:, p:], equations.moment[p:, 0], square, most) if square > 0 else 1.0
        # The fitted rates took their part of the residuals, and their sum of squares has an error of its own.
        chance = (1 + _SURE * math.sqrt(2 / spare)) * n / spare
        self._allowed[lead] = n, math.inf if share >= 1 else share * variance * chance

    @property
    def known(self) -> bool:
        """Whether any region has executions enough to tell how its lengths vary."""
        return bool((self._lengths[0] >= _FEWEST).any())

    @property
    def variance(self) -> float:
        """The largest variance that the error of a stamp may have, in ns²; 0 while nothing is known."""
        n, total, squares = self._lengths
        told = n >= _FEWEST
        if not told.any():
            return 0.0
        n, total, squares = n[told], total[told], squares[told]
        variances = np.maximum(0.0, squares / n - (total / n) ** 2) / 2
        order = np.argsort(variances)
        reached = np.cumsum(total[order]) / max(float(total.sum()), 1e-300)
        by_length = float(variances[order][np.searchsorted(reached, _QUARTILE)])
        return max(float(BEST_NS) ** 2, min(float(HOST_NS) ** 2, by_length, self._by_edges()[2]))

    def errors(self, columns: int, windows: int, kernel: float) -> StampErrors:
        """What errors of stamps may add to the shares of so many windows.

        `kernel`: the integral of the square of a window's weight over time, in 1/ns (1 / length for a mean).
        """
        if not self.elapsed_ns:
            return StampErrors(np.zeros((columns, columns)))
        known = min(columns, len(self._follows))
        both = np.zeros((columns, columns))
        both[:known, :known] = self._follows[:known, :known]
        both = both + both.T
        np.fill_diagonal(both, 0.0)
        variance = self.variance
        # Whatever one region gains at an edge, its neighbour loses.
        most = (np.diag(both.sum(axis=0)) - both) * (variance * windows * kernel / self.elapsed_ns)
        if variance <= 0:
            return StampErrors(most)
        low, likely, _ = self._by_edges()
        allowed = min((most for _, most in self._allowed.values()), default=math.inf)
        found = low, 0.5 * variance if likely is None else likely, allowed
        return StampErrors(most, *(min(1.0, each / variance) for each in found))

    def merge(self, column: int, into: int) -> None:
        """Make a column part of another."""
        if max(column, into) < len(self._follows):
            self._follows[into] += self._follows[column]
            self._follows[:, into] += self._follows[:, column]
            self._follows[column] = self._follows[:, column] = 0.0
            self._lengths[:, column] = 0.0
            self._edges[:, :, column] = 0.0


def largest(gram: Floats, moment: Floats, square: float, errors: Floats) -> float:
    """The largest share of `errors` that the equations may contain: from 0 to 1.

    `gram`, `moment` and `square` are sums of products of shares, of shares and values, and of values.
    """
    diagonal = np.diag(gram)
    used = np.flatnonzero(diagonal > 0)
    if not len(used) or square <= 0 or not errors.any():
        return 0.0
    scale = 1 / np.sqrt(diagonal[used])
    whole = np.ones((len(used) + 1, len(used) + 1))
    whole[:-1, :-1] = gram[np.ix_(used, used)] * scale[:, None] * scale
    whole[:-1, -1] = whole[-1, :-1] = moment[used] * scale / np.sqrt(square)
    part = np.zeros_like(whole)
    part[:-1, :-1] = errors[np.ix_(used, used)] * scale[:, None] * scale
    low, high = 0.0, 1.0
    if _possible(whole - part):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _possible(whole - middle * part) else (low, middle)
    return low


def _possible(matrix: Floats) -> bool:
    """Whether it has no negative eigenvalue, but for rounding."""
    try:
        np.linalg.cholesky(matrix + 1e-12 * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True
