"""Writes the file of one device, in the process that reads the GPU. No file is ever opened for writing again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.node.layout import (
    LONGEST_AGE_NS,
    LONGEST_WINDOW_NS,
    NO_COUNT,
    NO_VALUE,
    SUFFIX,
    Head,
    RowRing,
    hold_ns,
    pack_head,
    streams_for,
    windows_of,
)


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
        self._hold_ns = hold_ns(options.periods_ns, options.counters_ns)
        streams = streams_for(
            self.signals,
            periods_ns=options.periods_ns,
            counters_ns=options.counters_ns,
            retention_ns=options.retention_ns,
        )
        self.generation = int.from_bytes(os.urandom(8))  # `secrets` takes 1 MiB of RAM
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
        self._rows = [_RowBuilder(stream) for stream in streams]
        self._places = {place.signal: place for row in self._rows for place in row.places}

    @property
    def removed(self) -> bool:
        """Whether the file was unlinked, so that no reader can open it."""
        return not os.fstat(self._fd).st_nlink

    def append(self, samples: Iterable[Sample]) -> None:
        """Write the samples of this file's signals. OSError if they cannot be written.

        Samples of one signal must be in the order of time. A row with room waits for the next calls, until it is full
        or a call's newest sample is later by the period of the slow counters.
        """
        newest = 0
        long: list[tuple[int, int, _Place, int]] = []
        for signal, start, end, value in samples:
            place = self._places.get(signal)
            if place is None or not place.lowest < value < -place.lowest:
                continue
            newest = max(newest, end)
            if place.window and (long or end - start > LONGEST_WINDOW_NS):
                long += [(until, length, place, value) for until, length in windows_of(start, end)]
            else:
                self._put(place, end, max(0, end - start), value)
        # Sorted by their ends, so that parts of several signals share rows.
        for end, length, place, value in sorted(long, key=itemgetter(0)):
            self._put(place, end, length, value)
        for row in self._rows:
            # The end of a batch that is longer than a row does not wait: the next batch may come in a second.
            if row.filled and (row.full or row.puts > row.capacity or newest - (row.begun or newest) >= self._hold_ns):
                self._write(row)
            row.puts = 0
            if row.filled:
                row.begun = row.begun or newest

    def _put(self, place: _Place, end: int, length: int, value: int) -> None:
        row = place.row
        if row.filled and not row.has_room(place, end, length):
            self._write(row)
        row.put(place, end, length, value)

    def flush(self) -> None:
        """Write the rows that wait for more samples. OSError if they cannot be written."""
        for row in self._rows:
            if row.filled:
                self._write(row)

    def _write(self, row: _RowBuilder) -> None:
        sequence, stream = row.sequence, row.stream
        body = row.taken()
        data = body + stream.check(body, self.generation).to_bytes(8, "little")
        if os.pwrite(self._fd, data, stream.offset + (sequence - 1) % stream.slots * stream.row.size) != len(data):
            raise OSError(f"{self.name}: a row was cut off")
        row.sequence = sequence + 1  # only now: a failed write leaves no gap

    def close(self) -> None:
        """Close the file, after a last attempt to write the rows that wait. Closing twice is fine."""
        if self._fd >= 0:
            with suppress(OSError):
                self.flush()
            os.close(self._fd)
            self._fd = -1


class _Place:
    """The cells of one signal in a stream's rows: the indices of its values, of which `used` have a sample."""

    __slots__ = ("cells", "lowest", "row", "signal", "used", "window")

    def __init__(self, row: _RowBuilder, signal: Signal, kind: bytes) -> None:
        self.row, self.signal, self.window = row, signal, kind == b"w"
        self.lowest = NO_COUNT if kind == b"c" else NO_VALUE
        self.cells: list[int] = []
        self.used = 0


class _RowBuilder:
    """The current row of a stream, before it is written."""

    __slots__ = (
        "begun", "capacity", "cells", "end", "ends", "filled", "first", "full", "places", "puts", "sequence", "stream"
    )  # fmt: skip

    def __init__(self, stream: RowRing) -> None:
        self.stream = stream
        places: dict[Signal, _Place] = {}
        cell = 0
        for _, kind, signal in stream.columns:
            cell += stream.aged + (kind == b"w")
            if signal is not None:
                places.setdefault(signal, _Place(self, signal, kind)).cells.append(cell)
            cell += 1
        self.places = list(places.values())
        self.sequence = 1
        self.cells = stream.absent.copy()
        #: Ends of its samples by the index of their age, if the stream has ages; the earliest and the latest end.
        self.ends: dict[int, int] = {}
        self.first = self.end = 0
        #: Whether it has a sample, and whether a signal has no free column.
        self.filled = self.full = False
        #: The number of its columns, and of the samples that the current call has brought.
        self.capacity, self.puts = len(stream.columns), 0
        #: The newest sample's end in the call that began it; 0 before the end of that call.
        self.begun = 0

    def has_room(self, place: _Place, end: int, length: int) -> bool:
        """Whether a sample fits into the row."""
        if place.used == len(place.cells):
            return False
        if self.stream.aged:
            return max(end, self.end) - min(end, self.first) <= LONGEST_AGE_NS
        return end - length == self.end if place.used else end == self.end

    def put(self, place: _Place, end: int, length: int, value: int) -> None:
        """Add a sample. There must be room for it."""
        cell = place.cells[place.used]
        place.used += 1
        self.cells[cell] = value
        if place.window:
            self.cells[cell - 1] = length
        if self.stream.aged:
            self.ends[cell - 1 - place.window] = end
        self.first, self.end = (min(end, self.first), max(end, self.end)) if self.filled else (end, end)
        self.filled, self.full = True, self.full or place.used == len(place.cells)
        self.puts += 1

    def taken(self) -> bytes:
        """The row without its check. The next one begins empty."""
        for age, end in self.ends.items():
            self.cells[age] = self.end - end
        body = self.stream.body.pack(self.sequence, self.end, *self.cells)
        self.cells, self.ends, self.filled, self.full = self.stream.absent.copy(), {}, False, False
        self.begun = 0
        for place in self.places:
            place.used = 0
        return body
