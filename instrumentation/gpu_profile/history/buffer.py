"""Where the rows of one signal lie: the newest in a buffer that may be shared, older ones in a history of this process.

The buffer has one writer and many readers. The writer publishes the length last, and moves rows only between two
increments of a generation number, which readers check before and after. That order holds where stores become visible in
the order in which they were made: between threads of one process always (the interpreter's lock orders them), between
processes on x86-64, whose stores are not reordered. Words of 8 aligned bytes are written whole. On ARM64 the hardware
may show another process the new length before the row that it counts: neither Python nor numpy can give a store release
semantics, and although the hundreds of instructions between two of the writer's stores make it unlikely, it is not
excluded there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from gpu_profile.errors import TimelineError
from gpu_profile.history.archive import History, Shared
from gpu_profile.history.rows import Ints, RowTable, wrap

T = TypeVar("T")
#: The rows in a buffer, and older ones.
State = tuple[RowTable, History]

#: Looks at a buffer whose rows are being moved, one after another, before its writer counts as dead: about a second.
PATIENCE: Final = 1_000_000
#: Reads that rows were moved under, one after another. A writer moves them once in hundreds of samples.
TORN: Final = 10_000
_FIELDS: Final = 5
_HEADER: Final = 8
_LENGTH, _FIRST, _GENERATION = 0, 1, 2
_WRAPS: Final = 1 << 63


class Buffer:
    """Rows over `memory`, which holds at least `Buffer.size(capacity)` bytes and starts zeroed.

    The newest `capacity` rows can be read. There is room for twice as many, so that rows are moved only now and then.
    With `older`, all rows that are there can be read, and rows that have to leave go on in a history: of at least
    `older` rows, and of none that ended more than `retention_ns` before the newest. A buffer of few rows leaves small
    blocks, each of which costs as much as hundreds of rows: one of fewer than `small` rows takes in the next. `name` is
    for messages.
    """

    # A sampler comes by ten times a second; by then the processor has forgotten where everything is, and what lies
    # together is found sooner.
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
            # numpy leaves fresh zeros to the kernel: pages cost memory only once rows are written to them.
            memory = np.zeros(self.size(capacity), np.uint8)
        words = np.frombuffer(memory, np.int64, count=self.size(capacity) // 8)
        self._header: Ints = words[:_HEADER]
        self._rows: Ints = words[_HEADER:].reshape(_FIELDS, 2 * capacity)
        _, self._ends, _, self._masses, covered = self._rows
        # The writer's way in: a memoryview takes half of numpy's time for a word, and stores it whole too.
        self._words: Any = words.data
        self._counter = counter
        self._older = older
        self._retention_ns = retention_ns
        self._small = small
        self._history = History.empty(counter=counter)
        #: Called when the buffer is full, with the moment up to which rows should leave it.
        self.when_full: Callable[[int], None] = self.seal
        # A writer may take over a buffer with rows in it: its sums go on, modulo 2^64.
        last = int(self._header[_LENGTH]) - 1
        self._last_end = int(self._ends[last]) if last >= 0 else None
        self.total_mass = int(self._masses[last]) if last >= 0 else 0
        self.total_covered_ns = int(covered[last]) if last >= 0 else 0

    @staticmethod
    def size(capacity: int) -> int:
        """Bytes that `capacity` rows need."""
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
        """Whether rows must leave before another one comes."""
        return self._header.item(_LENGTH) == 2 * self.capacity

    def ready(self, until_ns: int) -> int:
        """How many rows in the buffer end by `until_ns`."""
        return int(self._hot().ends.searchsorted(until_ns, "right"))

    def seal(self, until_ns: int, shared: Shared | None = None) -> None:
        """Move the rows that end by `until_ns` out of the buffer, into the history if there is one.

        Columns that are sealed up to the same moment share the moments at which their rows end through `shared`.
        """
        hot = self._hot()
        # The newest row stays, so that a column with rows always has one here.
        leaving = max(0, min(int(hot.ends.searchsorted(until_ns, "right")), len(hot.ends) - 1))
        first, length = int(self._header[_FIRST]), int(self._header[_LENGTH])
        # One row more than can be read is kept: the sums of the oldest row start where those before it ended.
        keep = first + leaving - 1
        if keep < 0 or (not leaving and not keep):
            return
        history, gone = self._history, []
        if self._older is not None and leaving:
            out = hot.between(0, leaving)
            # Rows that leave before the buffer is full, for another column's sake, are still among the newest.
            wanted = self._older + self.capacity - (len(hot.ends) - leaving)
            if wanted > 0:
                history = history.with_block(out, [] if shared is None else shared, self._small)
                since = None if self._retention_ns is None else int(hot.ends[-1]) - self._retention_ns
                surplus = history.surplus(wanted, since)
            else:
                surplus = len(history)
                gone = [out]
            if self._watched():
                gone = [*(history.table(k) for k in range(surplus)), *gone]
            history = history.without(surplus)
        self._leave(gone)
        self._move(lambda: self._take_rows(keep, length), history)

    def _take_rows(self, keep: int, length: int) -> None:
        self._rows[:, : length - keep] = self._rows[:, keep:length]
        self._words[_FIRST], self._words[_LENGTH] = 1, length - keep

    def _restart(self, end_ns: int) -> None:
        """Forget all rows; the next one is the first of a new count of time."""
        hot, history = self._hot(), self._history
        # Rows up to the new present are as good as any that leave, others are of a time that is still to come.
        known = [history.table(k) for k in range(len(history))] + [hot] if self._watched() else []
        self._leave([table.between(0, int(table.ends.searchsorted(end_ns, "right"))) for table in known])

        def clear() -> None:
            # The first row's sums go on from one before it that is never read.
            self._rows[:, 0] = (end_ns, end_ns, 0, wrap(self.total_mass), wrap(self.total_covered_ns))
            self._words[_FIRST] = self._words[_LENGTH] = 1

        self._move(clear, History.empty(counter=self._counter))
        self._last_end = None

    def _move(self, move: Callable[[], None], history: History) -> None:
        """Change rows that readers may be looking at."""
        self._words[_GENERATION] += 1
        try:
            move()
            self._history = history
            self._left()
        finally:
            self._words[_GENERATION] += 1

    def _watched(self) -> bool:
        """Whether anybody wants the rows that are let go of."""
        return False

    def _leave(self, gone: Sequence[RowTable]) -> None:
        """Rows are about to be let go of."""

    def _left(self) -> None:
        """They are gone; readers wait while this runs."""

    # ------------------------------------------------------------------ reading

    def _hot(self) -> RowTable:
        first, length = self._header.item(_FIRST), self._header.item(_LENGTH)
        before = self._masses.item(first - 1) if first else 0
        starts, ends, values, masses, covered = self._rows[:, first:length]
        return RowTable(starts, ends, values, masses, covered, before, self._counter)

    def consistent(self, read: Callable[[RowTable, History], T]) -> T:
        """`read(rows in the buffer, older ones)` without rows moving under it, which may take several reads.

        Raises TimelineError if the writer seems to have died between its two marks.
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
                # Half-moved rows can look like anything.
                if before == int(header[_GENERATION]):
                    raise
            else:
                if before == int(header[_GENERATION]):
                    return result
            torn += 1
            if torn == TORN:
                break
        raise TimelineError(
            f"{self.name}: its rows have been moving for too long: their writer died half-way, or writes faster than "
            "this process reads; start the writer anew with an empty buffer"
        )

    def __len__(self) -> int:
        return self.consistent(lambda hot, history: len(hot.ends) + history.rows)

    @property
    def watermark_ns(self) -> int | None:
        """The end of the newest row; None while there is none."""
        row = self.newest_row()
        return None if row is None else row[1]

    def newest_row(self) -> tuple[int, int, int] | None:
        """Start, end and value of the newest row; None while there is none."""
        words, room = self._words, 2 * self.capacity
        before, length = words[_GENERATION], words[_LENGTH]
        if words[_FIRST] < length:
            place = _HEADER + length - 1
            row = words[place], words[place + room], words[place + 2 * room]
            if not before & 1 and before == words[_GENERATION]:
                return row
        return self.consistent(_newest)


def _newest(hot: RowTable, _: History) -> tuple[int, int, int] | None:
    return (int(hot.starts[-1]), int(hot.ends[-1]), int(hot.values[-1])) if len(hot.ends) else None
