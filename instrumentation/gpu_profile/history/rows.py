"""Rows of one signal as plain arrays with prefix sums, and what can be asked of them. Pure.

A row is `(start, end]` with a value in whole quanta; rows are in order and never overlap. Sums are int64 that wrap on
purpose: a difference of two of them is exact as long as it fits itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Tiles of this many rows carry their own running maxima: a power of two.
_TILE: Final = 64
#: Intervals that are looked up at a time: their intermediate results stay in the processor's cache.
BATCH: Final = 1 << 14
#: Below so many moments, and beyond so many steps, a plain binary search is as fast.
_FEW: Final = 4096
_STEPS: Final = 4


def wrap(value: int) -> int:
    """`value` modulo 2^64 as a signed 64-bit number, as int64 arithmetic leaves it."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


class Cumulative(NamedTuple):
    """Sums over a column's history up to a moment, both wrapped to int64: mass in quanta·ns (quanta for a counter)."""

    mass: int
    covered_ns: int


class Rows(NamedTuple):
    """The rows that overlap an interval: values in quanta (a counter's growth), overlaps and whole lengths in ns."""

    values: Ints
    weights: Ints
    lengths: Ints


class Extent(NamedTuple):
    """What one interval holds.

    `peak` is the highest value of rows that have a length, in quanta (a counter's: quanta per ns), None without any;
    `n` counts those rows. `edge_ns` is the length of the longer of the rows that reach over the interval's edges.
    """

    mass: int
    covered_ns: int
    peak: float | None
    n: int
    edge_ns: int

    def with_part(self, other: Extent) -> Extent:
        """What this and another interval, which lie beside each other, hold together."""
        mass, covered, peak, n, edge = self
        if peak is None or (other.peak is not None and other.peak > peak):
            peak = other.peak
        return Extent(mass + other.mass, covered + other.covered_ns, peak, n + other.n, max(edge, other.edge_ns))


class RowTable(NamedTuple):
    """Rows, and the wrapped sums up to the end of each; `before` is the mass that came before the first.

    `values` of a counter are its readings: what a row grew by is the difference of two masses.
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
        """Sums up to `t_ns`; moments outside the rows take the nearest edge's."""
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
        """The rows from the one at `lo` up to, not including, the one at `hi`."""
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
        """What single rows count for in `Extent.peak`; of rows without a length it means nothing."""
        return self._peaks(part)[0]

    def _peaks(self, part: slice) -> tuple[npt.NDArray[Any], Ints]:
        lengths = self.ends[part] - self.starts[part]
        if self.counter:
            return np.divide(self.growths(part), np.maximum(lengths, 1)), lengths
        return self.values[part], lengths

    def peak(self, part: slice) -> tuple[float | None, int]:
        """The highest value of the rows, and how many of them have a length."""
        found, lengths = self._peaks(part)
        n = int(np.count_nonzero(lengths))
        if not n:
            return None, 0
        found = found if n == len(found) else found[lengths > 0]
        return found.item(found.argmax()), n

    def extent(self, a_ns: int, b_ns: int, mass: int = 0, covered_ns: int = 0) -> Extent:
        """Peak, readings and edges of `(a, b]`, beside sums that are known."""
        rows = self.overlapping(a_ns, b_ns)
        peak, n = self.peak(rows)
        return Extent(mass, covered_ns, peak, n, self.reach(a_ns, b_ns, rows))

    def reach(self, a_ns: int, b_ns: int, part: slice) -> int:
        """The length of the longer of the rows that reach over `a` or `b`, of those that overlap `(a, b]`."""
        widest = 0
        if part.stop > part.start:
            for i in (part.start, part.stop - 1):
                start, end = self.starts.item(i), self.ends.item(i)
                if start < a_ns or end > b_ns:
                    widest = max(widest, end - start)
        return widest


def joined(tables: Sequence[RowTable]) -> RowTable:
    """Tables that follow each other as one."""
    if len(tables) == 1:
        return tables[0]
    starts, ends, values, masses, covered = (np.concatenate([table[i] for table in tables]) for i in range(5))
    return RowTable(starts, ends, values, masses, covered, tables[0].before, tables[0].counter)


