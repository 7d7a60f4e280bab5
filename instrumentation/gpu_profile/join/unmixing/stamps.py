"""Bounds on the stamp errors of executions, and the effect of these errors on the equations. Pure.

The share of a window in which a region was active follows from stamps, which a host takes late. If nothing else varies,
as in a loop that is locked to the sensor, all variation of the shares may be stamp errors, and least squares would take
it for information. Three facts bound the errors. An execution's length is the difference of two stamps, so half of the
variance of a region's lengths bounds the variance of a stamp's error. A late stamp makes the stretch before it longer
and the one after it shorter: if the two have nothing else in common, their covariance is minus the variance of the
error. And stamp errors explain at most the residual (Klepper and Leamer, Econometrica 52 (1984), 163): under the
largest error that fits, the variance of the readings' own error is 0. The stamps are the same for all sensors: the
steadiest sensor bounds them for all.

The stamps of a region may also be late by different times at its starts and at its ends. All its executions are then
too long or too short, and part of a neighbour's power counts as theirs. No reading shows that: it looks like work that
ends early. Only the scatter of the stamps bounds it, because a host that is late is not late by the same time always.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.activities import Activities, Pieces
from gpu_profile.join.unmixing.equations import Equations
from gpu_profile.join.unmixing.piece_sums import Columns

#: Larger variation is not due to stamps: hosts take them late by 0.2-1 ms, and a few per cent by ten times as much.
#: No stamp is better than the second number: clocks are read, and marks recorded, within some microseconds.
HOST_NS: Final = 2_000_000
BEST_NS: Final = 10_000
#: Pauses above this length are no evidence on the stamp before them. A bound is this many standard errors away.
_LONGEST_NS: Final = 20_000_000
_SURE: Final = 2.0
#: A lateness that is uniform from 0 on has a mean of this many standard deviations. The means at a region's starts and
#: at its ends differ by no more, and by no more than half of the range of a host's lateness, 0.2 to 1 ms.
_SHARED: Final = math.sqrt(3)
_SHARED_NS: Final = 400_000
#: Executions of a region that its variance of lengths needs.
_FEWEST: Final = 20
#: After `_MANY` executions, only one slice of time in `_EVERY` is evaluated.
_MANY: Final = 3_000
_EVERY: Final = 4
#: Stamps are judged by the regions with the smallest variances that make up this share of the active time.
_QUARTILE: Final = 0.25
_HALVINGS: Final = 30
#: A sensor's bound on the stamps is computed again when the number of windows has grown by this factor. It needs this
#: many windows per unknown.
_GROWTH: Final = 1.5
_WINDOWS_PER_UNKNOWN: Final = 4
#: The share of device stamps that counts as all: the first executions of a process have none.
_NEARLY_ALL: Final = 0.98


class StampErrors(NamedTuple):
    """The contribution of stamp errors to the equations: `most` is the largest covariance of the shares, `[columns,
    columns]`, summed over the windows. `least` and `likely` are the smallest and the most likely share of it, by the
    stamps alone. `allowed` is the largest share that the windows of all sensors allow. `shared[a, b]` is the share of
    all time that may count for `a` instead of `b` because a region's stamps are late by the same time."""

    most: Floats
    least: float = 0.0
    likely: float = 0.5
    allowed: float = 1.0
    shared: Floats = np.zeros((0, 0))

    def moved(self, weights: Floats, rates: Floats, active: Floats) -> float:
        """How far the rate of a mixture of columns may be off because a region's stamps are late by the same time.

        `active` is the share of all time in which each column is active."""
        inside = weights[: len(self.shared)] > 0
        if inside[:1].any():
            # Short pauses are little but edges. Work in them is reported by its busy time, not by this rate.
            return 0.0
        own, rest = np.flatnonzero(inside), np.flatnonzero(~inside)
        shared = self.shared[np.ix_(own, rest)]
        if not shared.any():
            return 0.0
        # The executions may be this much shorter than their stamps say.
        least = float(active[weights > 0].sum() - shared.sum())
        return float((shared * np.abs(rates[own, None] - rates[rest])).sum()) / least if least > 0 else math.inf


