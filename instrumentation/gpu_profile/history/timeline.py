"""The bounded history of one device's signals: a column for each, kept in step. Pure.

`Column` says how samples become rows, `Buffer` how another process may read them, `AnchoredColumn` what is left of rows
that are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gpu_profile.catalogue import BUSY_SOURCES, Signal, Tier
from gpu_profile.catalogue.samples import Device
from gpu_profile.history.anchors import AnchoredColumn
from gpu_profile.history.archive import Shared
from gpu_profile.history.column import Column
from gpu_profile.history.ledger import BusyTotal, Signals
from gpu_profile.history.rows import Floats, Ints

__all__ = ["HOT_ROWS", "SLOW_ROWS", "Column", "Floats", "Ints", "Timeline"]

#: Rows of a column that lie in its buffer at least; it holds twice as many. At 100 Hz they reach back 14 s.
HOT_ROWS: Final = 1_400
#: As many for a signal that is read once a second or less: a buffer is there whole once its first row is.
SLOW_ROWS: Final = 64


class Timeline(Signals[AnchoredColumn]):
    """The history of one device: a column per signal that it has, of at least the newest `capacity` rows.

    `signals` are those that its driver can read; others get a column with their first sample. The newest `hot` rows or
    more lie in a buffer that `allocate(signal, size)` supplies (without it, this process's own memory), where other
    processes may read them; older ones are kept, in a few bytes each, by this process alone, and none that ended more
    than `retention_ns` before the newest. Rows leave in blocks of about `hot`; slow
    signals have fewer. One thread appends; any may read.
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
        """Move old rows of all columns out of their buffers, up to the same moment, so that they share its stamps.

        A column with fewer waits until it is full itself: a small block costs more than stamps of its own.
        """
        shared: Shared = []
        for column in self._columns.values():
            ready = column.ready(until_ns)
            if column.full or ready >= max(1, 3 * column.capacity // 4):
                column.seal(until_ns, shared)

    @property
    def busy(self) -> BusyTotal:
        """Busy time by the source that is the best now."""
        found, best = BusyTotal(), self.best(BUSY_SOURCES)
        if best is not None and best.watermark_ns is not None:
            found.masses[best.signal], found.covered_ns = best.total_mass, best.total_covered_ns
            found.signal, found.until_ns = best.signal, best.watermark_ns
        return found

    def watermark_ns(self, signals: Iterable[Signal]) -> int | None:
        """The moment up to which all of `signals` that this device has are known; None if it has none of them."""
        marks = (c.watermark_ns for s in signals if (c := self._columns.get(s)) is not None)
        return min((mark for mark in marks if mark is not None), default=None)

    def anchor(self, start_ns: int) -> None:
        """Keep what rows after `start_ns` say once they are let go of, for an interval that starts right there.

        Rows that are gone by now are lost to it, which its coverage tells. Every call wants its own `release`.
        """
        self._anchors[start_ns] += 1

    def release(self, start_ns: int) -> None:
        """Take one `anchor` back; what was kept goes with the last one. Without one, nothing happens."""
        if self._anchors[start_ns] <= 1:
            del self._anchors[start_ns]
        else:
            self._anchors[start_ns] -= 1

    @property
    def anchors(self) -> Sequence[int]:
        """The moments that are anchored."""
        return sorted(self._anchors)

    def anchor_due(self, start_ns: int) -> bool:
        """Whether rows after `start_ns` will soon be let go of: an interval from there that goes on needs an anchor."""
        return any(column.due(start_ns) for column in list(self._columns.values()))