class _Places(NamedTuple):
    """Where the moments of a batch lie among rows: in which, and how much of it comes before and after the moment.

    `covered` is the covered ns before the moments, from wherever: only differences mean anything. What follows is for
    counters: the rows before, the lengths of the rows, and the most of `inside`.
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

    For many moments by a table of about one cell a row, which tells where to begin to look; rows that lie so unevenly
    that a few steps do not end the search are searched as usual.
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
    # A moment before the first end lies in a cell of its own, which is not in the table.
    np.maximum(cells, 0, out=cells)
    rows = first.take(cells)
    for _ in range(_STEPS):
        late = ends.take(rows) < moments
        if not np.count_nonzero(late):
            return rows
        rows += late
    return ends.searchsorted(moments)


def _places(table: RowTable, within: slice, moments: Ints) -> _Places:
    """Where moments lie among the rows of `within`, the first of which starts before them and the last ends after."""
    ends, held = table.ends[within], table.covered[within]
    rows = _find(ends, moments)
    rows += within.start
    # Whether there is no gap, between rows or inside one that stands for many: what they cover tells both.
    steady = held.item(-1) - held.item(0) == ends.item(-1) - ends.item(0)
    # What of the row lies after the moment is taken off the sum at its end: fewer look-ups than from its start.
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
    # Rows of no length have no inside either.
    np.maximum(lengths, 1, out=lengths)
    return _Places(rows, inside, after, covered, rows - 1, lengths, int(inside.max()))


def _masses(table: RowTable, places: _Places, *, first: bool) -> Ints:
    """Wrapped masses up to moments; `first` tells that some may lie in the first row of all."""
    masses = table.masses.take(places.rows)
    if not table.counter:
        part = table.values.take(places.rows)
        part *= places.after
        masses -= part
        return masses
    # Where there is no row before the first, the last one stands in its place for a moment.
    base = table.masses.take(places.previous, mode="wrap")
    if first:
        base[places.rows == 0] = table.before
    masses -= base
    base += _share(masses, places)
    return base


def _share(growth: Ints, places: _Places) -> Ints:
    """What rows that grew by `growth`, never less than 0, had grown by at moments: rounded down, exactly."""
    part, whole, most = places.inside, places.lengths, int(growth.max()) * places.longest
    if most < 1 << 53:
        # A quotient of whole numbers below 2^53 lies at least 1/whole below the next one, more than rounding moves it.
        quotient: Floats = np.divide(growth * part, whole)
        return quotient.astype(np.int64)
    if most < 1 << 62:
        return growth * part // whole
    result = np.zeros_like(growth)
    for k in np.nonzero(part)[0].tolist():
        result[k] = int(growth[k]) * int(part[k]) // int(whole[k])
    return result


def integrals(table: RowTable, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Masses, wrapped to int64, and covered ns of every interval; fastest in the order of their ends."""
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
    found = _masses(table, places, first=not lo)
    return found[size:] - found[:size], places.covered[size:] - places.covered[:size]


def highest(values: npt.NDArray[Any], lo: npt.NDArray[np.intp], hi: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """The maxima of `values[lo:hi]`, none of which is empty, in time that does not depend on their lengths.

    Within tiles by running maxima from either side, over whole tiles by a sparse table (Bender and Farach-Colton,
    "The LCA problem revisited", LATIN 2000), and inside one tile by a look at its few rows.
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
    # frexp gives the whole binary logarithm of whole numbers exactly.
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
    """The highest of the rows `(starts, ends, peaks)` in every interval, as `Extent.peak`, and where there is one."""
    held = rows[1] > rows[0]
    first, last, peaks = (part[held] for part in rows)
    if not len(peaks):
        return np.zeros(len(starts), peaks.dtype), np.zeros(len(starts), np.bool_)
    lo, hi = last.searchsorted(starts, "right"), first.searchsorted(ends, "left")
    known = hi > lo
    # An empty range is asked for a row beside it, and the answer is not used.
    lo = np.minimum(lo, len(peaks) - 1)
    return highest(peaks, lo, np.maximum(hi, lo + 1)), known
