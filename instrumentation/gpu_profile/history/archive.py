"""The older rows of a column: immutable blocks in as few bytes as their values need. Pure.

A block keeps what cannot be worked out: the moments at which its rows end, as what is left of them beside a straight
line; their values (a counter's growth), with the least value and the greatest common step taken out; and where rows do
not follow each other without a gap, their lengths or the gaps, whichever take less room. Sums are kept at the edges of
blocks and worked out anew, to the last bit, when a block is read. Columns whose rows end at the same moments share
those.
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
#: The last value is read as a word of 8 bytes too.
_TAIL: Final = bytes(8)
#: Blocks that are kept decoded: where an interval starts, and where it ends.
_DECODED: Final = 2
#: Of so many intervals for each block around them, hardly any block is left out, and none is looked for.
_CROWDED: Final = 64


def pack(values: Ints) -> bytes:
    """Any int64 values, at least one: the least, the step between them, and multiples of it in 0 to 8 bytes each."""
    low = int(values.min())
    offsets = np.ascontiguousarray(values).view(np.uint64) - np.uint64(low & _WORD)
    step = int(np.gcd.reduce(offsets))
    if step > 1:
        offsets //= np.uint64(step)
    width = (int(offsets.max()).bit_length() + 7) // 8
    narrow = offsets.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)[:, :width]
    return b"".join((_PACKED.pack(low, step, width), narrow.tobytes(), _TAIL))


def unpack(data: bytes, n: int) -> Ints:
    """The `n` values that `pack` took."""
    low, step, width = _PACKED.unpack_from(data)
    # Words of 8 bytes that begin `width` bytes apart, of which all but `width` bytes are cut off.
    wide = np.ndarray((n,), "<u8", data, _PACKED.size, (width,)) & np.uint64((1 << 8 * width) - 1)
    if step > 1:
        wide *= np.uint64(step)
    wide += np.uint64(low & _WORD)
    return wide.view(np.int64)


def pack_moments(moments: Ints) -> bytes:
    """Rising moments that lie less than 2^63 apart, at least one: a straight line in the coarsest unit that divides
    their distances, and what is left of them beside it."""
    origin = int(moments[0])
    offsets = moments - origin
    unit = max(1, int(np.gcd.reduce(offsets)))
    offsets //= unit
    slope = int(offsets[-1]) / max(1, len(moments) - 1)
    return _LINE.pack(origin, unit, slope) + pack(offsets - _line(slope, len(moments)))


def unpack_moments(data: bytes, n: int) -> Ints:
    """The `n` moments that `pack_moments` took."""
    origin, unit, slope = _LINE.unpack_from(data)
    moments = unpack(data[_LINE.size :], n)
    moments += _line(slope, n)
    moments *= unit
    moments += origin
    return moments


def _line(slope: float, n: int) -> Ints:
    # Rounded the same way whenever it is drawn: all that matters, as what is left beside it is kept exactly.
    return (_numbers(n) * slope).astype(np.int64)


@lru_cache(maxsize=4)
def _numbers(n: int) -> Floats:
    """0 to n-1, which most blocks need for the same n. Not to be changed."""
    return np.arange(n, dtype=np.float64)


class PackedRows(NamedTuple):
    """Rows in bytes. `shape` is empty where every row starts at the end of the one before; else lengths or gaps."""

    ends: bytes
    shape: bytes
    values: bytes


#: Moments that were packed for one column, for others that have the same: pairs of the moments and their bytes.
Shared = list[tuple[Ints, bytes]]


def encode(table: RowTable, shared: Shared) -> PackedRows:
    """A block of at least one row. Moments that `shared` has already are taken from there, others are put there."""
    ends = next((data for known, data in shared if np.array_equal(known, table.ends)), None)
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
    """The rows of a block whose first one starts at `start`, with the sums `before` it. A counter's values are lost."""
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
    """Rows of a view; for blocks that became one row, the peak of theirs."""

    table: RowTable
    peak: npt.NDArray[Any] | None


class _Edges(NamedTuple):
    """One entry per block: where it starts and ends, the sums up to its end, its rows, its readings and its peak."""

    starts: Ints
    ends: Ints
    masses: Ints
    covered: Ints
    counts: Ints
    readings: Ints
    peaks: npt.NDArray[Any]


