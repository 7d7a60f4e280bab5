"""Time-weighted quantiles of a signal over any intervals, at a cost that does not depend on their length. Pure.

Values become codes in the order of their size, and each chunk of rows a binary tree over the codes' bits (a weighted
wavelet tree: Grossi, Gupta and Vitter, SODA 2003). A node knows, for every prefix of its rows, how many of them and how
much time go to its lower half, chunks before included; so a quantile walks down the tree once, with the sums up to
either end of the interval, and never looks at what lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int32]
Codes = npt.NDArray[np.unsignedinteger[Any]]

#: A signal with more levels than these is cut into so many equal bins: each is below 1 % of the range.
_BINS: Final = 128
#: Rows that are indexed together, as a power of two: 2^15 take about a millisecond, and 84 bytes each at 7 bits a code.
_CHUNK_BITS: Final = 15
#: Intervals that are answered together: their arrays stay in the cache too.
_BLOCK: Final = 8192
#: A signal whose range is at most this, or at most its rows, is encoded by a table of the range: nothing is sorted.
_TABLE: Final = 1 << 16
#: Steps within a day of the calendar beyond which a search is faster.
_MOST_STEPS: Final = 4
#: A quantile is taken as the closest fraction with at most this denominator, so that 0.1 means a tenth: its products
#: with a remainder then fit in 64 bits.
_DENOMINATOR: Final = 10**9


class OrderIndex:
    """The order of a signal's values within rows `(start, end]`: sorted, disjoint, gaps allowed, times in ns.

    `values` are whole quanta. Quantiles are exact where the values have at most `most_levels` levels, or the rows are
    at most `hot_rows`; otherwise `exact` is False and an answer is off by at most `error` quanta, which is below 1 % of
    the range of `values`. The arrays must not change afterwards. An index over a chunk of rows is only built once an
    interval starts or ends in it. ValueError where the rows are not as said.
    """

    def __init__(
        self, starts: Ints, ends: Ints, values: Ints, *, most_levels: int = 128, hot_rows: int = 65_536
    ) -> None:
        _check_rows(starts, ends, values)
        self._starts, self._ends = starts, ends
        self._size = len(ends)
        self.exact = True
        self.error = 0
        if not self._size:
            return
        self._codes, self._levels, self.error = _encode(values, most_levels, hot_rows)
        self.exact = not self.error
        # When the row after so many starts; after all, none does.
        self._next = np.append(starts, ends[-1])
        self._covered = np.concatenate(([0], np.cumsum(ends - starts)))
        self._depth = (len(self._levels) - 1).bit_length()
        self._calendar = _Calendar(int(starts[0]), ends)
        self._plant()

    def _plant(self) -> None:
        """Lay out the trees of all chunks: which slots the nodes have, and what chunks before weigh."""
        width, depth = 1 << self._depth, self._depth
        self._chunks = chunks = ((self._size - 1) >> _CHUNK_BITS) + 1
        keys = np.arange(self._size) >> _CHUNK_BITS << depth
        keys |= self._codes
        counts = np.bincount(keys, minlength=chunks * width).reshape(chunks, width)
        weights = _sums(keys, self._ends - self._starts, chunks * width).reshape(chunks, width)
        before = np.zeros((chunks, width), np.int64)
        np.cumsum(weights[:-1], axis=0, out=before[1:])
        # A node of n rows has n + 1 slots, one for each prefix.
        stride = (depth << _CHUNK_BITS) + width - 1
        self._first: list[Ints] = []
        self._before: list[Ints] = []
        for level in range(depth):
            nodes = 1 << level
            rows = counts.reshape(chunks, nodes, -1).sum(axis=2) + 1
            first = np.cumsum(rows, axis=1) - rows
            first += (np.arange(chunks) * stride + (level << _CHUNK_BITS) + nodes - 1)[:, None]
            self._first.append(first.ravel())
            lower = before.reshape(chunks, nodes, 2, -1)[:, :, 0].sum(axis=2)
            self._before.append(lower.ravel())
        # The kernel gives these pages only once they are written to: chunks that nobody asks for cost no memory.
        self._count = np.empty(chunks * stride, np.int32)
        self._weight = np.empty(chunks * stride, np.int64)
        self._built = np.zeros(chunks, np.bool_)

    def _build(self, chunk: int) -> None:
        rows = slice(chunk << _CHUNK_BITS, min(self._size, (chunk + 1) << _CHUNK_BITS))
        times = self._ends[rows] - self._starts[rows]
        for level in range(self._depth):
            bit, nodes = self._depth - 1 - level, 1 << level
            # Each node is led by a row of no time that turns upwards: the slot of its empty prefix.
            leads = (2 * np.arange(nodes) + 1 << bit).astype(self._codes.dtype)
            codes = np.concatenate((leads, self._codes[rows]))
            lower = codes >> bit & 1 == 0
            lengths = np.zeros(len(codes), np.int64)
            np.multiply(times, lower[nodes:], out=lengths[nodes:])
            order = np.argsort(codes >> (bit + 1), kind="stable") if level else slice(None)
            first = self._first[level][chunk << level : (chunk + 1) << level]
            before = self._before[level][chunk << level : (chunk + 1) << level]
            slots = slice(first[0], first[0] + len(codes))
            count, weight = self._count[slots], self._weight[slots]
            np.cumsum(lower[order], out=count)
            np.cumsum(lengths[order], out=weight)
            starts = first - first[0]
            sizes = np.diff(starts, append=len(codes))
            count -= np.repeat(count[starts], sizes)
            weight += np.repeat(before - weight[starts], sizes)
        self._built[chunk] = True

    def quantiles(self, a: npt.ArrayLike, b: npt.ArrayLike, q: float | Sequence[float]) -> tuple[Ints, Bools]:
        """The time-weighted `q` quantile (0-1) over each `(a, b]` in ns: values in quanta, and which are known.

        It is the smallest value that the signal stayed at or below for at least `q` of the covered time; `q` is taken
        as the closest fraction with a denominator up to 10^9. With a sequence of `q`, values have a column for each.
        An interval that no row covers is not known; its value is 0 and means nothing. ValueError for an interval that
        ends before it starts, for moments that are not whole ns, and for a `q` outside 0-1.
        """
        several = isinstance(q, Sequence | np.ndarray)
        shares = [_share(each) for each in np.atleast_1d(q).tolist()]
        a_ns, b_ns = _moments(a), _moments(b)
        _check_intervals(a_ns, b_ns)
        values = np.zeros((len(a_ns), len(shares)), np.int64)
        known = np.zeros(len(a_ns), np.bool_)
        if self._size:
            for i in range(0, len(a_ns), _BLOCK):
                block = slice(i, i + _BLOCK)
                self._answer(np.stack((a_ns[block], b_ns[block])), shares, values[block], known[block])
        return (values if several else values[:, 0]), known

    def _answer(self, moments: Ints, shares: Sequence[Fraction], values: Ints, known: Bools) -> None:
        """Fill in the quantiles of a block of intervals; `moments` has a row of starts and one of ends."""
        np.clip(moments, self._starts[0], self._ends[-1], out=moments)
        rows = self._calendar.ended(moments)
        within = np.minimum(rows, self._size - 1)
        part = np.maximum(moments - self._next[rows], 0)
        reached = self._covered[rows] + part
        covered = reached[1] - reached[0]
        np.greater(covered, 0, out=known)
        if not known.all():
            rows, within, part, covered = rows[:, known], within[:, known], part[:, known], covered[known]
        chunks = within >> _CHUNK_BITS
        for chunk in np.unique(chunks[~self._built[chunks]]):
            self._build(chunk)
        prefix = (rows - (chunks << _CHUNK_BITS)).astype(np.int32)
        mine = chunks << self._depth
        mine |= self._codes[within]
        for column, share in enumerate(shares):
            codes = self._walk(chunks, prefix.copy(), mine, part, _rank(covered, share))
            values[known, column] = self._levels[codes]

    def _walk(self, key: Ints, prefix: Counts, mine: Ints, part: Ints, rank: Ints) -> Ints:
        """The code below or at which `rank` ns lie; a row for either end of the intervals in all else.

        `key` names a node: its chunk, then a bit for each turn. `prefix` counts the rows of the node before the end of
        the interval, and `part` is the time of the row that the end cuts, whose own leaf is `mine`.
        """
        for level in range(self._depth):
            slot = self._first[level].take(key)
            slot += prefix
            count, weight = self._count.take(slot), self._weight.take(slot)
            key = key << 1
            # Products, not masks: which way a row goes is a coin toss, and CPUs guess those badly.
            weight += part * ((mine >> (self._depth - 1 - level)) == key)
            low = weight[1] - weight[0]
            upper = rank > low
            rank = rank - low * upper
            prefix -= count
            prefix -= count
            prefix *= upper
            prefix += count
            key += upper
        codes: Ints = key[0] & ((1 << self._depth) - 1)
        return codes


class _Calendar:
    """How many rows have ended by a moment: a table of days of equal length, and a step for each row of a day.

    Samples come at a steady pace, so that a day has one or two rows, and a step costs far less than a search. Where one
    has more, because of bursts or long gaps, rows are searched for.
    """

    def __init__(self, origin: int, ends: Ints) -> None:
        self._origin, self._ends = origin, ends
        self._bits = ((int(ends[-1]) - origin) // (2 * len(ends))).bit_length()
        counts = np.bincount((ends - origin) >> self._bits)
        self._steps = int(counts.max())
        self._before = (np.cumsum(counts) - counts).astype(np.int32)

    def ended(self, moments: Ints) -> Ints:
        """The number of rows that end at or before each moment, all between the first start and the last end."""
        if self._steps > _MOST_STEPS:
            return np.searchsorted(self._ends, moments, side="right")
        rows = self._before.take((moments - self._origin) >> self._bits).astype(np.int64)
        for _ in range(self._steps):
            rows += self._ends.take(rows, mode="clip") <= moments
        return np.minimum(rows, len(self._ends))


def _check_rows(starts: Ints, ends: Ints, values: Ints) -> None:
    if not len(starts) == len(ends) == len(values):
        raise ValueError(f"rows need a start, an end and a value each: {len(starts)}, {len(ends)}, {len(values)}")
    backward = np.flatnonzero(ends < starts)
    if len(backward):
        i = backward[0]
        raise ValueError(f"row {i} ends before it starts: {starts[i]} > {ends[i]}")
    overlapping = np.flatnonzero(starts[1:] < ends[:-1])
    if len(overlapping):
        i = overlapping[0]
        raise ValueError(f"row {i + 1} starts before row {i} ends: {starts[i + 1]} < {ends[i]}")


def _encode(values: Ints, most_levels: int, hot_rows: int) -> tuple[Codes, Ints, int]:
    """Codes in the order of the values, the value that each stands for, and how far that is off at most."""
    least, most = int(values.min()), int(values.max())
    # As a difference of int64 may need all of 64 bits, it is taken without a sign.
    above = (values - least).view(np.uint64)
    tabled = most - least <= max(len(values), _TABLE)
    if tabled:
        seen = np.zeros(most - least + 1, np.bool_)
        seen[above] = True
        levels = np.flatnonzero(seen) + least
    else:
        levels, places = np.unique(values, return_inverse=True)
    if len(levels) <= most_levels or len(values) <= hot_rows:
        codes, middles, error = np.arange(len(levels)), levels, 0
    else:
        width = np.uint64((most - least) // _BINS + 1)
        bins = (levels - least).view(np.uint64) // width
        # Bins that are empty have no code.
        first = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))
        codes = np.repeat(np.arange(len(first)), np.diff(first, append=len(levels)))
        lowest, highest = levels[first], levels[np.append(first[1:], len(levels)) - 1]
        middles = lowest + ((highest - lowest) >> 1)
        error = int((highest - middles).max())
    small: Codes = codes.astype(np.min_scalar_type(len(middles) - 1))
    if not tabled:
        return small[places], middles, error
    table = np.zeros(len(seen), small.dtype)
    table[seen] = small
    return table[above], middles, error


def _sums(keys: Ints, weights: Ints, size: int) -> Ints:
    """The weights of each key. In two halves, as bincount adds floats, and sums over a chunk of 2^15 are then exact."""
    low, high = np.bincount(keys, weights & 0xFFFF_FFFF, size), np.bincount(keys, weights >> 32, size)
    return low.astype(np.int64) + (high.astype(np.int64) << 32)


def _share(q: float) -> Fraction:
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies in 0-1, not {q}")
    return Fraction(q).limit_denominator(_DENOMINATOR)


def _rank(covered: Ints, share: Fraction) -> Ints:
    """How much time has to lie at or below the quantile: `covered * share` rounded up, at least 1."""
    p, q = share.numerator, share.denominator
    whole = covered // q
    return np.maximum(whole * p + ((covered - whole * q) * p + q - 1) // q, 1)


def _moments(t: npt.ArrayLike) -> Ints:
    moments = np.asarray(t)
    # An empty list has no type of its own.
    if moments.ndim != 1 or (moments.size and moments.dtype.kind not in "iu"):
        raise ValueError(f"moments are a list of whole nanoseconds, not {moments.ndim}-d {moments.dtype}")
    whole: Ints = np.asarray(moments, np.int64)
    return whole


def _check_intervals(a: Ints, b: Ints) -> None:
    if len(a) != len(b):
        raise ValueError(f"intervals need as many starts as ends: {len(a)}, {len(b)}")
    backward = np.flatnonzero(b < a)
    if len(backward):
        i = backward[0]
        raise ValueError(f"interval {i} ends before it starts: {a[i]} > {b[i]}")
