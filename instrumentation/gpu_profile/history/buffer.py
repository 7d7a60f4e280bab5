"""The rows of one signal: the newest in a buffer that can be shared, older ones in a history of this process.

The buffer has one writer and many readers. The writer publishes the length last. It moves rows only between two
increments of a generation number, which readers check before and after. The protocol requires that readers see stores
in program order. Threads of one process do, by the interpreter's lock. Processes on x86-64 do, as its stores are not
reordered. Aligned words of 8 bytes are written atomically. On ARM64, another process may see the new length before the
row that it counts. Neither Python nor numpy can give a store release semantics. The hundreds of instructions between
two of the writer's stores make it unlikely, but do not exclude it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from gpu_profile.errors import TimelineError
from gpu_profile.history.archive import BlockArchive, Shared
from gpu_profile.history.rows import Ints, RowTable, wrap

T = TypeVar("T")
#: The rows in a buffer, and older ones.
State = tuple[RowTable, BlockArchive]

#: Attempts to read while rows are being moved, before the writer counts as dead: about a second.
PATIENCE: Final = 1_000_000
#: Reads that were interrupted by a move, before reading fails. A writer moves rows once in hundreds of samples.
TORN: Final = 10_000
_FIELDS: Final = 5
_HEADER: Final = 8
_LENGTH, _FIRST, _GENERATION = 0, 1, 2
_WRAPS: Final = 1 << 63


class Buffer:
    """Rows in `memory`, which has at least `Buffer.size(capacity)` bytes and starts zeroed.

    The newest `capacity` rows can be read. The buffer has room for twice as many, so that rows are rarely moved. With
    `older`, all rows in the buffer can be read, and rows that leave it enter a history. The history keeps at least
    `older` rows, but none that ended more than `retention_ns` before the newest. A small buffer produces small blocks,
    and each block costs as much memory as hundreds of rows. A block of fewer than `small` rows is therefore merged with
    the next. `name` is for messages.
    """

    # A sampler writes ten times a second. By then the words have left the processor's cache, and adjacent words are
    # fetched faster.
    __slots__ = (
        "_counter",
        "_ends",
        "_header",
        "_history",
        "_last_end",
        "_masses",
        "_older",
        "_retention_ns",
        "_rows",
        "_small",
        "_words",
        "capacity",
        "name",
        "total_covered_ns",
        "total_mass",
        "when_full",
    )

    def __init__(
        self,
        name: str,
        capacity: int,
        memory: Any = None,
        *,
        counter: bool,
        older: int | None = None,
        retention_ns: int | None = None,
        small: int = 0,
    ) -> None:
        if capacity < 2:
            raise ValueError(f"{name}: a column needs room for at least 2 rows, not {capacity}")
        self.name = name
        self.capacity = capacity
        if memory is None:
            # The kernel supplies numpy's zeros: pages use memory only after rows are written to them.
            memory = np.zeros(self.size(capacity), np.uint8)
        words = np.frombuffer(memory, np.int64, count=self.size(capacity) // 8)
        self._header: Ints = words[:_HEADER]
        self._rows: Ints = words[_HEADER:].reshape(_FIELDS, 2 * capacity)
        _, self._ends, _, self._masses, covered = self._rows
        # The writer uses a memoryview, which takes half of numpy's time for a word and also stores it atomically.
        self._words: Any = words.data
        self._counter = counter
        self._older = older
        self._retention_ns = retention_ns
        self._small = small
        self._history = BlockArchive.empty(counter=counter)
        #: Called when the buffer is full, with the moment up to which rows should leave it.
        self.when_full: Callable[[int], None] = self.seal
        # A writer may take over a buffer that contains rows: its sums continue, modulo 2^64.
        last = int(self._header[_LENGTH]) - 1
        self._last_end = int(self._ends[last]) if last >= 0 else None
        self.total_mass = int(self._masses[last]) if last >= 0 else 0
        self.total_covered_ns = int(covered[last]) if last >= 0 else 0

    @staticmethod
    def size(capacity: int) -> int:
        """The bytes that a buffer of this capacity needs."""
        return 8 * (_HEADER + _FIELDS * 2 * capacity)

    # ------------------------------------------------------------------ writing

    def _push(self, start: int, end: int, value: int, mass: int) -> None:
        words, room = self._words, 2 * self.capacity
        length = words[_LENGTH]
        if length == room:
            self.when_full(self._ends.item(self.capacity - 1))
            length = words[_LENGTH]
        self.total_mass = mass = self.total_mass + mass
        self.total_covered_ns = covered = self.total_covered_ns + end - start
        place = _HEADER + length
        words[place] = start
        place += room
        words[place] = end
        place += room
        words[place] = value
        place += room
        words[place] = mass if -_WRAPS <= mass < _WRAPS else wrap(mass)
        place += room
        words[place] = covered if covered < _WRAPS else wrap(covered)
        words[_LENGTH] = length + 1
        if self._older is None and length >= self.capacity:
            words[_FIRST] = max(words[_FIRST], length + 1 - self.capacity)
        self._last_end = end

    @property
    def full(self) -> bool:
        """Whether rows must leave before the next one is added."""
        return self._header.item(_LENGTH) == 2 * self.capacity

    def ready(self, until_ns: int) -> int:
        """The number of rows in the buffer that end by `until_ns`."""
        return int(self._hot().ends.searchsorted(until_ns, "right"))

    def seal(self, until_ns: int, shared: Shared | None = None) -> None:
        """Move the rows that end by `until_ns` out of the buffer, into the history if there is one.

        Columns that are sealed up to the same moment share the ends of their rows through `shared`.
        """
        hot = self._hot()
        # The newest row stays, so that the buffer of a column with rows is never empty.
        leaving = max(0, min(int(hot.ends.searchsorted(until_ns, "right")), len(hot.ends) - 1))
        first, length = int(self._header[_FIRST]), int(self._header[_LENGTH])
        # One row more than can be read is kept: the sums of the oldest row start from the sums of the row before it.
        keep = first + leaving - 1
        if keep < 0 or (not leaving and not keep):
            return
        history, gone = self._history, []
        if self._older is not None and leaving:
            out = hot.between(0, leaving)
            # Rows may leave early, together with another column's. They still count as part of the buffer's `capacity`.
            wanted = self._older + self.capacity - (len(hot.ends) - leaving)
            if wanted > 0:
                history = history.with_block(out, [] if shared is None else shared, self._small)
                since = None if self._retention_ns is None else int(hot.ends[-1]) - self._retention_ns
                surplus = history.surplus(wanted, since)
            else:
                surplus = len(history)
                gone = [out]
            if self._needs_discarded():
                gone = [*(history.table(k) for k in range(surplus)), *gone]
            history = history.without(surplus)
        self._before_discard(gone)
        self._move(lambda: self._take_rows(keep, length), history)

    def _take_rows(self, keep: int, length: int) -> None:
        self._rows[:, : length - keep] = self._rows[:, keep:length]
        self._words[_FIRST], self._words[_LENGTH] = 1, length - keep

    def _restart(self, end_ns: int) -> None:
        """Discard all rows: the clock was set back to `end_ns`."""
        hot, history = self._hot(), self._history
        # Anchors absorb the rows up to the new present. Later rows are in the future now.
        tables = [history.table(k) for k in range(len(history))] + [hot] if self._needs_discarded() else []
        self._before_discard([table.between(0, int(table.ends.searchsorted(end_ns, "right"))) for table in tables])

        def clear() -> None:
            # The next row's sums continue from a row before it that is never read.
            self._rows[:, 0] = (end_ns, end_ns, 0, wrap(self.total_mass), wrap(self.total_covered_ns))
            self._words[_FIRST] = self._words[_LENGTH] = 1

        self._move(clear, BlockArchive.empty(counter=self._counter))
        self._last_end = None

    def _move(self, move: Callable[[], None], history: BlockArchive) -> None:
        """Change rows that readers may be reading, between two increments of the generation."""
        self._words[_GENERATION] += 1
        try:
            move()
            self._history = history
            self._after_discard()
        finally:
            self._words[_GENERATION] += 1

    def _needs_discarded(self) -> bool:
        """Whether a subclass needs the rows that are discarded."""
        return False

    def _before_discard(self, gone: Sequence[RowTable]) -> None:
        """Called before rows are discarded."""

    def _after_discard(self) -> None:
        """Called once they are discarded. Readers wait while this runs."""

    # ------------------------------------------------------------------ reading

    def _hot(self) -> RowTable:
        first, length = self._header.item(_FIRST), self._header.item(_LENGTH)
        before = self._masses.item(first - 1) if first else 0
        starts, ends, values, masses, covered = self._rows[:, first:length]
        return RowTable(starts, ends, values, masses, covered, before, self._counter)

    def consistent(self, read: Callable[[RowTable, BlockArchive], T]) -> T:
        """The result of `read(rows in the buffer, history)`. Reads again if rows were moved meanwhile.

        TimelineError if rows are always moving: the writer died between its two increments, or is too fast.
        """
        header, torn = self._header, 0
        for _ in range(PATIENCE):
            before = int(header[_GENERATION])
            if before & 1:
                os.sched_yield()
                continue
            try:
                result = read(self._hot(), self._history)
            except (IndexError, ValueError):
                # Half-moved rows can contain anything.
                if before == int(header[_GENERATION]):
                    raise
            else:
                if before == int(header[_GENERATION]):
                    return result
            torn += 1
            if torn == TORN:
                break
        raise TimelineError(
            f"{self.name}: its rows have been moving for too long: their writer died while moving them, or writes "
            "faster than this process reads; restart the writer with an empty buffer"
        )

    def __len__(self) -> int:
        return self.consistent(lambda hot, history: len(hot.ends) + history.rows)

    @property
    def watermark_ns(self) -> int | None:
        """The end of the newest row; None without rows."""
        row = self.newest_row()
        return None if row is None else row[1]

    def newest_row(self) -> tuple[int, int, int] | None:
        """Start, end and value of the newest row; None without rows."""
        words, room = self._words, 2 * self.capacity
        before, length = words[_GENERATION], words[_LENGTH]
        if words[_FIRST] < length:
            place = _HEADER + length - 1
            row = words[place], words[place + room], words[place + 2 * room]
            if not before & 1 and before == words[_GENERATION]:
                return row
        return self.consistent(_newest)


def _newest(hot: RowTable, _: BlockArchive) -> tuple[int, int, int] | None:
    return (int(hot.starts[-1]), int(hot.ends[-1]), int(hot.values[-1])) if len(hot.ends) else None