class History:
    """Blocks in order. Never changes: `with_block` and `without` give another one."""

    __slots__ = ("_before", "_blocks", "_counter", "_edges", "_recent", "end_ns", "rows")

    def __init__(self, blocks: Sequence[PackedRows], edges: _Edges, before: Cumulative, *, counter: bool) -> None:
        self._blocks = tuple(blocks)
        self._edges = edges
        self._before = before
        self._counter = counter
        self._recent: tuple[tuple[int, RowTable], ...] = ()
        #: How many rows there are.
        self.rows = int(edges.counts.sum())
        #: Where the last row ends; before all time if there is none.
        self.end_ns = int(edges.ends[-1]) if self._blocks else -_WORD

    @classmethod
    def empty(cls, *, counter: bool) -> History:
        """No rows yet."""
        none = np.zeros(0, np.int64)
        peaks = np.zeros(0, np.float64 if counter else np.int64)
        return cls((), _Edges(none, none, none, none, none, none, peaks), Cumulative(0, 0), counter=counter)

    def with_block(self, table: RowTable, shared: Shared, small: int = 0) -> History:
        """This history and a newer table of at least one row, in one block with a last one of fewer than `small`."""
        if self._blocks and self._edges.counts[-1] < small:
            last = len(self._blocks) - 1
            edges = _Edges(*(part[:last] for part in self._edges))
            history = History(self._blocks[:last], edges, self._before, counter=self._counter)
            return history.with_block(joined((self.table(last), table)), shared)
        peak, readings = table.peak(slice(0, len(table.ends)))
        row = (
            table.starts[0],
            table.ends[-1],
            table.masses[-1],
            table.covered[-1],
            len(table.ends),
            readings,
            # Blocks without readings are never asked for their peak.
            0 if peak is None else peak,
        )
        edges = _Edges(*(np.append(old, np.array([new], old.dtype)) for old, new in zip(self._edges, row, strict=True)))
        covered = int(table.covered[0]) - int(table.ends[0] - table.starts[0])
        before = self._before if self._blocks else Cumulative(table.before, covered)
        return History((*self._blocks, encode(table, shared)), edges, before, counter=self._counter)

    def without(self, blocks: int) -> History:
        """This history without its oldest blocks."""
        if not blocks:
            return self
        before = Cumulative(int(self._edges.masses[blocks - 1]), int(self._edges.covered[blocks - 1]))
        edges = _Edges(*(part[blocks:] for part in self._edges))
        return History(self._blocks[blocks:], edges, before, counter=self._counter)

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    @property
    def start_ns(self) -> int:
        """Where the first row starts."""
        return int(self._edges.starts[0])

    def ends_ns(self) -> list[int]:
        """Where the blocks end."""
        return [int(end) for end in self._edges.ends]

    def surplus(self, rows: int, since_ns: int | None) -> int:
        """How many of the oldest blocks are not needed to keep `rows` rows, or all that ended after `since_ns`."""
        left = self.rows - np.cumsum(self._edges.counts)
        gone = int(np.count_nonzero(left >= rows))
        if since_ns is not None:
            gone = max(gone, int(self._edges.ends.searchsorted(since_ns, "right")))
        return gone

    def table(self, k: int) -> RowTable:
        """The rows of the `k`-th block."""
        for known, table in self._recent:
            if known == k:
                return table
        before = Cumulative(int(self._edges.masses[k - 1]), int(self._edges.covered[k - 1])) if k else self._before
        n, start = int(self._edges.counts[k]), int(self._edges.starts[k])
        table = decode(self._blocks[k], n, start, before, counter=self._counter)
        self._recent = ((k, table), *self._recent)[:_DECODED]
        return table

    # ------------------------------------------------------------------ reading

    def cumulative(self, t_ns: int) -> Cumulative:
        """Sums up to `t_ns`, which lies at or before the end of the last row."""
        k = int(self._edges.ends.searchsorted(t_ns))
        if int(self._edges.ends[k]) == t_ns:
            return Cumulative(int(self._edges.masses[k]), int(self._edges.covered[k]))
        return self.table(k).cumulative(t_ns)

    def cut(self, a_ns: int, longest_ns: int) -> int:
        """The end of the last block that is no farther than `longest_ns` from `a`, or just that far if there is none:
        the sums at a block's end are known without reading it."""
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
        """Peak, readings and edges of `(a, b]`; its sums are left at 0, `cumulative` knows them."""
        starts, ends = self._edges.starts, self._edges.ends
        newest = len(ends) - 1
        if newest >= 0 and starts[newest] < a_ns < ends[newest]:  # mostly: from somewhere in the newest block on
            return self.table(newest).extent(a_ns, b_ns)
        blocks = self.overlapping(a_ns, b_ns)
        if not blocks:
            return Extent(0, 0, None, 0, 0)
        first, last = blocks[0], blocks[-1]
        parts = [k for k in {first, last} if starts.item(k) < a_ns or ends.item(k) > b_ns]
        lo, hi = first + (first in parts), last + 1 - (last in parts)
        found = Extent(0, 0, None, 0, 0)
        if lo < hi:
            readings, peaks = self._edges.readings[lo:hi], self._edges.peaks[lo:hi]
            if np.count_nonzero(readings) < hi - lo:
                peaks = peaks[readings > 0]
            peak = peaks.item(peaks.argmax()) if len(peaks) else None
            found = Extent(0, 0, peak, int(np.add.reduce(readings)), 0)
        for k in parts:
            found = found.with_part(self.table(k).extent(a_ns, b_ns))
        return found

    def worth_cutting(self, starts: Ints, ends: Ints, batch: int) -> bool:
        """Whether batches of so many intervals lie in different blocks, mostly: then each block is read about once."""
        if not self._blocks:
            return False
        cuts = np.arange(0, len(starts), batch)
        first = self._edges.ends.searchsorted(np.minimum.reduceat(starts, cuts))
        last = self._edges.ends.searchsorted(np.maximum.reduceat(ends, cuts))
        return int((last - first + 1).sum()) <= 2 * (len(self._blocks) + len(cuts))

    def view(self, starts: Ints, ends: Ints) -> list[Piece]:
        """Rows in which each edge of the intervals has its own. Blocks that hold none become one row together."""
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
        # Without readings there is no peak: a row of no length has none either.
        starts = edges.starts[lo : lo + 1] if len(peaks) else ends
        peak = peaks.max(keepdims=True) if len(peaks) else np.zeros(1, peaks.dtype)
        return Piece(RowTable(starts, ends, np.zeros(1, np.int64), masses, covered, before, self._counter), peak)
