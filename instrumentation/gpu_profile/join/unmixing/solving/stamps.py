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
too long or too short, and part of a neighbour's power counts as theirs. To steady rates that looks like work that ends
early. The scatter of the stamps limits it, because a host that is late is not late by the same time always. A
difference without scatter shows only in windows that end within executions: see `lateness`.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.timeline import Floats, Ints, Singles
from gpu_profile.join.unmixing.solving.equations import Equations, sized
from gpu_profile.join.unmixing.solving.lateness import LateEnds
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.stamp_edges import BEST_NS, FEWEST, HOST_NS, StampEdges
from gpu_profile.join.unmixing.solving.unmarked import UnmarkedExecutions, share_outside
from gpu_profile.join.unmixing.windows.activities import Activities, Pieces
from gpu_profile.join.unmixing.windows.piece_sums import Columns

#: A bound is this many standard errors away.
_SURE: Final = 2.0
#: A lateness that is uniform from 0 on has a mean of this many standard deviations; an exponential one has 1, and one
#: that is ten times as long once in 20 times has 0.6. The means at a region's starts and at its ends differ by no more,
#: and by no more than the range of a host's lateness, 0.2 to 1 ms.
_SHARED: Final = math.sqrt(3)
_SHARED_NS: Final = 800_000
#: Two standard deviations of a stamp's error are the reach of most errors.
_REACH: Final = 2.0
#: After `_MANY` executions, only one slice of time in `_EVERY` is evaluated, and one in `_EVERY`² for unmarked ones.
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
    all time that may count for `a` instead of `b` because a region's stamps are late by the same time, and
    `overlapping[a, b]` the share in which both ran and that may count for `a` alone. `unmarked` are the squares of the
    shares that executions without a mark have, by column, summed over the windows too. `pausing` are the shares of the
    time outside regions that they have, by column. `elsewhere` is the largest share of these executions that the
    windows of all sensors allow."""

    most: Floats
    least: float = 0.0
    likely: float = 0.5
    allowed: float = 1.0
    shared: Floats = np.zeros((0, 0))
    overlapping: Floats = np.zeros((0, 0))
    unmarked: Floats = np.zeros(1)
    pausing: Floats = np.zeros(1)
    elsewhere: float = 1.0

    def by_stamps(self, rates: Floats) -> float:
        """The largest sum of the squares of the windows' errors by stamp errors under these rates."""
        return self.allowed * float(rates @ self.most @ rates)

    def by_pauses(self, rates: Floats, *, steady: bool = True) -> float:
        """The sum of the squares of the windows' errors by executions without a mark under these rates. Only a `steady`
        rate outside regions is not that of these executions."""
        if (whole := float(self.unmarked.sum())) <= 0:
            return 0.0
        outside = rates[0] if steady else rates @ self.unmarked / whole
        return float(self.unmarked @ (rates - outside) ** 2)

    def possible(self, rates: Floats, doubt: float = 0.0) -> float:
        """The largest share of the executions without a mark that these rates allow. The rate outside regions, which
        `doubt` may exceed, includes their work: where a program only waits, it is that of an idle device."""
        return min(self.elsewhere, share_outside(self.pausing, rates, doubt))

    @property
    def by_unmarked(self) -> StampErrors:
        """Only the contribution of executions without a mark."""
        return self._replace(
            most=np.zeros_like(self.most), least=0.0, likely=0.5, allowed=1.0, shared=np.zeros((0, 0)),
            overlapping=np.zeros((0, 0)),
        )  # fmt: skip

    def moved(self, weights: Floats, rates: Floats, active: Floats) -> float:
        """How far the rate of a mixture of columns may be off because a region's stamps are late by the same time.

        `active` is the share of all time in which each column is active."""
        inside = weights[: len(self.shared)] > 0
        if inside[:1].any():
            # Short pauses are little but edges. Work in them is reported by its busy time, not by this rate.
            return 0.0
        own, rest = np.flatnonzero(inside), np.flatnonzero(~inside)
        shared, overlapping = (part[own[:, None], rest] for part in (self.shared, self.overlapping))
        if not (shared.any() or overlapping.any()):
            return 0.0
        # The executions may be this much shorter than their stamps say.
        least = float(active[weights > 0].sum() - shared.sum())
        # Late ends make executions too long, and late starts make overlaps too short: a host has one or the other.
        outside = float((shared * np.abs(rates[own, None] - rates[rest])).sum())
        beside = float((overlapping * np.abs(rates[rest] - rates[0])).sum())
        return max(outside, beside) / least if least > 0 else math.inf


