"""The older rows of a column: immutable blocks in as few bytes as their values need. Pure.

A block contains three packed arrays:

- the ends of its rows, as their differences from a straight line. Columns whose rows have the same ends share them;
- the values (a counter's growth), as multiples of their greatest common step above the least value;
- only if there are gaps between rows: the lengths or the gaps, whichever take fewer bytes.

Sums are stored at the edges of blocks. Reading a block recomputes those inside it, exact to the last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.rows import Cumulative, Extent, Floats, Ints, RowTable, joined

_PACKED: Final = struct.Struct("<qQQ")
_LINE: Final = struct.Struct("<qQd")
_WORD: Final = (1 << 64) - 1
#: Padding: the last value is read as a word of 8 bytes too.
_TAIL: Final = bytes(8)
#: Blocks that are kept decoded: the two at the start and the end of an interval.
_DECODED: Final = 2
#: From this many intervals per block on, nearly every block is needed, so `view` does not search for the others.
_CROWDED: Final = 64


def pack(values: Ints) -> bytes:
    """Pack at least one int64 value: the least value, the common step, and multiples of it in 0 to 8 bytes each."""
    low = int(values.min())
    offsets = np.ascontiguousarray(values).view(np.uint64) - np.uint64(low & _WORD)
    step = int(np.gcd.reduce(offsets))
    if step > 1:
        offsets //= np.uint64(step)
    width = (int(offsets.max()).bit_length() + 7) // 8
    narrow = offsets.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width]
    return b"".join((_PACKED.pack(low, step, width), narrow.tobytes(), _TAIL))


def unpack(data: bytes, n: int) -> Ints:
    """The `n` values in the result of `pack`."""
    low, step, width = _PACKED.unpack_from(data)
    # Overlapping words of 8 bytes that begin `width` bytes apart. The mask keeps `width` bytes of each.
    wide = np.ndarray((n,), "<u8", data, _PACKED.size, (width,)) & np.uint64((1 << 8 * width) - 1)
    if step > 1:
        wide *= np.uint64(step)
    wide += np.uint64(low & _WORD)
    return wide.view(np.int64)


def pack_moments(moments: Ints) -> bytes:
    """Pack at least one moment, in ascending order and less than 2^63 ns apart.

    Stores a straight line in the greatest unit that divides all distances, and the differences from it.
    """
    origin = int(moments[0])
    offsets = moments - origin
    unit = max(1, int(np.gcd.reduce(offsets)))
    offsets //= unit
    slope = int(offsets[-1]) / max(1, len(moments) - 1)
    return _LINE.pack(origin, unit, slope) + pack(offsets - _line(slope, len(moments)))


def unpack_moments(data: bytes, n: int) -> Ints:
    """The `n` moments in the result of `pack_moments`."""
    origin, unit, slope = _LINE.unpack_from(data)
    moments = unpack(data[_LINE.size :], n)
    moments += _line(slope, n)
    moments *= unit
    moments += origin
    return moments


def _line(slope: float, n: int) -> Ints:
    # Any rounding is fine as long as it is always the same: the differences from the line are stored exactly.
    return (_numbers(n) * slope).astype(np.int64)


@lru_cache(maxsize=4)
def _numbers(n: int) -> Floats:
    """0 to n-1. Cached, because most blocks have the same n; callers must not change the array."""
    return np.arange(n, dtype=np.float64)


class PackedRows(NamedTuple):
    """Rows in bytes. `shape` contains lengths or gaps. It is empty if every row starts at the end of the one before."""

    ends: bytes
    shape: bytes
    values: bytes


#: Pairs of ends and their packed bytes, so that columns with the same ends share them.
Shared = list[tuple[Ints, bytes]]


def encode(table: RowTable, shared: Shared) -> PackedRows:
    """Pack a table of at least one row. Takes its packed ends from `shared`, or adds them there."""
    ends = next((data for packed, data in shared if np.array_equal(packed, table.ends)), None)
    if ends is None:
        ends = pack_moments(table.ends)
        shared.append((table.ends.copy(), ends))
    gaps = table.starts[1:] - table.ends[:-1]
    shape = b""
    if gaps.any():
        lengths = pack(table.ends - table.starts) + b"L"
        apart = pack(gaps) + b"G"
        shape = min(lengths, apart, key=len)
    values = table.growths(slice(0, len(table.ends))) if table.counter else table.values
    return PackedRows(ends, shape, pack(values))


def decode(block: PackedRows, n: int, start: int, before: Cumulative, *, counter: bool) -> RowTable:
    """The rows of a block that starts at `start`, with the sums `before` it. `values` of a counter are its growth."""
    ends = unpack_moments(block.ends, n)
    if block.shape.endswith(b"L"):
        lengths = unpack(block.shape, n)
        starts = ends - lengths
    else:
        starts = np.empty(n, np.int64)
        starts[0] = start
        starts[1:] = ends[:-1]
        if block.shape:
            starts[1:] += unpack(block.shape, n - 1)
        lengths = ends - starts
    values = unpack(block.values, n)
    masses = (values if counter else values * lengths).cumsum()
    masses += before.mass
    covered = lengths.cumsum()
    covered += before.covered_ns
    return RowTable(starts, ends, values, masses, covered, before.mass, counter)


class Piece(NamedTuple):
    """Rows of a view. `peak` is that of the blocks that one row replaces; None for original rows."""

    table: RowTable
    peak: npt.NDArray[Any] | None


class _Edges(NamedTuple):
    """One entry per block: start, end, sums up to its end, number of rows, rows longer than 0 ns, and peak."""

    starts: Ints
    ends: Ints
    masses: Ints
    covered: Ints
    counts: Ints
    readings: Ints
    peaks: npt.NDArray[Any]


class BlockArchive:
    """Blocks in order of time. Immutable: `with_block` and `without` return new ones."""

    __slots__ = ("_before", "_blocks", "_counter", "_edges", "_recent", "end_ns", "rows")

    def __init__(self, blocks: Sequence[PackedRows], edges: _Edges, before: Cumulative, *, counter: bool) -> None:
        self._blocks = tuple(blocks)
        self._edges = edges
        self._before = before
        self._counter = counter
        self._recent: tuple[tuple[int, RowTable], ...] = ()
        #: The number of rows.
        self.rows = int(edges.counts.sum())
        #: The end of the last row; without rows, less than any moment.
        self.end_ns = int(edges.ends[-1]) if self._blocks else -_WORD

    @classmethod
    def empty(cls, *, counter: bool) -> BlockArchive:
        """A history without rows."""
        none = np.zeros(0, np.int64)
        peaks = np.zeros(0, np.float64 if counter else np.int64)
        return cls((), _Edges(none, none, none, none, none, none, peaks), Cumulative(0, 0), counter=counter)

    def with_block(self, table: RowTable, shared: Shared, small: int = 0) -> BlockArchive:
        """This history with a newer, non-empty table, which is merged with a last block of fewer than `small` rows."""
        if self._blocks and self._edges.counts[-1] < small:
            last = len(self._blocks) - 1
            edges = _Edges(*(part[:last] for part in self._edges))
            history = BlockArchive(self._blocks[:last], edges, self._before, counter=self._counter)
            return history.with_block(joined((self.table(last), table)), shared)
        peak, readings = table.peak(slice(0, len(table.ends)))
        row = (
            table.starts[0],
            table.ends[-1],
            table.masses[-1],
            table.covered[-1],
            len(table.ends),
            readings,
            # The peak of blocks without readings is never used.
            0 if peak is None else peak,
        )
        edges = _Edges(*(np.append(old, np.array([new], old.dtype)) for old, new in zip(self._edges, row, strict=True)))
        covered = int(table.covered[0]) - int(table.ends[0] - table.starts[0])
        before = self._before if self._blocks else Cumulative(table.before, covered)
        return BlockArchive((*self._blocks, encode(table, shared)), edges, before, counter=self._counter)

    def without(self, blocks: int) -> BlockArchive:
        """This history without its `blocks` oldest blocks."""
        if not blocks:
            return self
        before = Cumulative(int(self._edges.masses[blocks - 1]), int(self._edges.covered[blocks - 1]))
        edges = _Edges(*(part[blocks:] for part in self._edges))
        return BlockArchive(self._blocks[blocks:], edges, before, counter=self._counter)

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._blocks)

    @property
    def start_ns(self) -> int:
        """The start of the first row."""
        return int(self._edges.starts[0])

    def ends_ns(self) -> list[int]:
        """The ends of the blocks."""
        return [int(end) for end in self._edges.ends]

    def surplus(self, rows: int, since_ns: int | None) -> int:
        """The number of oldest blocks that are beyond the newest `rows` rows, or ended by `since_ns`."""
        left = self.rows - np.cumsum(self._edges.counts)
        gone = int(np.count_nonzero(left >= rows))
        if since_ns is not None:
            gone = max(gone, int(self._edges.ends.searchsorted(since_ns, "right")))
        return gone

    def table(self, k: int) -> RowTable:
        """The rows of the `k`-th block."""
        for index, table in self._recent:
            if index == k:
                return table
        before = Cumulative(int(self._edges.masses[k - 1]), int(self._edges.covered[k - 1])) if k else self._before
        n, start = int(self._edges.counts[k]), int(self._edges.starts[k])
        table = decode(self._blocks[k], n, start, before, counter=self._counter)
        self._recent = ((k, table), *self._recent)[:_DECODED]
        return table

    # ------------------------------------------------------------------ reading

    def cumulative(self, t_ns: int) -> Cumulative:
        """Sums up to `t_ns`, which is at most `end_ns`."""
        k = int(self._edges.ends.searchsorted(t_ns))
        if int(self._edges.ends[k]) == t_ns:
            return Cumulative(int(self._edges.masses[k]), int(self._edges.covered[k]))
        return self.table(k).cumulative(t_ns)

    def cut(self, a_ns: int, longest_ns: int) -> int:
        """The latest end of a block in `(a, a + longest_ns]`, or `a + longest_ns` without one.

        The sums at a block's end are available without decoding the block.
        """
        ends = self._edges.ends
        k = int(ends.searchsorted(a_ns + longest_ns, "right")) - 1
        return int(ends[k]) if k >= 0 and int(ends[k]) > a_ns else a_ns + longest_ns

    def overlapping(self, a_ns: int, b_ns: int) -> range:
        """The blocks that overlap `(a, b]`."""
        lo = int(self._edges.ends.searchsorted(a_ns, "right"))
        return range(lo, max(lo, int(self._edges.starts.searchsorted(b_ns, "left"))))

    def tables(self, a_ns: int, b_ns: int) -> list[RowTable]:
        """The rows of the blocks that overlap `(a, b]`."""
        return [self.table(k) for k in self.overlapping(a_ns, b_ns)]

    def extent(self, a_ns: int, b_ns: int) -> Extent:
        """Peak, readings and edges of `(a, b]`. Its sums stay 0: `cumulative` returns them."""
        starts, ends = self._edges.starts, self._edges.ends
        newest = len(ends) - 1
        if newest >= 0 and starts[newest] < a_ns < ends[newest]:  # usually: it starts inside the newest block
            return self.table(newest).extent(a_ns, b_ns)
        blocks = self.overlapping(a_ns, b_ns)
        if not blocks:
            return Extent(0, 0, None, 0, 0)
        first, last = blocks[0], blocks[-1]
        parts = [k for k in {first, last} if starts.item(k) < a_ns or ends.item(k) > b_ns]
        lo, hi = first + (first in parts), last + 1 - (last in parts)
        extent = Extent(0, 0, None, 0, 0)
        if lo < hi:
            readings, peaks = self._edges.readings[lo:hi], self._edges.peaks[lo:hi]
            if np.count_nonzero(readings) < hi - lo:
                peaks = peaks[readings > 0]
            peak = peaks.item(peaks.argmax()) if len(peaks) else None
            extent = Extent(0, 0, peak, int(np.add.reduce(readings)), 0)
        for k in parts:
            extent = extent.with_part(self.table(k).extent(a_ns, b_ns))
        return extent

    def worth_cutting(self, starts: Ints, ends: Ints, batch: int) -> bool:
        """Whether batches of `batch` intervals mostly use different blocks: then each block is decoded about once."""
        if not self._blocks:
            return False
        cuts = np.arange(0, len(starts), batch)
        first = self._edges.ends.searchsorted(np.minimum.reduceat(starts, cuts))
        last = self._edges.ends.searchsorted(np.maximum.reduceat(ends, cuts))
        return int((last - first + 1).sum()) <= 2 * (len(self._blocks) + len(cuts))

    def view(self, starts: Ints, ends: Ints) -> list[Piece]:
        """Rows for queries at the intervals' edges. Each run of blocks without an edge is replaced by one row."""
        needed = np.zeros(len(self._blocks) + 1, np.bool_)
        first, last = self._edges.ends.searchsorted((starts.min(), ends.max()))
        around = slice(first, last + 1)
        if len(needed[around]) * _CROWDED <= len(starts):
            needed[around] = True
        else:
            for moments in (starts, ends):
                needed[self._edges.ends.searchsorted(moments)] = True
        result, at = [], 0
        for k in [*np.nonzero(needed[:-1])[0].tolist(), len(self._blocks)]:
            if k > at:
                result.append(self._run(at, k))
            if k < len(self._blocks):
                result.append(Piece(self.table(k), None))
            at = k + 1
        return result

    def _run(self, lo: int, hi: int) -> Piece:
        edges = self._edges
        before = int(edges.masses[lo - 1]) if lo else self._before.mass
        ends, masses, covered = edges.ends[hi - 1 : hi], edges.masses[hi - 1 : hi], edges.covered[hi - 1 : hi]
        peaks = edges.peaks[lo:hi][edges.readings[lo:hi] > 0]
        # Without readings there is no peak: a row of length 0 has none either.
        starts = edges.starts[lo : lo + 1] if len(peaks) else ends
        peak = peaks.max(keepdims=True) if len(peaks) else np.zeros(1, peaks.dtype)
        return Piece(RowTable(starts, ends, np.zeros(1, np.int64), masses, covered, before, self._counter), peak)
