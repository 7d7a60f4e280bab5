"""A bounded queue in files of a directory. The next process continues with the records of a killed one.

A file is `MAGIC` and a sequence of records, each a header and a content. The header has four numbers: size, CRC-32 of
the content, items, and flags, with a check of the first three in the upper bits. A flag marks a record as done. A file
is removed when all its records are done. Nothing waits for the disk: records survive the process, not a power failure.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile.units import MIB

_log = logging.getLogger("gpu_profile_exporter")

MAGIC: Final = b"gpqueue1"
_HEADER: Final = struct.Struct("<IIII")
_FLAGS_AT: Final = 12
_DONE, _PLAIN = 1, 2
#: A new file is begun at this size. It is smaller or larger for a small or large queue.
_FILE_BYTES: Final = 8 * MIB
_FEWEST_FILES, _MOST_FILES = 8, 128
#: A record counts for at least this many bytes, because each also takes memory.
_LEAST_RECORD: Final = 4_096
_SUFFIX, _DAMAGED, _LOCK = ".queue", ".damaged", "lock"


class QueuedItem(NamedTuple):
    """A waiting record. `key`: its file's number and its offset. `size`: bytes of its content. `plain`: not gzip."""

    key: tuple[int, int]
    items: int
    size: int
    plain: bool


