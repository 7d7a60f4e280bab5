"""Rows of one signal as plain arrays with prefix sums, and the queries over them. Pure.

A row is an interval `(start, end]` with a value in whole quanta. Rows are in order and never overlap. Sums are int64
and wrap on purpose: a difference of two sums is exact if the difference itself fits in int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

#: Rows in a tile, which has its own running maxima: a power of two.
_TILE: Final = 64
#: Intervals that are looked up at a time, so that the intermediate results stay in the processor's cache.
BATCH: Final = 1 << 14
#: With fewer moments than `_FEW`, or after `_STEPS` steps, a plain binary search is as fast.
_FEW: Final = 4096
_STEPS: Final = 4


def wrap(value: int) -> int:
    """`value` modulo 2^64 as a signed 64-bit number, like the result of int64 arithmetic."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


class Cumulative(NamedTuple):
    """Sums over a column's history up to a moment, both wrapped to int64. Mass is in quanta·ns (a counter: quanta)."""

    mass: int
    covered_ns: int


class Rows(NamedTuple):
    """The rows that overlap an interval: values in quanta (a counter: growth), overlaps and whole lengths in ns."""

    values: Ints
    weights: Ints
    lengths: Ints


class Extent(NamedTuple):
    """Sums, peak and edges of one interval.

    `n` counts the rows that overlap it and are longer than 0 ns. `peak` is their highest value in quanta (a counter:
    quanta per ns), None if `n` is 0. `edge_ns` is the length of the longest row that crosses an edge of the interval.
    """

    mass: int
    covered_ns: int
    peak: float | None
    n: int
    edge_ns: int

    def with_part(self, other: Extent) -> Extent:
        """The extent of this interval and an adjacent one together."""
        mass, covered, peak, n, edge = self
        if peak is None or (other.peak is not None and other.peak > peak):
            peak = other.peak
        return Extent(mass + other.mass, covered + other.covered_ns, peak, n + other.n, max(edge, other.edge_ns))


class RowTable(NamedTuple):
    """Rows, and the wrapped sums up to the end of each. `before` is the mass before the first row.

    `values` of a counter are its readings. The growth of a row is the difference of two masses.
    """

    starts: Ints
    ends: Ints
    values: Ints
    masses: Ints
    covered: Ints
    before: int
    counter: bool

    # ------------------------------------------------------------------ one moment or interval

    def cumulative(self, t_ns: int) -> Cumulative:
        """Sums up to `t_ns`. A moment outside the rows takes the sums at the nearest edge."""
        i = int(self.ends.searchsorted(t_ns))
        if i == len(self.ends):
            return Cumulative(self.masses.item(i - 1), self.covered.item(i - 1))
        start, end, mass = self.starts.item(i), self.ends.item(i), self.masses.item(i)
        row_mass = wrap(mass - (self.masses.item(i - 1) if i else self.before))
        inside = t_ns - start if t_ns > start else 0
        if self.counter:
            part = row_mass * inside // (end - start) if end > start else 0
        else:
            part = self.values.item(i) * inside
        return Cumulative(wrap(mass - row_mass + part), wrap(self.covered.item(i) - (end - start) + inside))

    def overlapping(self, a_ns: int, b_ns: int) -> slice:
        """The rows that overlap `(a, b]`."""
        lo = int(self.ends.searchsorted(a_ns, "right"))
        return slice(lo, max(lo, int(self.starts.searchsorted(b_ns, "left"))))

    def between(self, lo: int, hi: int) -> RowTable:
        """The rows with indices from `lo` to `hi - 1`."""
        starts, ends, values, masses, covered, before, counter = self
        before = int(masses[lo - 1]) if lo else before
        return RowTable(starts[lo:hi], ends[lo:hi], values[lo:hi], masses[lo:hi], covered[lo:hi], before, counter)

    def growths(self, rows: slice) -> Ints:
        """The masses of single rows."""
        masses = self.masses[rows]
        result: Ints = np.empty_like(masses)
        if len(masses):
            np.subtract(masses[1:], masses[:-1], out=result[1:])
            result[0] = wrap(int(masses[0]) - (int(self.masses[rows.start - 1]) if rows.start else self.before))
        return result

    def rows(self, a_ns: int, b_ns: int) -> Rows:
        """The rows that overlap `(a, b]`, oldest first."""
        part = self.overlapping(a_ns, b_ns)
        starts, ends = self.starts[part], self.ends[part]
        overlap = np.minimum(ends, b_ns) - np.maximum(starts, a_ns)
        values = self.growths(part) if self.counter else self.values[part].copy()
        return Rows(values, overlap, ends - starts)

    def peaks(self, part: slice) -> npt.NDArray[Any]:
        """The candidates for `Extent.peak`, one per row. A row of length 0 has no meaningful one."""
        return self._peaks(part)[0]

    def _peaks(self, part: slice) -> tuple[npt.NDArray[Any], Ints]:
        lengths = self.ends[part] - self.starts[part]
        if self.counter:
            return np.divide(self.growths(part), np.maximum(lengths, 1)), lengths
        return self.values[part], lengths

    def peak(self, part: slice) -> tuple[float | None, int]:
        """The highest value of the rows longer than 0 ns, and their number."""
        candidates, lengths = self._peaks(part)
        n = int(np.count_nonzero(lengths))
        if not n:
            return None, 0
        candidates = candidates if n == len(candidates) else candidates[lengths > 0]
        return candidates.item(candidates.argmax()), n

    def extent(self, a_ns: int, b_ns: int, mass: int = 0, covered_ns: int = 0) -> Extent:
        """The extent of `(a, b]`. The caller passes the sums."""
        rows = self.overlapping(a_ns, b_ns)
        peak, n = self.peak(rows)
        return Extent(mass, covered_ns, peak, n, self.reach(a_ns, b_ns, rows))

    def reach(self, a_ns: int, b_ns: int, part: slice) -> int:
        """The length of the longest row of `part` that crosses `a` or `b`; 0 without one.

        `part` are the rows that overlap `(a, b]`.
        """
        widest = 0
        if part.stop > part.start:
            for i in (part.start, part.stop - 1):
                start, end = self.starts.item(i), self.ends.item(i)
                if start < a_ns or end > b_ns:
                    widest = max(widest, end - start)
        return widest


