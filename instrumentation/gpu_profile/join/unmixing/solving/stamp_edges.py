"""The errors of stamps by the stretches beside them. Pure.

A late stamp makes the stretch before it longer and the one after it shorter: if the two have nothing else in common,
their covariance is minus the variance of the error. The largest errors move the next stamp too. So bounds on the
variance follow from the stretch up to the far end of the next execution. The usual error follows from the pause beside
the stamp, because its length varies less.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Singles
from gpu_profile.join.unmixing.solving.equations import sized
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.piece_sums import Columns

#: Larger variation is not due to stamps: hosts take them late by 0.2-1 ms, and a few per cent by ten times as much.
#: No stamp is better than the second number: clocks are read, and marks recorded, within some microseconds.
HOST_NS: Final = 2_000_000
BEST_NS: Final = 10_000
#: Executions that a variance needs.
FEWEST: Final = 20
#: Pauses above this length are no evidence on the stamp before them. A bound is this many standard errors away.
_LONGEST_NS: Final = 20_000_000
_SURE: Final = 2.0
#: A shorter pause may be the host's own time between a late stamp and the next one. It shows no error.
_APART_NS: Final = 100_000
#: Less variation of a region's lengths than this standard deviation does not make it better evidence on stamps.
_USUAL_NS: Final = 1_000_000


class StampEdges:
    """Sums over pairs of executions of a region, of the differences of the stretches before and after their stamps."""

    def __init__(self) -> None:
        #: For the last and the first stamps of executions, `[sums, 2]`: the number of pairs, and the sums of their
        #: weights, of the products, and of the squares of these. A product is that of the differences before and after
        #: the stamp, times the weight. The stretch beside a stamp extends to the far end of the next execution.
        self._edges: Floats = np.zeros((4, 2))
        #: The same by column, `[sums, 2, columns]`, with the pause beside the stamp, of pairs in which it is at least
        #: `_APART_NS`. Differences are clipped to `HOST_NS`, and pairs with a clipped one have no weight.
        self._near: Singles = np.zeros((4, 2, 1), np.float32)
        #: Pauses between consecutive executions: their number, and the sums of their lengths and of the squares.
        self._pauses: Floats = np.zeros(3)

    def take(self, pieces: Pieces, columns: Columns, between: tuple[int, int], by_column: Floats) -> None:
        """Add the pieces of a slice of time `between` two moments, with the column of each. `by_column`: the number of
        executions, and the sums of their lengths and of the squares."""
        start_ns, end_ns = between
        lengths = (pieces.ends - pieces.starts).astype(np.float64)
        whole = (pieces.starts > start_ns) & (pieces.ends < end_ns)
        # After each last stamp, the next first one of any execution, and before each first stamp the latest last one.
        size, by_end = len(lengths), pieces.ends.argsort(kind="stable")
        after = pieces.starts.searchsorted(pieces.ends)
        before = pieces.ends[by_end].searchsorted(pieces.starts, side="right")
        there = np.concatenate((after < size, before > 0))
        after, before = np.minimum(after, size - 1), by_end[before - 1]
        pause = np.concatenate((pieces.starts[after] - pieces.ends, pieces.starts - pieces.ends[before]))
        stamped, other = np.tile(np.arange(size), 2), np.concatenate((after, before))
        usable = there & whole[stamped] & whole[other] & (pause < _LONGEST_NS)
        ends = int(usable[:size].sum())
        if min(ends, int(usable[size:].sum())) <= 2:
            return
        stamped, other, pause = stamped[usable], other[usable], pause[usable].astype(np.float64)
        short = pause[:ends]
        self._pauses += ends, short.sum(), (short**2).sum()
        n, total, squares = by_column
        means = total / np.maximum(n, 1.0)
        # Regions of little variation show a stamp's error best. Less than the error itself is no merit.
        varied = np.maximum(0.0, squares / np.maximum(n, 1.0) - means**2) + _USUAL_NS**2
        varied[n < FEWEST] = np.inf
        own = columns[stamped].astype(np.int64)
        own[ends:] += len(n)
        order = own.argsort(kind="stable")
        own, stamped, other, pause = own[order], stamped[order], other[order], pause[order]
        # Up to the far end of the next one: a stamp that is very late also moves the near end. The neighbouring region
        # affects that length more than any stamp, so its mean is subtracted.
        stretches = np.array((lengths[stamped], pause + (lengths - means[columns])[other], pause))
        # Of all slices: a weight must not depend on the errors in its own slice.
        count, whole_ns, square = self._pauses
        spread = (varied[columns] + square / count - (whole_ns / count) ** 2)[other]
        # Slow changes, such as clocks, cancel in differences of executions soon after each other. Consecutive ones
        # would be each other's neighbours; an execution and the next but one have no stretch in common.
        # Stretches between the executions inside another one are no executions: their lengths follow from their place.
        whole = np.bincount(pieces.owners)[pieces.owners[stamped]] == 1
        pair = (own[2:] == own[:-2]) & whole[2:] & whole[:-2]
        own_varied, differences = varied[own[2:] % len(n)], stretches[:, 2:] - stretches[:, :-2]
        weights = pair / (own_varied * (spread[2:] + spread[:-2]))
        products = differences[0] * differences[1] * weights
        sums = np.array((weights > 0, weights, products, products**2))
        self._edges += np.add.reduceat(sums, (0, ends - 2), axis=1)
        near = (pair & (np.minimum(pause[2:], pause[:-2]) >= _APART_NS)) / own_varied
        differences = differences[::2]
        clipped = np.minimum(np.maximum(differences, -HOST_NS), HOST_NS)
        products, smaller = clipped[0] * clipped[1] * near, clipped == differences
        sums = np.array((near > 0, near * (smaller[0] & smaller[1]), products, products**2))
        there = (own[2:] != np.concatenate(([-1], own[2:-1]))).nonzero()[0]
        if more := len(n) - self._near.shape[2]:
            self._near = np.pad(self._near, ((0, 0), (0, 0), (0, more)))
        self._near.reshape(4, -1)[:, own[2:][there]] += np.add.reduceat(sums, there, axis=1)

    @property
    def pause_ns(self) -> float:
        """The mean pause between consecutive executions."""
        return float(self._pauses[1] / max(1.0, self._pauses[0]))

    def variances(self) -> tuple[float, float | None, float]:
        """The least, the most likely and the largest variance of stamp errors by the covariance beside stamps, in ns².
        The likely one is None without enough executions."""
        n, weights, products, squares = self._edges
        if n.min() < FEWEST:
            return 0.0, None, math.inf
        # Differences have twice the variance. Each execution is in two of them, so half of the pairs count.
        variances, doubt = -products / (2 * weights), squares / (2 * weights**2)
        low, high = (np.maximum(0.0, variances + side * _SURE * np.sqrt(doubt)) for side in (-1, 1))
        mean = max(0.0, float(variances.mean()))
        # An estimate below its own uncertainty becomes 0 (the positive part of James and Stein's estimator).
        likely = max(0.0, mean - float(doubt.sum()) / 4 / mean) if mean else 0.0
        return float(low.min()), likely, float(high.max())

    def scatter(self, columns: int, most: float, otherwise: float) -> Floats:
        """The variance of the usual error of stamps by column, in ns², at the edge where it is larger. `most`: the
        largest that windows allow. `otherwise`: the variance without enough executions.

        Few very late stamps make most of the variance and little of the mean lateness, so differences are clipped. An
        error has an effect only where they are not (Price, IRE Transactions on Information Theory 4 (1958), 69). A
        region's stamps may scatter more than others'. A priori the variances of regions are exponential, so their mean
        is their standard deviation too. Credibility theory weighs it against the region's own (Bühlmann, ASTIN
        Bulletin 4 (1967), 199). The scatter is a standard deviation above the result.
        """
        if (every := self._edges[0]).min() < FEWEST:
            return np.full(columns, otherwise)
        near = self._near.astype(np.float64)
        (_, weights, products, squares), total = near, near.sum(axis=2)
        if (2 * total[0] < every).any() or not total[1].all():
            # Most stamps are taken soon after the one before them.
            total, weights = self._edges, np.zeros_like(weights)
        means, deviations = -total[2] / (2 * total[1]), np.sqrt(total[3] / 2) / total[1]
        expected = np.array([[_positive(*each)] for each in zip(means.tolist(), deviations.tolist(), strict=True)])
        expected = np.maximum(expected, float(BEST_NS) ** 2)
        # Without a pair of executions, a region's own one counts for nothing.
        there = np.where(weights > 0, weights, 1.0)
        own, doubt = -products / (2 * there), np.where(weights > 0, squares, np.inf) / (2 * there**2)
        credibility = expected**2 / (expected**2 + doubt)
        above = np.maximum(0.0, expected + credibility * (own - expected)) + expected * np.sqrt(1 - credibility)
        by_column = sized(above.max(axis=0), columns)
        by_column[above.shape[1] :] = 2 * expected.max()
        return np.minimum(by_column, most)

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        if max(column, into) < self._near.shape[2]:
            self._near[..., into] += self._near[..., column]
            self._near[..., column] = 0.0


def _positive(mean: float, deviation: float) -> float:
    """The mean of a normal distribution without its negative part."""
    if deviation <= 0:
        return max(0.0, mean)
    z = max(-5.0, mean / deviation)
    density = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return deviation * (z + 2 * density / math.erfc(-z / math.sqrt(2)))
