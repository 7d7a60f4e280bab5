"""Reads the new rows of a file of the node's timeline."""

from __future__ import annotations

import os
import stat
import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample, plain_sample
from gpu_profile.driver.node.layout import LONGEST_HEAD, NO_COUNT, NO_VALUE, LayoutError, RowRing, read_head

#: Rows of one system call: at first a few, because nearly always two or three are new, then many.
_FEW: Final = 8
_MANY: Final = 512
_SEQUENCE: Final = struct.Struct("<Q")


class RingReader:
    """A file, opened for reading. LayoutError if its content is invalid, OSError if it cannot be opened.

    `wants`: the filter of signals. The first `read` returns all samples of the file, unless `skip` was called.
    """

    def __init__(self, path: Path, *, wants: Callable[[Signal], bool] = lambda _: True) -> None:
        # Another user of the directory could put a pipe there. O_NONBLOCK keeps the open from blocking.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise LayoutError("not a regular file")
            head = read_head(os.pread(self._fd, LONGEST_HEAD, 0), status.st_size)
            self.uuid, self.generation, self.created_ns = head.uuid, head.generation, head.created_ns
            self._streams = [
                stream for each in head.streams if (stream := _Cursor(self._fd, each, head.generation, wants)).signals
            ]
        except BaseException:
            os.close(self._fd)
            raise
        self.signals = frozenset(signal for stream in self._streams for signal in stream.signals)

    def read(self) -> list[Sample]:
        """The new samples, those of each signal with the oldest first. OSError if the file cannot be read."""
        samples: list[Sample] = []
        for stream in self._streams:
            stream.read_into(samples)
        return samples

    def skip(self, since_ns: int | None = None) -> None:
        """Skip the rows that ended before `since_ns`; without it, all that existed when the file was opened.

        The newest row of each stream is never skipped.
        """
        for stream in self._streams:
            stream.skip(since_ns)

    @property
    def lost(self) -> int:
        """Rows that were overwritten before they were read, or are damaged."""
        return sum(stream.lost for stream in self._streams)

    def newest_ns(self, now_ns: int) -> int:
        """The end of the newest row that existed at the start or was read since; 0 without rows.

        Of several streams, the end that is nearest to `now_ns`: the clock may have been set back since others had rows.
        """
        return min((stream.newest_ns for stream in self._streams), key=lambda end_ns: abs(now_ns - end_ns), default=0)

    def close(self) -> None:
        """Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Cursor:
    """The position of the reader in one stream."""

    def __init__(self, fd: int, stream: RowRing, generation: int, wants: Callable[[Signal], bool]) -> None:
        self._fd, self._stream, self._generation = fd, stream, generation
        self.lost = 0
        #: The number of an invalid row before a valid one. It is read once more before it counts as lost.
        self._doubtful = 0
        #: Indices of cells in a row: of counters and instants, with their marks of an absent sample; of window means.
        self._readings: list[tuple[int, Signal, int]] = []
        self._windows: list[tuple[int, Signal]] = []
        at = 2
        for _, kind, signal in stream.columns:
            at += stream.aged
            if signal is not None and wants(signal):
                if kind == b"w":
                    self._windows.append((at, signal))
                else:
                    self._readings.append((at, signal, NO_COUNT if kind == b"c" else NO_VALUE))
            at += 1 + (kind == b"w")
        self.signals = {signal for _, signal, _ in self._readings} | {signal for _, signal in self._windows}
        #: Whether the samples of a row are consecutive windows of one signal.
        self._follow = len(self._windows) > 1 == len(self.signals) and not stream.aged
        self._first_newest = newest = self._newest() if self.signals else 0
        self.newest_ns = self._end_of(newest) if newest else 0
        self._next = max(1, newest - stream.slots + 2)

    def skip(self, since_ns: int | None) -> None:
        """Continue with the first row since then, at the latest with the newest when the file was opened."""
        number = self._first_newest
        if since_ns is not None and number > self._next:
            # Rows are in the order of time. A damaged one is taken for an old one.
            number = self._next + bisect_left(range(self._next, number), since_ns, key=self._end_of)
        self._next = max(self._next, number)

    def read_into(self, samples: list[Sample]) -> None:
        """Append the samples of the new rows."""
        count = _FEW
        while self._read_some(samples, count):
            count = _MANY

    def _read_some(self, samples: list[Sample], count: int) -> bool:
        """Read at most `count` rows. True if there may be more."""
        stream, number = self._stream, self._next
        slot = (number - 1) % stream.slots
        count = min(count, stream.slots - slot)
        size = stream.row.size
        data = memoryview(os.pread(self._fd, count * size, stream.offset + slot * size))
        if len(data) < size:  # the file was truncated
            return False
        for at in range(0, len(data) - size + 1, size):
            (sequence,) = _SEQUENCE.unpack_from(data, at)
            if sequence == number:
                row = self._row(data, at)
                if row is not None:
                    self._take(row, samples)
                    number += 1
                    continue
            if sequence > number and (sequence - number) % stream.slots == 0 and self._row(data, at) is not None:
                # The writer has overtaken this reader. It may overwrite the oldest row next, so start after it.
                oldest = max(number + 1, self._newest() - stream.slots + 2)
                self.lost += oldest - number
                self._next = oldest
                return True
            expected = sequence in (0, number - stream.slots)  # not yet written in this lap
            if not self._later(data, at + size, number + 1) and (expected or self._newest() <= number):
                self._next, self._doubtful = number, 0
                return False
            if self._doubtful != number:
                self._next = self._doubtful = number
                return False
            self.lost += 1
            number += 1
            self._doubtful = number  # the next row is lost too if it is invalid before a valid one
        self._next = number
        return True

    def _later(self, data: memoryview, at: int, number: int) -> bool:
        """Whether any of the rows from `at` on is valid. The first should have this number."""
        size = self._stream.row.size
        for place, expected in zip(range(at, len(data) - size + 1, size), range(number, number + _FEW), strict=False):
            if _SEQUENCE.unpack_from(data, place)[0] == expected and self._row(data, place) is not None:
                return True
        return False

    def _row(self, data: memoryview, at: int) -> tuple[int, ...] | None:
        """The row at `at`; None if it is invalid."""
        stream = self._stream
        row = stream.row.unpack_from(data, at)
        return row if row[-1] == stream.check(data[at : at + stream.body.size], self._generation) else None

    def _take(self, row: tuple[int, ...], samples: list[Sample]) -> None:
        last = end = row[1]
        self.newest_ns = end
        aged = self._stream.aged
        for at, signal, absent in self._readings:
            value = row[at]
            if value != absent:
                if aged:
                    end = last - row[at - 1]
                samples.append(plain_sample(Sample, (signal, end, end, value)))
        if self._follow:
            samples += self._consecutive(row)
            return
        for at, signal in self._windows:
            value = row[at + 1]
            if value != NO_VALUE:
                if aged:
                    end = last - row[at - 1]
                samples.append(plain_sample(Sample, (signal, end - row[at], end, value)))

    def _consecutive(self, row: tuple[int, ...]) -> list[Sample]:
        """The windows of a row, each of which ends where the next begins."""
        samples, end = [], row[1]
        for at, signal in reversed(self._windows):
            value = row[at + 1]
            if value != NO_VALUE:
                start = end - row[at]
                samples.append(plain_sample(Sample, (signal, start, end, value)))
                end = start
        samples.reverse()
        return samples

    def _end_of(self, number: int) -> int:
        """The moment at which a row's samples end; 0 if the row is no longer valid."""
        stream, size = self._stream, self._stream.row.size
        data = os.pread(self._fd, size, stream.offset + (number - 1) % stream.slots * size)
        row = self._row(memoryview(data), 0) if len(data) == size else None
        return row[1] if row is not None else 0

    def _newest(self) -> int:
        """The highest sequence number of a valid row; 0 without one."""
        stream = self._stream
        size = stream.row.size
        numbers: list[tuple[int, int]] = []
        for slot in range(0, stream.slots, _MANY):
            data = os.pread(self._fd, min(_MANY, stream.slots - slot) * size, stream.offset + slot * size)
            for place, at in enumerate(range(0, len(data) - size + 1, size), slot):
                (number,) = _SEQUENCE.unpack_from(data, at)
                if number and (number - 1) % stream.slots == place:
                    numbers.append((number, place))
        for number, place in sorted(numbers, reverse=True):
            data = os.pread(self._fd, size, stream.offset + place * size)
            if len(data) == size and self._row(memoryview(data), 0) is not None:
                return number
        return 0