class _QueueFile:
    """A file of the queue: its end, the bytes that its records count for, and the number of waiting records."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)
        self.end, self.counted, self.waiting = len(MAGIC), 0, 0
        #: Whether data after `end` is unreadable. The file is then kept under another name, for inspection.
        self.damaged = False
        if new:
            try:
                os.pwrite(self.descriptor, MAGIC, 0)
            except OSError:
                self.close()
                raise

    @property
    def gone(self) -> bool:
        """True if the file was removed, replaced or truncated: the next process could not read its records."""
        return not _is_at(self.descriptor, self.path) or os.fstat(self.descriptor).st_size < self.end

    def close(self) -> None:
        """Close it. If no record waits, remove it, or rename it if it is damaged."""
        own = _is_at(self.descriptor, self.path)
        os.close(self.descriptor)
        if self.waiting or not own:
            return
        with suppress(OSError):
            if self.damaged:
                self.path.rename(self.path.with_suffix(_DAMAGED))
            else:
                self.path.unlink()


def _is_at(descriptor: int, path: Path) -> bool:
    """True if the open file is the one at this path."""
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(status, os.fstat(descriptor))


class DiskQueue:
    """A queue of records in `directory`, of at most about `most_bytes`. Thread-safe.

    UsageError if the directory cannot be used, or another process uses it.
    """

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._file_bytes = max(min(_FILE_BYTES, most_bytes // _FEWEST_FILES), most_bytes // _MOST_FILES)
        self._lock = threading.Lock()
        self._files: dict[int, _QueueFile] = {}
        self._current: int | None = None
        self._logged_failure = False
        #: The bytes that its files count for.
        self.size = 0
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{directory}: no queue can be kept there: {error.strerror}") from error
        try:
            fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._own)
            raise UsageError(f"{directory}: another process keeps its queue there") from error
        #: The records that the previous process left, oldest first. To be read once.
        self.left: list[QueuedItem] = [record for name in self._names() for record in self._restored(name)]

    # ------------------------------------------------------------------ restoring

    def _names(self) -> list[int]:
        return sorted(int(path.stem) for path in self._directory.glob(f"*{_SUFFIX}") if path.stem.isdecimal())

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}{_SUFFIX}"

    def _restored(self, number: int) -> Iterator[QueuedItem]:
        """The waiting records of a file, up to the first incomplete one: no client got an answer for that."""
        try:
            file = _QueueFile(self._path(number), new=False)
        except OSError as error:
            _log.warning("%s cannot be read, and is left there: %s", self._path(number), error.strerror)
            return
        length = os.fstat(file.descriptor).st_size
        if length < len(MAGIC):  # it was begun on a full disk
            file.close()
            return
        if os.pread(file.descriptor, len(MAGIC), 0) != MAGIC:
            _log.warning("%s is no queue of this version, and is left there", file.path)
            os.close(file.descriptor)
            return
        self._files[number] = file
        while file.end + _HEADER.size <= length:
            size, check, items, last = _HEADER.unpack(os.pread(file.descriptor, _HEADER.size, file.end))
            flags = last & 0xFF
            if _header(size, check, items, flags) != _HEADER.pack(size, check, items, last):
                file.damaged = True
                break
            if file.end + _HEADER.size + size > length:
                break
            if not flags & _DONE:
                file.waiting += 1
                yield QueuedItem((number, file.end), items, size, bool(flags & _PLAIN))
            self._grow(file, size)
        if file.damaged:  # the number of lost items is unknown
            text = "%s is damaged at byte %d: the rest is not sent, and stays in a file that ends in %s"
            _log.error(text, file.path, file.end, _DAMAGED)
        if not file.waiting:
            self._remove(number)

    # ------------------------------------------------------------------ in

    def has_room(self, size: int) -> bool:
        """True if the queue has room for a record of this size. The disk may still refuse it."""
        return self.size + max(size + _HEADER.size, _LEAST_RECORD) <= self._most_bytes

    def append(self, content: bytes, items: int, *, plain: bool) -> QueuedItem | None:
        """Write a record. None if the queue has no room, or the disk refuses it."""
        with self._lock:
            if not self.has_room(len(content)):
                return None
            try:
                return self._append(content, items, plain=plain)
            except OSError as error:
                if not self._logged_failure:
                    self._logged_failure = True
                    _log.warning("%s: nothing can be written to the queue: %s", self._directory, error.strerror)
                return None

    def _append(self, content: bytes, items: int, *, plain: bool) -> QueuedItem:
        # If the lock file was removed, another process may use the directory by now.
        if not _is_at(self._own, self._directory / _LOCK):
            raise OSError(errno.ENOENT, "its files were removed")
        number = self._current
        if number is None or self._files[number].end > self._file_bytes or self._files[number].gone:
            number = self._next_file()
        file, size = self._files[number], len(content)
        header = _header(size, zlib.crc32(content), items, _PLAIN if plain else 0)
        if os.pwritev(file.descriptor, (header, content), file.end) < len(header) + size:
            os.ftruncate(file.descriptor, file.end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        record = QueuedItem((number, file.end), items, size, plain)
        file.waiting += 1
        self._grow(file, size)
        self._logged_failure = False
        return record

    def _next_file(self) -> int:
        before, number = self._current, max((*self._files, *self._names(), 0)) + 1
        self._files[number] = _QueueFile(self._path(number), new=True)
        self._current = number
        if before is not None and not self._files[before].waiting:
            self._remove(before)
        return number

    def _grow(self, file: _QueueFile, size: int) -> None:
        counted = max(size + _HEADER.size, _LEAST_RECORD)
        file.end += size + _HEADER.size
        file.counted += counted
        self.size += counted

    # ------------------------------------------------------------------ out

    def read(self, record: QueuedItem) -> bytes | None:
        """The content of a record. None if it is damaged."""
        number, at = record.key
        try:
            data = os.pread(self._files[number].descriptor, _HEADER.size + record.size, at)
            _, check, _, _ = _HEADER.unpack_from(data)
        except (OSError, struct.error):
            return None
        content = data[_HEADER.size :]
        return content if zlib.crc32(content) == check else None

    def done(self, record: QueuedItem) -> None:
        """Mark a record as done, so that the next process skips it."""
        number, at = record.key
        with self._lock:
            file = self._files.get(number)
            if file is None:  # the queue was closed meanwhile: the next process sends the record again
                return
            with suppress(OSError):
                os.pwrite(file.descriptor, bytes([_DONE | _PLAIN * record.plain]), at + _FLAGS_AT)
            file.waiting -= 1
            if file.waiting:
                return
            if number != self._current:
                self._remove(number)
            elif file.end > self._file_bytes // 2:
                self._current = None
                self._remove(number)

    def _remove(self, number: int) -> None:
        file = self._files.pop(number)
        self.size -= file.counted
        file.close()

    def close(self) -> None:
        """Accept no more records, and unlock the directory. Waiting records stay for the next process."""
        with self._lock:
            self._most_bytes = 0
            if lost := sum(file.waiting for file in self._files.values() if file.gone):
                text = "%s: %d waiting records are lost, because their files were removed"
                _log.error(text, self._directory, lost)
            for file in self._files.values():
                file.close()
            self._files.clear()
            os.close(self._own)


def _header(size: int, check: int, items: int, flags: int) -> bytes:
    first = struct.pack("<III", size, check, items)
    return first + struct.pack("<I", zlib.crc32(first) & 0xFFFFFF00 | flags)
