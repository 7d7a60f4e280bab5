"""Append-only columns with a bounded length: the rows that viewers receive, each once."""

from __future__ import annotations

import base64
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

#: Samples older than this, compared with the newest one, are dropped; executions, compared with the present.
KEEP_MS: Final = 300_000.0
#: Rows of one strand at most: 50 a second, as some drivers buffer power.
MOST_ROWS: Final = 16_000
#: Rows are dropped in steps, because each step moves all others.
_SLACK_MS: Final = 15_000.0
_SLACK_ROWS: Final = 500

#: A signal's rows: end in ms since the epoch, length in ms, mean in the signal's base unit.
SAMPLES: Final = {"t": "d", "d": "f", "v": "f"}
#: Executions: end, length, number of the region's name, executions in the block, and its filled share in 255ths.
BLOCKS: Final = {"t": "d", "d": "f", "region": "H", "n": "I", "fill": "B"}


class NumberStrand:
    """Columns of numbers, by name and type code of `array`, of at most `most` rows. The first one is the time in ms.

    Times ascend, except that late executions come after newer ones.
    """

    __slots__ = ("_appends", "_columns", "_most", "_times", "dropped")

    def __init__(self, columns: Mapping[str, str], most: int = MOST_ROWS) -> None:
        self._columns: dict[str, array[float]] = {name: array(code) for name, code in columns.items()}
        self._times = next(iter(self._columns.values()))
        self._appends = [column.append for column in self._columns.values()]
        self._most, self.dropped = most, 0

    @property
    def total(self) -> int:
        """The number of rows so far, dropped ones included."""
        return self.dropped + len(self._times)

    @property
    def newest_ms(self) -> float:
        """The time of the newest row; 0 without rows."""
        return self._times[-1] if self._times else 0.0

    def append(self, *row: float) -> None:
        """Add a row. Drops rows that are too old compared with it, and the oldest of too many."""
        for append, value in zip(self._appends, row, strict=True):
            append(value)
        self._trim()

    def extend(self, *columns: Iterable[float]) -> None:
        """Add rows, column by column. Drops rows as `append`."""
        for column, values in zip(self._columns.values(), columns, strict=True):
            column.extend(values)
        if self._times:
            self._trim()

    def _trim(self) -> None:
        times = self._times
        if times[-1] - times[0] > KEEP_MS + _SLACK_MS or len(times) > self._most + _SLACK_ROWS:
            self._drop(max(self._older(times[-1] - KEEP_MS), len(times) - self._most))

    def rows(self) -> Iterator[tuple[float, ...]]:
        """The rows, the oldest first."""
        return zip(*self._columns.values(), strict=True)

    def expire(self, before_ms: float) -> None:
        """Drop the rows before this time. Without a need to drop them, rows stay up to 15 s longer."""
        if self._times and before_ms - self._times[0] > _SLACK_MS:
            self._drop(self._older(before_ms))

    def _older(self, than_ms: float) -> int:
        """The number of rows at the beginning that are older."""
        return next((place for place, time_ms in enumerate(self._times) if time_ms > than_ms), len(self._times))

    def _drop(self, first: int) -> None:
        for column in self._columns.values():
            del column[:first]
        self.dropped += first

    def values(self, column: str) -> frozenset[float]:
        """The different values in a column."""
        return frozenset(self._columns[column])

    def prepend(self, older: NumberStrand) -> bool:
        """Insert the rows of `older` before the first one here. If there are any, the numbers of rows begin anew."""
        end = bisect_left(older._times, self._times[0]) if self._times else len(older._times)
        if not end:
            return False
        for name, column in self._columns.items():
            column[:0] = older._columns[name][:end]
        self.dropped = 0
        return True

    def part(self, first: int, last: int) -> dict[str, str]:
        """The rows from number `first` on and before number `last`, as little-endian numbers in base 64."""
        rows = slice(max(0, first - self.dropped), max(0, last - self.dropped))
        return {
            name: base64.b64encode(column[rows].tobytes()).decode("ascii") for name, column in self._columns.items()
        }


class RowStrand:
    """Rows of JSON, at most `most` of them."""

    __slots__ = ("_most", "_rows", "dropped")

    def __init__(self, most: int) -> None:
        self._rows: list[Any] = []
        self._most = most
        self.dropped = 0

    @property
    def total(self) -> int:
        """The number of rows so far, dropped ones included."""
        return self.dropped + len(self._rows)

    def append(self, row: Any) -> None:
        """Add a row. Drops the oldest one if there are too many."""
        self._rows.append(row)
        if len(self._rows) > self._most:
            del self._rows[0]
            self.dropped += 1

    def part(self, first: int, last: int) -> list[Any]:
        """The rows from number `first` on and before number `last`."""
        return self._rows[max(0, first - self.dropped) : max(0, last - self.dropped)]
