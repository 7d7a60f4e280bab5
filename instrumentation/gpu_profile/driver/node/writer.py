"""Writes the file of one device, in the process that reads the GPU. No file is ever opened for writing again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.node.layout import (
    LONGEST_AGE_NS,
    LONGEST_WINDOW_NS,
    SUFFIX,
    Head,
    RowRing,
    pack_head,
    streams_for,
    windows_of,
)

_HIGHEST: Final = 1 << 63
_HIGHEST_VALUE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class RingOptions:
    """Directory, mode and group (None: this process's) of new files, and the time for which they keep samples.

    `periods_ns`: the period of each tier. `counters_ns`: the shortest period of `SLOW_COUNTERS`.
    """

    directory: Path
    periods_ns: Mapping[Tier, int]
    retention_ns: int
    counters_ns: int = 0
    mode: int = 0o644
    group: int | None = None


class RingWriter:
    """A new file for the samples of one device with these signals. OSError if it cannot be created.

    Rows are written with `pwrite`, not through a mapping: a full file system then causes an OSError, not a SIGBUS.
    """

    def __init__(self, options: RingOptions, uuid: str, signals: Iterable[Signal], now_ns: int) -> None:
        self.signals = tuple(signals)
        streams = streams_for(
            self.signals,
            periods_ns=options.periods_ns,
            counters_ns=options.counters_ns,
            retention_ns=options.retention_ns,
        )
        self.generation = secrets.randbits(64)
        self.name = f"{self.generation:016x}{SUFFIX}"
        path = options.directory / self.name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        try:
            head = pack_head(Head(uuid, self.generation, now_ns, streams))
            os.ftruncate(self._fd, max([len(head), *(stream.end for stream in streams)]))
            if os.pwrite(self._fd, head, 0) != len(head):
                raise OSError(f"{path}: no room for its header")
            if options.group is not None:
                os.fchown(self._fd, -1, options.group)
            os.fchmod(self._fd, options.mode)
        except BaseException:
            os.close(self._fd)
            path.unlink()
            raise
        self._places: dict[Signal, tuple[_RowBuilder, int, bool]] = {}
        for stream in streams:
            writing, cell = _RowBuilder(stream), 0
            for column in stream.columns:
                if column.signal is not None:
                    window = column.kind == b"w"
                    cell += stream.aged + window
                    self._places.setdefault(column.signal, (writing, cell, window))
                    cell += 1

    @property
    def removed(self) -> bool:
        """Whether the file was unlinked, so that no reader can open it."""
        return not os.fstat(self._fd).st_nlink

    def append(self, samples: Iterable[Sample]) -> None:
        """Write samples, without those of other signals. OSError if they cannot be written.

        Samples of one signal must be in the order of time.
        """
        places = self._places
        touched: dict[_RowBuilder, None] = {}
        long: list[tuple[int, int, _RowBuilder, int, int]] = []
        for signal, start, end, value in samples:
            place = places.get(signal)
            if place is None:
                continue
            writing, cell, window = place
            touched[writing] = None
            if window:
                if not -_HIGHEST_VALUE < value < _HIGHEST_VALUE:
                    continue
                if long or end - start > LONGEST_WINDOW_NS:
                    long += [(until, length, writing, cell, value) for until, length in windows_of(start, end)]
                else:
                    self._put_window(writing, cell, end, max(0, end - start), value)
            elif -_HIGHEST < value < (_HIGHEST_VALUE if writing.narrow[cell] else _HIGHEST):
                self._begin(writing, cell, cell - 1, end)
                writing.cells[cell] = value
        # Sorted by their ends, so that parts of several signals share rows.
        for end, length, writing, cell, value in sorted(long, key=itemgetter(0)):
            self._put_window(writing, cell, end, length, value)
        for writing in touched:
            if writing.filled:
                self._write(writing)

    def _put_window(self, writing: _RowBuilder, cell: int, end: int, length: int, value: int) -> None:
        if writing.repeated:
            # Shift the earlier samples: the last one ends with the row.
            cells = writing.cells
            if writing.filled == writing.repeated or (writing.filled and end - length != writing.end):
                self._write(writing)
                cells = writing.cells
            cells[:-2] = cells[2:]
            cells[-2:] = length, value
            writing.filled, writing.end = writing.filled + 1, end
        else:
            self._begin(writing, cell, cell - 2, end)
            writing.cells[cell - 1], writing.cells[cell] = length, value

    def _begin(self, writing: _RowBuilder, cell: int, age: int, end: int) -> None:
        """Make room for a sample that ended at `end`, in the current row if it fits, else in the next row.

        `cell` and `age` are the indices of its value and of its age.
        """
        if writing.filled:
            first, last = min(end, writing.first), max(end, writing.end)
            longest = LONGEST_AGE_NS if writing.stream.aged else 0
            if last - first > longest or writing.cells[cell] != writing.stream.absent[cell]:
                self._write(writing)
        if not writing.filled:
            writing.first = writing.end = end
        writing.first, writing.end, writing.filled = min(end, writing.first), max(end, writing.end), 1
        if writing.stream.aged:
            writing.ends[age] = end

    def _write(self, writing: _RowBuilder) -> None:
        stream, sequence = writing.stream, writing.sequence
        for age, end in writing.ends.items():
            writing.cells[age] = writing.end - end
        body = stream.body.pack(sequence, writing.end, *writing.cells)
        row = body + stream.check(body, self.generation).to_bytes(8, "little")
        writing.cells, writing.ends, writing.filled = stream.absent.copy(), {}, 0
        if os.pwrite(self._fd, row, stream.offset + (sequence - 1) % stream.slots * stream.row.size) != len(row):
            raise OSError(f"{self.name}: a row was cut off")
        writing.sequence = sequence + 1  # only now: a failed write leaves no gap

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _RowBuilder:
    """The current row of a stream, before it is written."""

    __slots__ = ("cells", "end", "ends", "filled", "first", "narrow", "repeated", "sequence", "stream")

    def __init__(self, stream: RowRing) -> None:
        self.stream = stream
        self.cells = stream.absent.copy()
        #: Ends of its samples by the index of their age, if the stream has ages; the earliest and the latest end.
        self.ends: dict[int, int] = {}
        self.first = self.end = self.filled = 0
        self.sequence = 1
        #: `repeated`: columns of the stream's only signal if it has several, else 0. `narrow`: cells of 4 bytes.
        same = {column.key for column in stream.columns}
        self.repeated = len(stream.columns) if len(same) == 1 < len(stream.columns) else 0
        before = {b"c": [True] * stream.aged, b"i": [True] * stream.aged, b"w": [True] * (1 + stream.aged)}
        self.narrow = [narrow for c in stream.columns for narrow in (*before[c.kind], c.kind != b"c")]
