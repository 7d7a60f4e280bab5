"""One signal's rows, and exact queries over any interval of their time.

`ledger.RowAccumulator` converts samples into rows. Sums are int64 and wrap on purpose. A difference of two sums is
exact as long as the interval's own sum fits, which the signal's `longest_exact_ns` guarantees. Longer intervals are
summed in pieces. Splitting an interval therefore never changes a sum by a single bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.history.archive import BlockArchive, Piece
from gpu_profile.history.buffer import Buffer, State
from gpu_profile.history.histogram import Histogram
from gpu_profile.history.ledger import FARTHEST, RowAccumulator
from gpu_profile.history.rows import (
    BATCH,
    Bools,
    Cumulative,
    Extent,
    Floats,
    Ints,
    Rows,
    RowTable,
    integrals,
    joined,
    maxima,
    wrap,
)
from gpu_profile.units import NS_PER_S


class Column(Buffer, RowAccumulator):
    """The rows of one signal. `Buffer` documents `capacity`, `memory` and the options."""

    __slots__ = (
        "_before_step", "_far_behind", "_highest", "_last_raw", "_longest_ns", "_lowest", "_mean", "dropped", "signal"
    )  # fmt: skip

    def __init__(
        self,
        signal: Signal,
        capacity: int,
        memory: Any = None,
        *,
        older: int | None = None,
        retention_ns: int | None = None,
        small: int = 0,
    ) -> None:
        counter = signal.kind is Kind.COUNTER
        super().__init__(
            signal.key, capacity, memory, counter=counter, older=older, retention_ns=retention_ns, small=small
        )
        self._open(signal)
        self._longest_ns = signal.longest_exact_ns

    # ------------------------------------------------------------------ one interval

    @property
    def oldest_ns(self) -> int | None:
        """The start of the oldest row in the history; None without rows."""
        return self.consistent(_oldest)

    @property
    def last(self) -> Sample | None:
        """The newest reading; of a counter, its running total. None without rows."""
        row = self.newest_row()
        if row is None:
            return None
        start, end, value = row
        return Sample(self.signal, start if self.signal.kind is Kind.WINDOW_MEAN else end, end, value)

    @property
    def stamped(self) -> bool:
        """True if the driver stamps the readings: its stamps are whole microseconds, this process's clock is finer."""
        row = self.newest_row()
        return row is not None and not (row[0] % 1000 or row[1] % 1000)

    def cumulative(self, t_ns: int) -> Cumulative:
        """Sums over the history up to `t_ns`. A moment outside the history takes the sums at its nearest edge."""
        return self.consistent(lambda hot, history: _cumulative(t_ns, hot, history))

    def integral(self, a_ns: int, b_ns: int) -> Cumulative:
        """The exact mass of `(a, b]` and the ns that rows cover, as Python ints of any size. ValueError if b < a."""
        check_order(a_ns, b_ns)
        return self.consistent(lambda hot, history: self.exact(a_ns, b_ns, hot, history))

    def exact(self, a_ns: int, b_ns: int, hot: RowTable, history: BlockArchive) -> Cumulative:
        """`integral` over the rows that `consistent` passed."""
        oldest = _oldest(hot, history)
        if oldest is None:
            return Cumulative(0, 0)
        # Outside the rows nothing is covered. Without this cut, a year without rows would be summed in pieces.
        newest = int(hot.ends[-1])
        a_ns = min(max(a_ns, oldest), newest)
        b_ns = min(max(b_ns, a_ns), newest)
        mass, step = 0, self._longest_ns
        low = high = _cumulative(a_ns, hot, history)
        first = low.covered_ns
        while a_ns < b_ns:
            cut = history.cut(a_ns, step) if b_ns - a_ns > step and len(history) else a_ns + step
            a_ns = min(cut, b_ns)
            high = _cumulative(a_ns, hot, history)
            mass += wrap(high.mass - low.mass)
            low = high
        return Cumulative(mass, wrap(high.covered_ns - first))

    def _cut(self, masses: Ints, starts: Ints, ends: Ints, state: State) -> npt.NDArray[Any]:
        """`masses`, after summing in pieces each interval longer than `longest_exact_ns`, whose sum may not fit."""
        exact = {}
        for i in np.nonzero(ends - starts > self._longest_ns)[0].tolist():
            exact[i] = self.exact(int(starts[i]), int(ends[i]), *state).mass
        if all(mass == wrap(mass) for mass in exact.values()):
            # Each sum fits in 64 bits, so the wrapped sums are right.
            return masses
        result = masses.astype(object)
        for i, mass in exact.items():
            result[i] = mass
        return result

    def extent(self, a_ns: int, b_ns: int) -> Extent:
        """Sums, peak, readings and edges of `(a, b]`. The cost hardly depends on the interval's length."""
        check_order(a_ns, b_ns)
        return self.consistent(lambda hot, history: self._extent(a_ns, b_ns, hot, history))

    def _extent(self, a_ns: int, b_ns: int, hot: RowTable, history: BlockArchive) -> Extent:
        mass, covered = self.exact(a_ns, b_ns, hot, history)
        a_ns, b_ns = max(a_ns, -FARTHEST), min(b_ns, FARTHEST)
        newest = hot.extent(a_ns, b_ns, mass, covered)
        return newest.with_part(history.extent(a_ns, b_ns)) if a_ns < history.end_ns else newest

    def rows(self, a_ns: int, b_ns: int) -> Rows:
        """The rows that overlap `(a, b]`, oldest first."""
        check_order(a_ns, b_ns)
        return self.consistent(lambda hot, history: self._part(a_ns, b_ns, hot, history))

    def _part(self, a_ns: int, b_ns: int, hot: RowTable, history: BlockArchive) -> Rows:
        a_ns, b_ns = max(a_ns, -FARTHEST), min(b_ns, FARTHEST)
        if a_ns >= history.end_ns:
            return hot.rows(a_ns, b_ns)
        return joined([*history.tables(a_ns, b_ns), hot]).rows(a_ns, b_ns)

    def distribution(self, a_ns: int, b_ns: int) -> tuple[Histogram | None, Rows]:
        """The values of `(a, b]`, weighted by time: a histogram of rows that left the history, and the rows in it."""
        check_order(a_ns, b_ns)
        return self.consistent(lambda hot, history: self._distribution(a_ns, b_ns, hot, history))

    def _distribution(
        self, a_ns: int, b_ns: int, hot: RowTable, history: BlockArchive
    ) -> tuple[Histogram | None, Rows]:
        return None, self._part(a_ns, b_ns, hot, history)

    def edges(self, after_ns: int, until_ns: int) -> tuple[Ints, Ints, Ints]:
        """Starts, ends and masses of the rows that end in `(after, until]`, oldest first."""

        def read(hot: RowTable, history: BlockArchive) -> tuple[Ints, Ints, Ints]:
            table = hot
            if after_ns < history.end_ns:
                table = joined([*history.tables(after_ns, until_ns), hot])
            lo = int(table.ends.searchsorted(after_ns, "right"))
            part = slice(lo, max(lo, int(table.ends.searchsorted(until_ns, "right"))))
            return table.starts[part].copy(), table.ends[part].copy(), table.growths(part)

        return self.consistent(read)

    # ------------------------------------------------------------------ many intervals at once

    def integrals(self, starts: Ints, ends: Ints) -> tuple[npt.NDArray[Any], Ints]:
        """Exact masses and covered ns of many intervals `(start, end]`, as from `integral`.

        Masses are int64. If one does not fit, all are Python ints (dtype object). ValueError as from `moments`.
        """
        starts, ends = moments(starts, ends)
        if not len(starts):
            return starts, ends
        return self.consistent(lambda hot, history: self._integrals(starts, ends, hot, history))

    def _integrals(
        self, starts: Ints, ends: Ints, hot: RowTable, history: BlockArchive
    ) -> tuple[npt.NDArray[Any], Ints]:
        if len(starts) > BATCH and history.worth_cutting(starts, ends, BATCH):
            # A few blocks at a time fit in the processor's cache.
            cuts = (slice(lo, lo + BATCH) for lo in range(0, len(starts), BATCH))
            parts = [self._integrals(starts[cut], ends[cut], hot, history) for cut in cuts]
            masses, covered = (np.concatenate(part) for part in zip(*parts, strict=True))
            return masses, covered
        earliest, latest = int(starts.min()), int(ends.max())
        if earliest < -FARTHEST or latest > FARTHEST:
            starts, ends = (np.clip(part, -FARTHEST, FARTHEST) for part in (starts, ends))
            earliest, latest = int(starts.min()), int(ends.max())
        table = hot
        if earliest < history.end_ns:
            table = joined([*(piece.table for piece in history.view(starts, ends)), hot])
        masses, covered = integrals(table, starts, ends)
        # An upper bound of the lengths suffices here: `_cut` checks each interval.
        cut = latest - earliest > self._longest_ns
        return self._cut(masses, starts, ends, (hot, history)) if cut else masses, covered

    def means(self, starts: Ints, ends: Ints) -> tuple[Floats, Ints]:
        """Time-weighted means in base units (a counter's growth per second), and covered ns; both 0 without rows."""
        masses, covered = self.integrals(starts, ends)
        unit = NS_PER_S if self._counter else 1
        return masses.astype(np.float64) * (self.signal.quantum * unit) / np.maximum(covered, 1), covered

    def maxima(self, starts: Ints, ends: Ints) -> tuple[Floats, Bools]:
        """Highest values in base units (a counter: rows' growth per second), and False for intervals without rows."""
        starts, ends = moments(starts, ends)
        scale = self.signal.quantum * (NS_PER_S if self._counter else 1)

        def read(hot: RowTable, history: BlockArchive) -> tuple[Floats, Bools]:
            pieces = [Piece(hot, None)]
            if len(starts) and int(starts.min()) < history.end_ns:
                pieces = [*history.view(starts, ends), *pieces]
            rows = [(t.starts, t.ends, t.peaks(slice(0, len(t.ends))) if peak is None else peak) for t, peak in pieces]
            first, last, peaks = (np.concatenate(part) for part in zip(*rows, strict=True))
            highest, covered = maxima((first, last, peaks), starts, ends)
            return highest * scale, covered

        return self.consistent(read)


def _oldest(hot: RowTable, history: BlockArchive) -> int | None:
    if len(history):
        return history.start_ns
    return int(hot.starts[0]) if len(hot.starts) else None


def _cumulative(t_ns: int, hot: RowTable, history: BlockArchive) -> Cumulative:
    if t_ns <= history.end_ns:
        return history.cumulative(t_ns)
    return hot.cumulative(t_ns) if len(hot.ends) else Cumulative(0, 0)


def moments(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The edges of intervals as int64 arrays. ValueError if they are no integers, differ in length or are reversed."""
    both = np.asarray(starts), np.asarray(ends)
    if any(part.dtype.kind not in "iu" and part.size for part in both) or both[0].shape != both[1].shape:
        raise ValueError("the edges of intervals are two arrays of whole ns, of the same length")
    a, b = (part.astype(np.int64, copy=False) for part in both)
    late = b < a
    if np.count_nonzero(late):
        worst = int(late.argmax())
        check_order(int(a[worst]), int(b[worst]))
    return a, b


def check_order(a_ns: int, b_ns: int) -> None:
    """ValueError if the interval ends before it starts, or an edge is NaN."""
    if not a_ns <= b_ns:
        raise ValueError(f"an interval ends before it starts: {a_ns} > {b_ns}")