def joined(tables: Sequence[RowTable]) -> RowTable:
    """Consecutive tables as one table."""
    if len(tables) == 1:
        return tables[0]
    starts, ends, values, masses, covered = (np.concatenate([table[i] for table in tables]) for i in range(5))
    return RowTable(starts, ends, values, masses, covered, tables[0].before, tables[0].counter)


class _Places(NamedTuple):
    """The row that contains each moment of a batch, and the ns of it before (`inside`) and after the moment.

    `covered` is the covered ns before each moment, from an arbitrary origin: only differences are meaningful. The last
    three fields are used for counters alone: the previous row, the row's length, and the maximum of `inside`.
    """

    rows: npt.NDArray[np.intp]
    inside: Ints
    after: Ints
    covered: Ints
    previous: npt.NDArray[np.intp]
    lengths: Ints
    longest: int


def _find(ends: Ints, moments: Ints) -> npt.NDArray[np.intp]:
    """`ends.searchsorted(moments)`, for moments that lie at or before the last end.

    For many moments, a table with about one cell per row gives the first row to compare. If the rows are so uneven
    that `_STEPS` steps do not end the search, the plain binary search is used.
    """
    if len(moments) < _FEW or len(ends) > 2 * len(moments):
        return ends.searchsorted(moments)
    origin = int(ends[0])
    shift = max(0, ((int(ends[-1]) - origin) // len(ends)).bit_length() - 1)
    cells = ends - origin
    cells >>= shift
    first = np.zeros(int(cells[-1]) + 2, np.intp)
    np.cumsum(np.bincount(cells), out=first[1:])
    cells = moments - origin
    cells >>= shift
    # The table has no cell for a moment before the first end.
    np.maximum(cells, 0, out=cells)
    rows = first.take(cells)
    for _ in range(_STEPS):
        late = ends.take(rows) < moments
        if not np.count_nonzero(late):
            return rows
        rows += late
    return ends.searchsorted(moments)


def _places(table: RowTable, within: slice, moments: Ints) -> _Places:
    """The places of moments among the rows of `within`, which span all of the moments."""
    ends, sums = table.ends[within], table.covered[within]
    rows = _find(ends, moments)
    rows += within.start
    # Without gaps, neither between rows nor inside a row that replaces a block, rows cover all of their time.
    steady = sums.item(-1) - sums.item(0) == ends.item(-1) - ends.item(0)
    # The part after the moment is subtracted from the sum at the row's end: fewer look-ups than from its start.
    after = table.ends.take(rows)
    if steady and not table.counter:
        after -= moments
        return _Places(rows, after, after, moments, rows, after, 0)
    lengths = after - table.starts.take(rows)
    after -= moments
    covered = moments
    if not steady:
        np.minimum(after, lengths, out=after)
        covered = table.covered.take(rows)
        covered -= after
    inside = lengths - after
    # Avoids a division by 0: `inside` of a row of length 0 is 0.
    np.maximum(lengths, 1, out=lengths)
    return _Places(rows, inside, after, covered, rows - 1, lengths, int(inside.max()))


def _masses(table: RowTable, places: _Places, *, first: bool) -> Ints:
    """Wrapped masses up to moments. `first`: a moment may lie in the table's first row."""
    masses = table.masses.take(places.rows)
    if not table.counter:
        part = table.values.take(places.rows)
        part *= places.after
        masses -= part
        return masses
    # The first row has no row before it: `wrap` takes the last one, which the next lines replace.
    base = table.masses.take(places.previous, mode="wrap")
    if first:
        base[places.rows == 0] = table.before
    masses -= base
    base += _share(masses, places)
    return base


def _share(growth: Ints, places: _Places) -> Ints:
    """The growth of rows up to moments inside them, exactly rounded down. `growth` is at least 0."""
    part, whole, most = places.inside, places.lengths, int(growth.max()) * places.longest
    if most < 1 << 53:
        # Quotients of integers below 2^53 differ by at least 1/whole, which is more than the rounding error.
        quotient: Floats = np.divide(growth * part, whole)
        return quotient.astype(np.int64)
    if most < 1 << 62:
        return growth * part // whole
    result = np.zeros_like(growth)
    for k in np.nonzero(part)[0].tolist():
        result[k] = int(growth[k]) * int(part[k]) // int(whole[k])
    return result


def integrals(table: RowTable, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Masses, wrapped to int64, and covered ns of every interval. It is fastest if the intervals are sorted by end."""
    size, many = len(starts), len(table.ends)
    if size > BATCH:
        cuts = (slice(lo, lo + BATCH) for lo in range(0, size, BATCH))
        masses, covered = zip(*(integrals(table, starts[cut], ends[cut]) for cut in cuts), strict=True)
        return np.concatenate(masses), np.concatenate(covered)
    if not size or not many:
        return np.zeros(size, np.int64), np.zeros(size, np.int64)
    earliest, latest = int(starts.min()), int(ends.max())
    lo = min(int(table.ends.searchsorted(earliest)), many - 1)
    within = slice(lo, min(many, int(table.ends.searchsorted(latest)) + 1))
    first, last = table.starts.item(lo), table.ends.item(within.stop - 1)
    moments = np.concatenate((starts, ends))
    if earliest < first or latest > last:
        np.clip(moments, first, last, out=moments)
    places = _places(table, within, moments)
    sums = _masses(table, places, first=not lo)
    return sums[size:] - sums[:size], places.covered[size:] - places.covered[:size]


def highest(values: npt.NDArray[Any], lo: npt.NDArray[np.intp], hi: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """The maxima of the ranges `values[lo:hi]`, none of them empty. The time does not depend on their lengths.

    The ends of a range use running maxima of their tiles, from either side. Whole tiles use a sparse table (Bender and
    Farach-Colton, "The LCA problem revisited", LATIN 2000). A range inside one tile compares its few rows.
    """
    n = len(values)
    tiles = -(-n // _TILE)
    padded = np.full(tiles * _TILE, values.min(), values.dtype)
    padded[:n] = values
    grid = padded.reshape(tiles, _TILE)
    from_left = np.maximum.accumulate(grid, axis=1).ravel()
    from_right = np.maximum.accumulate(grid[:, ::-1], axis=1)[:, ::-1].ravel()
    first, last = lo // _TILE, (hi - 1) // _TILE
    result = np.maximum(from_right[lo], from_left[hi - 1])
    levels = [grid.max(axis=1)]
    while 2 << (len(levels) - 1) <= tiles:
        half, below = 1 << (len(levels) - 1), levels[-1]
        levels.append(np.maximum(below[:-half], below[half:]))
    between = last - first - 1
    # frexp gives the integer part of the binary logarithm of integers exactly.
    depth = np.frexp(np.maximum(between, 1).astype(np.float64))[1] - 1
    for level, table in enumerate(levels):
        here = np.nonzero((depth == level) & (between > 0))[0]
        if len(here):
            a, b = first[here] + 1, last[here] - (1 << level)
            result[here] = np.maximum(result[here], np.maximum(table[a], table[b]))
    inside = np.nonzero(first == last)[0]
    if len(inside):
        pairs = np.empty(2 * len(inside), np.intp)
        pairs[::2], pairs[1::2] = lo[inside], hi[inside]
        result[inside] = np.maximum.reduceat(np.append(padded, padded[-1]), pairs)[::2]
    return result


def maxima(rows: tuple[Ints, Ints, npt.NDArray[Any]], starts: Ints, ends: Ints) -> tuple[npt.NDArray[Any], Bools]:
    """The highest peak of the rows `(starts, ends, peaks)` in every interval, and False where there is no row.

    Only rows longer than 0 ns count, as in `Extent.peak`.
    """
    lasting = rows[1] > rows[0]
    first, last, peaks = (part[lasting] for part in rows)
    if not len(peaks):
        return np.zeros(len(starts), peaks.dtype), np.zeros(len(starts), np.bool_)
    lo, hi = last.searchsorted(starts, "right"), first.searchsorted(ends, "left")
    covered = hi > lo
    # `highest` takes no empty range: one row is taken instead, and its result is not used.
    lo = np.minimum(lo, len(peaks) - 1)
    return highest(peaks, lo, np.maximum(hi, lo + 1)), covered
