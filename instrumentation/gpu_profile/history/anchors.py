"""Exact sums for regions that run for longer than the history keeps rows. Pure.

An anchor is a moment: the start of such a region. When a column discards rows, every anchor absorbs the part after it:
exact mass and covered time, the peak, the number of readings, and a histogram of the values weighted by time. An
interval that starts at an anchor combines the absorbed part with the remaining rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.archive import BlockArchive
from gpu_profile.history.column import Column
from gpu_profile.history.histogram import Histogram
from gpu_profile.history.rows import Extent, Ints, Rows, RowTable


@dataclass(frozen=True, slots=True)
class DiscardedRows:
    """The discarded rows of a column between an anchor and `until_ns`.

    `histogram` is None for a counter: its growth has no quantiles.
    """

    until_ns: int
    extent: Extent
    histogram: Histogram | None

    def with_rows(self, table: RowTable, start_ns: int) -> DiscardedRows:
        """This, extended by the rows of `table` after `start_ns`."""
        until = int(table.ends[-1])
        rows = table.overlapping(start_ns, until)
        peak, n = table.peak(rows)
        held = table.rows(start_ns, until)
        mass, covered = _mass(table, held, start_ns, rows), int(held.weights.sum())
        # Only a row that crosses the anchor is an edge; the others are inside.
        merged = self.extent.with_part(Extent(mass, covered, peak, n, table.reach(start_ns, until, rows)))
        histogram = self.histogram
        if not table.counter:
            # Readers may be using the old histogram, so it does not change.
            histogram = Histogram()
            if self.histogram is not None:
                histogram.merge(self.histogram)
            histogram.add(held.values, held.weights)
        return DiscardedRows(until, merged, histogram)


def _mass(table: RowTable, held: Rows, start_ns: int, rows: slice) -> int:
    """The exact mass of the rows after `start_ns`, summed row by row: a difference of sums may not fit in 64 bits."""
    if not table.counter:
        return _sum(held.values, held.weights)
    before = 0
    if rows.stop > rows.start and int(table.starts[rows.start]) < start_ns:
        inside = start_ns - int(table.starts[rows.start])
        before = int(held.values[0]) * inside // int(held.lengths[0])
    return _sum(held.values, np.ones_like(held.values)) - before


def _sum(values: Ints, weights: Ints) -> int:
    bound = float(np.abs(values.astype(np.float64)).sum()) * float(weights.max(initial=0))
    if bound < 2.0**62:
        return int((values * weights).sum())
    return sum(int(value) * int(weight) for value, weight in zip(values, weights, strict=True))


class AnchoredColumn(Column):
    """A column whose discarded rows the `anchors` absorb. `anchors`: moment -> number of regions that start there."""

    __slots__ = ("_absorbed", "_anchors", "_next")

    def __init__(
        self,
        signal: Signal,
        capacity: int,
        memory: Any = None,
        *,
        anchors: Mapping[int, int],
        older: int | None = None,
        retention_ns: int | None = None,
        small: int = 0,
    ) -> None:
        super().__init__(signal, capacity, memory, older=older, retention_ns=retention_ns, small=small)
        self._anchors = anchors
        self._absorbed: dict[int, DiscardedRows] = {}
        self._next = self._absorbed

    def _needs_discarded(self) -> bool:
        return bool(self._anchors)

    def _before_discard(self, gone: Sequence[RowTable]) -> None:
        absorbed = {start: self._absorbed.get(start) for start in list(self._anchors)}
        for table in gone:
            for start, old in absorbed.items():
                if len(table.ends) and int(table.ends[-1]) > start:
                    fresh = DiscardedRows(start, Extent(0, 0, None, 0, 0), None)
                    absorbed[start] = (old or fresh).with_rows(table, start)
        self._next = {start: past for start, past in absorbed.items() if past is not None}

    def _after_discard(self) -> None:
        self._absorbed = self._next

    def due(self, start_ns: int) -> bool:
        """Whether rows after `start_ns` are among the next to be discarded."""

        def read(hot: RowTable, history: BlockArchive) -> bool:
            if not self._older:
                room = 2 * self.capacity - len(hot.ends)
                return room <= self.capacity // 2 and start_ns < int(hot.ends[-1 - self.capacity // 2])
            if self._retention_ns is not None and len(history):
                return start_ns < int(hot.ends[-1]) - self._retention_ns // 2
            # The next new block discards the oldest block. The block after it gives the caller time.
            return len(history) > 1 and history.rows >= self._older and start_ns < history.ends_ns()[1]

        return self.consistent(read)

    def absorbed(self, a_ns: int, b_ns: int) -> DiscardedRows | None:
        """The absorbed rows of the anchor at `a`. None without an anchor, or if they extend beyond `b`."""
        past = self._absorbed.get(a_ns)
        return past if past is not None and past.until_ns <= b_ns else None

    def _extent(self, a_ns: int, b_ns: int, hot: RowTable, history: BlockArchive) -> Extent:
        past = self.absorbed(a_ns, b_ns)
        if past is None:
            return super()._extent(a_ns, b_ns, hot, history)
        return past.extent.with_part(super()._extent(past.until_ns, b_ns, hot, history))

    def _distribution(
        self, a_ns: int, b_ns: int, hot: RowTable, history: BlockArchive
    ) -> tuple[Histogram | None, Rows]:
        past = self.absorbed(a_ns, b_ns)
        if past is None:
            return super()._distribution(a_ns, b_ns, hot, history)
        return past.histogram, self._part(past.until_ns, b_ns, hot, history)