class Stamps:
    """Statistics of executions' stamps: the variance of the lengths by column, and which columns follow each other."""

    def __init__(self) -> None:
        self._lengths: Floats = np.zeros((3, 1))
        self._follows: Floats = np.zeros((1, 1))
        #: For each column's last and first stamps: the number of pairs of consecutive executions, and sums over pairs
        #: of the product and the squares of the differences of the stretches before and after the stamp.
        self._edges: Floats = np.zeros((2, 4, 1))
        #: The number of slices of time, and the total length of the evaluated ones.
        self._slices = 0
        self.elapsed_ns = 0
        #: By leading signal: its number of windows, and the largest variance of a stamp's error that they allow.
        self._allowed: dict[Signal, tuple[int, float]] = {}
        #: Executions that ended, and the number of them with stamps of the device.
        self.counted = self.marked = 0

    @property
    def exact(self) -> bool:
        """Whether nearly all stamps are the device's own: a host's may share a constant lateness."""
        return 0 < self.counted * _NEARLY_ALL <= self.marked

    def take(
        self, activities: Activities, pieces: Pieces, columns: Columns, count: int, between: tuple[int, int]
    ) -> None:
        """Add a slice of time `between` two moments: its activities, cut to it, and their pieces with each one's
        column. Pieces of other slices are ignored."""
        self._slices += 1
        if self._slices % _EVERY and self._lengths[0].sum() > _MANY:
            return
        start_ns, end_ns = between
        here = slice(*pieces.starts.searchsorted(between).tolist())
        pieces, columns = Pieces(*(part[here] for part in pieces)), columns[here]
        self.elapsed_ns += end_ns - start_ns
        more = count - len(self._follows)
        if more > 0:
            self._follows = np.pad(self._follows, (0, more))
            self._lengths = np.pad(self._lengths, ((0, 0), (0, more)))
            self._edges = np.pad(self._edges, ((0, 0), (0, 0), (0, more)))
        whole = (activities.starts > start_ns) & (activities.ends < end_ns)
        lengths, own = (activities.ends - activities.starts)[whole].astype(np.float64), activities.columns[whole]
        for power, weights in enumerate((None, lengths, lengths**2)):
            self._lengths[power] += np.bincount(own, weights, count)
        self._take_edges(pieces, columns, between)
        before, after = columns[:-1].astype(np.int64), columns[1:].astype(np.int64)
        pauses = pieces.starts[1:] - pieces.ends[:-1]
        # A pause lies between two stamps, whose errors affect no neighbouring region.
        directly = pauses <= 0
        met = np.bincount(before[directly] * count + after[directly], minlength=count * count).astype(np.float64)
        self._follows += met.reshape(count, count)
        self._follows[:, 0] += np.bincount(before[~directly], minlength=count)
        self._follows[0] += np.bincount(after[~directly], minlength=count)

    def _take_edges(self, pieces: Pieces, columns: Columns, between: tuple[int, int]) -> None:
        start_ns, end_ns = between
        lengths, pauses = (pieces.ends - pieces.starts).astype(np.float64), pieces.starts[1:] - pieces.ends[:-1]
        whole = (pieces.starts > start_ns) & (pieces.ends < end_ns)
        # The neighbouring region affects a stretch's length more than any stamp, so its mean is subtracted.
        n, total, _ = self._lengths
        usual = lengths - (total / np.maximum(n, 1.0))[columns]
        before = np.flatnonzero(whole[:-1] & whole[1:] & (pauses >= 0) & (pauses < _LONGEST_NS))
        # The last stamps of executions, and then the first stamps of the next ones.
        stamped, other = np.concatenate((before, before + 1)), np.concatenate((before + 1, before))
        own = columns[stamped].astype(np.int64)
        own[len(before) :] += (count := self._edges.shape[2])
        order = np.argsort(own, kind="stable")
        # Up to the far end of the next one: a stamp that is very late also moves the near end.
        beside = pauses[np.concatenate((before, before))] + usual[other]
        own, length, beside = own[order], lengths[stamped[order]], beside[order]
        # Slow changes, such as clocks, cancel in differences of executions soon after each other. Consecutive ones
        # would be each other's neighbours; an execution and the next but one have no stretch in common.
        pair = own[2:] == own[:-2]
        length, beside, own = (length[2:] - length[:-2])[pair], (beside[2:] - beside[:-2])[pair], own[2:][pair]
        for i, each in enumerate((None, length * beside, length**2, beside**2)):
            self._edges[:, i] += np.bincount(own, each, 2 * count).reshape(2, count)

    def _by_edges(self) -> tuple[float, float | None, float]:
        """The least, the most likely and the largest variance of stamp errors by the covariance beside stamps, in ns².

        The likely one is None without enough executions."""
        variances, doubt = np.zeros(2), np.zeros(2)
        for edge, sums in enumerate(self._edges):
            enough = sums[0] >= _FEWEST
            if not enough.any():
                return 0.0, None, math.inf
            n, products, lengths, besides = sums[:, enough]
            # Differences have twice the variance. Each execution is in two of them, so half of the pairs count.
            weights = 2 * n**3 / np.maximum(lengths * besides, 1.0)
            variances[edge] = -(weights * products / (2 * n)).sum() / weights.sum()
            doubt[edge] = 1 / weights.sum()
        low, high = (np.maximum(0.0, variances + side * _SURE * np.sqrt(doubt)) for side in (-1, 1))
        mean = max(0.0, float(variances.mean()))
        # An estimate below its own uncertainty becomes 0 (the positive part of James and Stein's estimator).
        likely = max(0.0, mean - float(doubt.sum()) / 4 / mean) if mean else 0.0
        return float(low.min()), likely, float(high.max())

    def bound_by(self, lead: Signal, equations: Equations, kernel: float) -> None:
        """Bound the errors by the residual of a family's windows; `kernel` is described in `errors`."""
        p, n = len(equations.probes), equations.n
        before, _ = self._allowed.get(lead, (0, 0.0))
        spare = n - equations.columns
        if before <= n < _GROWTH * before or n < _WINDOWS_PER_UNKNOWN * len(equations.total) or spare <= 0:
            return
        variance, square = self.variance, float(equations.square[0])
        most = self.errors(equations.columns, n, kernel).most
        share = largest(equations.gram[p:, p:], equations.moment[p:, 0], square, most) if square > 0 else 1.0
        # The fitted rates absorb a part of the residual, and its sum of squares has an error of its own.
        chance = (1 + _SURE * math.sqrt(2 / spare)) * n / spare
        self._allowed[lead] = n, math.inf if share >= 1 else share * variance * chance

    @property
    def variance(self) -> float:
        """The largest variance that the error of a stamp may have, in ns²; 0 before there are enough executions."""
        n, total, squares = self._lengths
        enough = n >= _FEWEST
        if not enough.any():
            return 0.0
        n, total, squares = n[enough], total[enough], squares[enough]
        variances = np.maximum(0.0, squares / n - (total / n) ** 2) / 2
        order = np.argsort(variances)
        reached = np.cumsum(total[order]) / max(float(total.sum()), 1e-300)
        by_length = float(variances[order][np.searchsorted(reached, _QUARTILE)])
        return max(float(BEST_NS) ** 2, min(float(HOST_NS) ** 2, by_length, self._by_edges()[2]))

    def errors(self, columns: int, windows: int, kernel: float) -> StampErrors:
        """The contribution of stamp errors to the shares of `windows` windows.

        `kernel`: the integral of the square of a window's weight over time, in 1/ns (1 / length for a mean).
        """
        if not self.elapsed_ns:
            return StampErrors(np.zeros((columns, columns)))
        size = min(columns, len(self._follows))
        both = np.zeros((columns, columns))
        both[:size, :size] = self._follows[:size, :size]
        both = both + both.T
        np.fill_diagonal(both, 0.0)
        variance = self.variance
        # Time that a stamp error adds to one region is taken from its neighbour.
        most = (np.diag(both.sum(axis=0)) - both) * (variance * windows * kernel / self.elapsed_ns)
        if variance <= 0:
            return StampErrors(most)
        low, likely, _ = self._by_edges()
        allowed = min((most for _, most in self._allowed.values()), default=math.inf)
        likely = 0.5 * variance if likely is None else likely
        fits = min(1.0, allowed / variance)
        # The device's own stamps have no lateness in common. Half of the difference lies at each of a region's edges.
        late_ns = 0.0 if self.exact else min(_SHARED_NS, _SHARED * math.sqrt(min(variance, allowed)))
        shared = both * (late_ns / 2 / self.elapsed_ns)
        return StampErrors(most, min(1.0, low / variance), min(1.0, likely / variance), fits, shared)

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
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
    """Whether a matrix has no negative eigenvalue, except for rounding."""
    try:
        np.linalg.cholesky(matrix + 1e-12 * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True