class Stamps:
    """Statistics of executions' stamps: the variance of the lengths by column, and which columns follow each other."""

    def __init__(self) -> None:
        self._lengths: Floats = np.zeros((3, 1))
        #: How often each column followed each. Only ratios count, so single precision suffices.
        self._follows: Singles = np.zeros((1, 1), np.float32)
        #: The part of these in which the first one still ran.
        self._overlaps: Singles = np.zeros((1, 1), np.float32)
        self._edges = StampEdges()
        self.lateness = LateEnds()
        #: The number of slices of time, and the total length of the evaluated ones.
        self._slices = 0
        self.elapsed_ns = 0
        #: By leading signal: its number of windows, and the largest variance of a stamp's error that they allow, with
        #: and without the chance of a small residual.
        self._allowed: dict[Signal, tuple[int, float, float]] = {}
        #: Executions that ended, and the number of them with stamps of the device.
        self.counted = self.marked = 0
        self.unmarked = UnmarkedExecutions()

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
            self._follows, self._overlaps = np.pad(self._follows, (0, more)), np.pad(self._overlaps, (0, more))
            self._lengths = np.pad(self._lengths, ((0, 0), (0, more)))
        whole = (activities.starts > start_ns) & (activities.ends < end_ns)
        lengths, own = (activities.ends - activities.starts)[whole].astype(np.float64), activities.columns[whole]
        for power, weights in enumerate((None, lengths, lengths**2)):
            self._lengths[power] += np.bincount(own, weights, count)
        self._edges.take(pieces, columns, between, self._lengths)
        reached = np.maximum.accumulate(pieces.ends)
        pauses = pieces.starts[1:] - reached[:-1]
        before, after = columns[:-1].astype(np.int64), columns[1:].astype(np.int64)
        overlap = pauses < 0
        if overlap.any():
            # What follows a piece follows the one that ends last.
            before = before[np.maximum.accumulate(np.where(pieces.ends == reached, np.arange(len(reached)), 0))[:-1]]
            self._overlaps += _pairs(before[overlap], after[overlap], count)
        # A pause lies between two stamps, whose errors affect no neighbouring region.
        directly = pauses <= 0
        self._follows += _pairs(before[directly], after[directly], count)
        self._follows[:, 0] += np.bincount(before[~directly], minlength=count)
        self._follows[0] += np.bincount(after[~directly], minlength=count)
        if not self._slices % _EVERY**2 or self._lengths[0].sum() <= _MANY:
            self.unmarked.take(pauses[~directly], lengths, own, end_ns - start_ns)

    def bound_by(self, lead: Signal, equations: Equations, kernel: float) -> None:
        """Bound the errors by the residual of a family's windows; `kernel` is described in `errors`."""
        n = equations.n
        before, *_ = self._allowed.get(lead, (0, 0.0, 0.0))
        spare = n - equations.columns
        if before <= n < _GROWTH * before or n < _WINDOWS_PER_UNKNOWN * equations.columns or spare <= 0:
            return
        variance, steady = self.variance, equations.steady()
        most = self.errors(equations.columns, n, kernel).most
        share = largest(steady, most) if equations.square[0] > 0 else 1.0
        # The fitted rates absorb a part of the residual, and its sum of squares has an error of its own.
        expected = math.inf if share >= 1 else share * variance * n / spare
        self._allowed[lead] = n, expected * (1 + _SURE * math.sqrt(2 / spare)), expected

    @property
    def variance(self) -> float:
        """The largest variance that the error of a stamp may have, in ns²; 0 before there are enough executions."""
        by_length = self._by_lengths()
        return _largest(by_length, self._by_edges(by_length)[2])

    def _by_edges(self, by_length: float | None) -> tuple[float, float | None, float]:
        """The variances by the stretches beside stamps, as `StampEdges.variances`: unknown if the errors that lengths
        allow usually move the stamps of more than the next execution."""
        n, total, _ = self._lengths.sum(axis=1)
        usual_ns = total / max(n, 1.0) + self._edges.pause_ns
        if by_length is not None and _REACH * min(math.sqrt(by_length), HOST_NS) > usual_ns:
            return 0.0, None, math.inf
        return self._edges.variances()

    def _by_lengths(self) -> float | None:
        """The largest mean of the variances at starts and at ends by the lengths of executions, in ns². None without
        enough executions."""
        variances = self._varied
        enough = np.isfinite(variances)
        if not enough.any():
            return None
        variances, total = variances[enough] / 2, self._lengths[1, enough]
        order = np.argsort(variances)
        reached = np.cumsum(total[order]) / max(float(total.sum()), 1e-300)
        return float(variances[order][np.searchsorted(reached, _QUARTILE)])

    @property
    def _varied(self) -> Floats:
        """The variance of the lengths of executions by column, in ns²; infinite without enough executions."""
        n, total, squares = self._lengths
        count = np.maximum(n, 1.0)
        return np.where(n >= FEWEST, np.maximum(0.0, squares / count - (total / count) ** 2), np.inf)

    def errors(self, columns: int, windows: int, kernel: float) -> StampErrors:
        """The contribution of stamp errors to the shares of `windows` windows.

        `kernel`: the integral of the square of a window's weight over time, in 1/ns (1 / length for a mean).
        """
        if not self.elapsed_ns:
            return StampErrors(np.zeros((columns, columns)))
        both, beside = (_mutual(counts, columns) for counts in (self._follows, self._overlaps))
        by_length = self._by_lengths()
        low, likely, high = self._by_edges(by_length)
        variance = _largest(by_length, high)
        unmarked = sized(self.unmarked.squares, columns) * (windows * kernel)
        pausing = sized(self.unmarked.shares, columns)
        elsewhere = self.unmarked.elsewhere
        # Time that a stamp error adds to one region is taken from its neighbour.
        most = (np.diag(both.sum(axis=0)) - both) * (variance * windows * kernel / self.elapsed_ns)
        if by_length is None:
            return StampErrors(most, unmarked=unmarked, pausing=pausing, elsewhere=elsewhere)
        allowed, usual = (min((each[i] for each in self._allowed.values()), default=math.inf) for i in (1, 2))
        likely = 0.5 * variance if likely is None else likely
        fits = min(1.0, allowed / variance)
        # Windows bound the mean of the variances at starts and at ends. The larger one is at most twice it.
        scatter = self._edges.scatter(columns, 2 * usual, 2 * min(usual, by_length))
        varied = self._varied[:columns]
        scatter[: len(varied)] = np.minimum(scatter[: len(varied)], varied)
        scatter = np.maximum(float(BEST_NS) ** 2, scatter)
        # The device's own stamps have no lateness in common. Half of the difference lies at each of a region's edges.
        late_ns = self.lateness.possible_ns(np.minimum(_SHARED_NS, _SHARED * np.sqrt(scatter)))
        late_ns *= not self.exact
        # No stamp is taken before the one before it: where regions follow each other, one's lateness is the other's.
        late_ns[0] = 0.0
        edges_ns = np.maximum(late_ns[:, None], late_ns) / 2
        # Time outside regions lies between stamps of any of them.
        edges_ns[0] = edges_ns.max()
        shared, overlapping = (part * edges_ns / self.elapsed_ns for part in (both - beside, beside))
        least, likely = min(1.0, low / variance), min(1.0, likely / variance)
        return StampErrors(most, least, likely, fits, shared, overlapping, unmarked, pausing, elsewhere)

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        if max(column, into) < len(self._follows):
            for counts in (self._follows, self._overlaps):
                counts[into] += counts[column]
                counts[:, into] += counts[:, column]
                counts[column] = counts[:, column] = 0.0
            self.unmarked.merge(column, into)
            self._edges.merge(column, into)
            self._lengths[:, column] = 0.0


def _largest(by_length: float | None, by_edges: float) -> float:
    """The largest variance of a stamp's error by both bounds, in ns²; 0 without enough executions."""
    if by_length is None:
        return 0.0
    return max(float(BEST_NS) ** 2, min(float(HOST_NS) ** 2, by_length, by_edges))


def _pairs(before: Ints, after: Ints, count: int) -> Floats:
    """How often each of `count` columns was followed by each."""
    numbers: Floats = np.bincount(before * count + after, minlength=count * count).astype(np.float64)
    return numbers.reshape(count, count)


def _mutual(counts: Singles, columns: int) -> Floats:
    """How often two different ones of the first `columns` columns followed each other, in either order."""
    size = min(columns, len(counts))
    both = np.zeros((columns, columns))
    both[:size, :size] = counts[:size, :size] + counts[:size, :size].T
    np.fill_diagonal(both, 0.0)
    return both


def largest(sums: NormalEquations, errors: Floats) -> float:
    """The largest share of `errors`, `[columns, columns]`, that the equations of rates may contain: from 0 to 1."""
    gram, moment, square, *_ = sums
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
