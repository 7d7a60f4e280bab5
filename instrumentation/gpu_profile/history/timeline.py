"""The bounded history of one device: a column for each signal. Pure.

See `RowAccumulator` for the conversion of samples into rows, `Buffer` for access by other processes, and
`AnchoredColumn` for the sums of discarded rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gpu_profile.catalogue import BUSY_SOURCES, Signal, Tier
from gpu_profile.catalogue.samples import Device
from gpu_profile.history.anchors import AnchoredColumn
from gpu_profile.history.archive import Shared
from gpu_profile.history.busy_total import BusyTotal
from gpu_profile.history.column import Column
from gpu_profile.history.ledger import ColumnsBySignal
from gpu_profile.history.rows import Floats, Ints, Singles

__all__ = ["HOT_ROWS", "SLOW_ROWS", "Column", "Floats", "Ints", "Singles", "Timeline"]

#: The least number of rows in a column's buffer, which has room for twice as many. At 100 Hz they span 14 s.
HOT_ROWS: Final = 1_400
#: The same for signals that are read once a second or less: the first row makes the whole buffer use memory.
SLOW_ROWS: Final = 64


class Timeline(ColumnsBySignal[AnchoredColumn]):
    """The history of one device: one column per signal, of at least the newest `capacity` rows.

    `signals` are the signals that its driver can read. Others get a column with their first sample. At least the newest
    `hot` rows are in a buffer from `allocate(signal, size)`, where other processes may read them. Without `allocate`,
    it is this process's memory. Older rows are compressed to a few bytes each, in this process alone. Rows that ended
    more than `retention_ns` before the newest are discarded. Rows leave the buffer in blocks of about `hot`, slow
    signals in smaller ones. One thread appends, any thread may read.
    """

    def __init__(
        self,
        device: Device,
        signals: Iterable[Signal] = (),
        *,
        capacity: int = 6000,
        hot: int = HOT_ROWS,
        retention_ns: int | None = None,
        allocate: Callable[[Signal, int], Any] | None = None,
    ) -> None:
        self.device = device
        self.capacity = capacity
        self._hot = min(hot, capacity)
        self._retention_ns = retention_ns
        self._allocate = allocate
        self._anchors: Counter[int] = Counter()
        super().__init__(signals)

    def _opened(self, signal: Signal) -> AnchoredColumn:
        hot = self._hot if signal.tier in (Tier.FAST, Tier.GPM) else min(self._hot, SLOW_ROWS)
        buffer = self._allocate(signal, Column.size(hot)) if self._allocate else None
        column = AnchoredColumn(
            signal,
            hot,
            buffer,
            anchors=self._anchors,
            older=self.capacity - hot,
            retention_ns=self._retention_ns,
            small=self._hot // 2,
        )
        column.when_full = self._seal
        return column

    def _seal(self, until_ns: int) -> None:
        """Move old rows of all columns out of their buffers, up to the same moment, so that blocks share their stamps.

        A column with few such rows waits until it is full: a small block costs more than unshared stamps.
        """
        shared: Shared = []
        for column in self._columns.values():
            ready = column.ready(until_ns)
            if column.full or ready >= max(1, 3 * column.capacity // 4):
                column.seal(until_ns, shared)

    @property
    def busy(self) -> BusyTotal:
        """Busy time by the source that is the best now."""
        total, best = BusyTotal(), self.best(BUSY_SOURCES)
        if best is not None and best.watermark_ns is not None:
            total.masses[best.signal], total.covered_ns = best.total_mass, best.total_covered_ns
            total.signal, total.until_ns = best.signal, best.watermark_ns
        return total

    def watermark_ns(self, signals: Iterable[Signal]) -> int | None:
        """The earliest watermark of `signals`. Signals without rows are left out; None if none has rows."""
        marks = (c.watermark_ns for s in signals if (c := self._columns.get(s)) is not None)
        return min((mark for mark in marks if mark is not None), default=None)

    def anchor(self, start_ns: int) -> None:
        """Keep the sums of discarded rows after `start_ns`, for an interval that starts exactly there.

        Rows that were discarded before this call are missing, which lowers its coverage. Each call needs a `release`.
        """
        self._anchors[start_ns] += 1

    def release(self, start_ns: int) -> None:
        """Undo one `anchor`. The last one discards the sums. Does nothing without an anchor."""
        if self._anchors[start_ns] <= 1:
            del self._anchors[start_ns]
        else:
            self._anchors[start_ns] -= 1

    @property
    def anchors(self) -> Sequence[int]:
        """The anchored moments in ascending order."""
        return sorted(self._anchors)

    def anchor_due(self, start_ns: int) -> bool:
        """Whether rows after `start_ns` will soon be discarded: an open interval that starts there needs an anchor."""
        return any(column.due(start_ns) for column in list(self._columns.values()))
