"""A bounded queue in files of a directory: what a process that was killed left in it, the next one finds.

A file is `MAGIC` and records one after the other, each a header and its content. The header is four numbers: the size,
the CRC-32 of the content, the items, and flags, above which is a check of the first three. A record that is done is
marked in its flags; a file of which all records are done is removed. Nothing waits for the disk: what was written
outlives the process, not a machine that loses power.
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
#: A new file is begun when one has so many bytes; smaller and larger where the queue is.
_FILE_BYTES: Final = 8 * MIB
_FEWEST_FILES, _MOST_FILES = 8, 128
#: A record counts for at least so many bytes: each is remembered in memory too.
_LEAST_RECORD: Final = 4_096
_SUFFIX, _DAMAGED, _LOCK = ".queue", ".damaged", "lock"


class QueuedItem(NamedTuple):
    """One that waits: its `key`, the items that its content has, its size in bytes, and whether it is plain."""

    key: tuple[int, int]
    items: int
    size: int
    plain: bool


class _QueueFile:
    """One of the files: where it ends, what its records count for, and how many of them wait."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)
        self.end, self.counted, self.waiting = len(MAGIC), 0, 0
        #: Whether what follows its end cannot be read: it is kept then, under another name, to be looked at.
        self.damaged = False
        if new:
            try:
                os.pwrite(self.descriptor, MAGIC, 0)
            except OSError:
                self.close()
                raise

    @property
    def gone(self) -> bool:
        """Whether somebody took it away or cut it off: the next process would not find what it has."""
        return not _is_at(self.descriptor, self.path) or os.fstat(self.descriptor).st_size < self.end

    def close(self) -> None:
        """Let go of it. Nobody finds it again if nothing in it waits."""
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
    """Whether the open file is the one of this path."""
    try:
        there = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


class DiskQueue:
    """Records in `directory`, of at most about `most_bytes`. Thread-safe.

    UsageError if the directory cannot be had, or another process has it.
    """

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._file_bytes = max(min(_FILE_BYTES, most_bytes // _FEWEST_FILES), most_bytes // _MOST_FILES)
        self._lock = threading.Lock()
        self._files: dict[int, _QueueFile] = {}
        self._current: int | None = None
        self._told = False
        #: What its files count for, in bytes.
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
        #: What was left by the process before, oldest first; to be taken once.
        self.left: list[QueuedItem] = [record for name in self._names() for record in self._found(name)]

    # ------------------------------------------------------------------ what was left

    def _names(self) -> list[int]:
        return sorted(int(path.stem) for path in self._directory.glob(f"*{_SUFFIX}") if path.stem.isdecimal())

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}{_SUFFIX}"

    def _found(self, number: int) -> Iterator[QueuedItem]:
        """The records of a file that wait. Behind one that was cut off nothing can be found: it was never answered."""
        try:
            file = _QueueFile(self._path(number), new=False)
        except OSError as error:
            _log.warning("%s cannot be read, and stays: %s", self._path(number), error.strerror)
            return
        length = os.fstat(file.descriptor).st_size
        if length < len(MAGIC):  # it was begun on a full disk
            file.close()
            return
        if os.pread(file.descriptor, len(MAGIC), 0) != MAGIC:
            _log.warning("%s is no queue of this version, and stays", file.path)
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
        if file.damaged:  # how many items are lost cannot be told
            text = "%s is damaged at byte %d: what follows there is not sent on, and stays in a file that ends in %s"
            _log.error(text, file.path, file.end, _DAMAGED)
        if not file.waiting:
            self._remove(number)

    # ------------------------------------------------------------------ in

    def has_room(self, size: int) -> bool:
        """Whether a record of so many bytes would be taken, as far as is known without writing it."""
        return self.size + max(size + _HEADER.size, _LEAST_RECORD) <= self._most_bytes

    def append(self, content: bytes, items: int, *, plain: bool) -> QueuedItem | None:
        """Write a record; None if there is no room, in the queue or on the disk."""
        with self._lock:
            if not self.has_room(len(content)):
                return None
            try:
                return self._append(content, items, plain=plain)
            except OSError as error:
                if not self._told:
                    self._told = True
                    _log.warning("%s: nothing can be written to the queue: %s", self._directory, error.strerror)
                return None

    def _append(self, content: bytes, items: int, *, plain: bool) -> QueuedItem:
        # Without its lock, another process may have the directory by now.
        if not _is_at(self._own, self._directory / _LOCK):
            raise OSError(errno.ENOENT, "its files were taken away")
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
        self._told = False
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
        """The content of a record; None if it is damaged."""
        number, at = record.key
        try:
            data = os.pread(self._files[number].descriptor, _HEADER.size + record.size, at)
            _, check, _, _ = _HEADER.unpack_from(data)
        except (OSError, struct.error):
            return None
        content = data[_HEADER.size :]
        return content if zlib.crc32(content) == check else None

    def done(self, record: QueuedItem) -> None:
        """A record waits no more: the next process will not find it."""
        number, at = record.key
        with self._lock:
            file = self._files.get(number)
            if file is None:  # the queue was closed meanwhile: the next process finds the record once more
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
        """Let the next process have it, with all that waits. Nothing is taken in any more."""
        with self._lock:
            self._most_bytes = 0
            if lost := sum(file.waiting for file in self._files.values() if file.gone):
                text = "%s: %d of the records that wait were in files that were taken away: they are lost"
                _log.error(text, self._directory, lost)
            for file in self._files.values():
                file.close()
            self._files.clear()
            os.close(self._own)


def _header(size: int, check: int, items: int, flags: int) -> bytes:
    first = struct.pack("<III", size, check, items)
    return first + struct.pack("<I", zlib.crc32(first) & 0xFFFFFF00 | flags)
