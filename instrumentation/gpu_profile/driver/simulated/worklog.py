"""The work log: the launches of programs on a simulated node, in append-only files that any process may read.

One file per stream, `work-PID-STREAM.log`: a header of 64 bytes, then records of 64 bytes, all little-endian. Each
`write` appends whole records. A reader ignores an incomplete record at the end until the rest arrives.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.driver.simulated.models import PRECISIONS
from gpu_profile.errors import ScenarioError

MAGIC: Final = b"GPUWORK\n"
VERSION: Final = 1
SIZE: Final = 64
HEADER: Final = struct.Struct("<8sHHII44x")
RECORD: Final = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("device", "<u2"),
        ("kind", "u1"),
        ("precision", "u1"),
        ("tag", "<u4"),
        ("flops", "<f8"),
        ("bytes", "<f8"),
        ("pcie", "<f8"),
        ("nvlink", "<f8"),
        ("sms", "<f4"),
        ("occupancy", "<f4"),
    ]
)
PACK: Final = struct.Struct("<qqHBBIddddff")
_NAME: Final = struct.Struct("<8xqHBBI40s")
_PART: Final = 40
_AMOUNTS: Final = ("flops", "bytes", "pcie", "nvlink", "sms", "occupancy")
_FILE: Final = re.compile(r"work-(\d+)-(\d+)\.log")
#: A directory's time stamp has the resolution of the kernel's tick. A listing within this time of it may be outdated.
_STAMP_STEP_NS: Final = 50_000_000

Records = npt.NDArray[np.void]


class RecordKind(IntEnum):
    """The kind of a record."""

    KERNEL = 0
    COPY_IN = 1
    COPY_OUT = 2
    #: `bytes` of device memory allocated (negative: freed) at `start`.
    MEMORY = 3
    #: Part number `device` of the name of `tag`, which has `precision` parts of 40 bytes, one per record.
    NAME = 4
    #: The stream was closed at `start`, which frees its device memory.
    CLOSE = 5


class LogWriter:
    """Appends to one new log of `directory`. Not thread-safe: its queue has a lock."""

    def __init__(self, directory: Path) -> None:
        self.pid = os.getpid()
        self._tags: dict[str, int] = {}
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for stream in count():
            self.path = directory / f"work-{self.pid}-{stream}.log"
            try:
                self._fd = os.open(self.path, flags, 0o644)
            except FileExistsError:
                continue
            except OSError as error:
                raise ScenarioError(f"{directory}: cannot write a work log: {error.strerror}") from error
            break
        os.write(self._fd, HEADER.pack(MAGIC, VERSION, SIZE, self.pid, stream))

    def append(self, record: bytes) -> None:
        """Append whole records."""
        os.write(self._fd, record)

    def tag(self, name: str | None) -> int:
        """The number of a tag in this log; 0 for None."""
        if name is None:
            return 0
        number = self._tags.get(name)
        if number is None:
            number = self._tags[name] = len(self._tags) + 1
            text = name.encode()[: 255 * _PART]
            parts = [text[i : i + _PART] for i in range(0, max(1, len(text)), _PART)]
            self.append(b"".join(_NAME.pack(0, i, RecordKind.NAME, len(parts), number, p) for i, p in enumerate(parts)))
        return number

    @property
    def closed(self) -> bool:
        """Whether the log was closed."""
        return self._fd < 0

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(slots=True)
class _LogFile:
    path: Path
    pid: int
    fd: int
    offset: int = 0
    names: dict[int, bytearray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogBatch:
    """New records of one log, without names of tags, and the writer's pid. `file`: the number of the log."""

    file: int
    pid: int
    path: Path
    offset: int
    records: Records


class LogReader:
    """Reads all logs of a directory as they grow. A forked process must create its own."""

    def __init__(self, directory: Path, devices: int) -> None:
        self._directory = directory
        self._devices = devices
        self._files: list[_LogFile] = []
        self._seen: set[str] = set()
        self._stamp = -1
        self._listed_ns = 0

    def close(self) -> None:
        """Close the files. Closing twice is fine."""
        for file in self._files:
            os.close(file.fd)
        self._files.clear()

    def name(self, file: int, tag: int) -> str | None:
        """The name of a tag of a log; None for untagged work."""
        raw = self._files[file].names.get(tag)
        return raw.rstrip(b"\0").decode(errors="replace") if raw is not None else None

    def poll(self) -> list[LogBatch]:
        """The records since the last poll. ScenarioError, with file, byte offset and reason, for a broken log."""
        self._list()
        return [batch for number, file in enumerate(self._files) for batch in self._read(number, file)]

    def _list(self) -> None:
        stamp = self._directory.stat().st_mtime_ns
        if stamp == self._stamp and self._listed_ns - stamp > _STAMP_STEP_NS:
            return
        self._listed_ns, self._stamp = time.time_ns(), stamp
        fresh = [match for entry in self._directory.iterdir() if (match := _FILE.fullmatch(entry.name))]
        for match in sorted(fresh, key=lambda m: (int(m[1]), int(m[2]))):
            if match[0] not in self._seen:
                self._seen.add(match[0])
                path = self._directory / match[0]
                self._files.append(_LogFile(path, int(match[1]), os.open(path, os.O_RDONLY | os.O_CLOEXEC)))

    def _read(self, number: int, file: _LogFile) -> Iterator[LogBatch]:
        if file.offset == 0:
            header = os.pread(file.fd, SIZE, 0)
            if len(header) < SIZE and MAGIC.startswith(header[: len(MAGIC)]):
                return  # the header is not complete yet
            magic, version, size, *_ = HEADER.unpack(header) if len(header) == SIZE else (header, 0, 0)
            if magic != MAGIC:
                raise ScenarioError(f"{file.path}: [byte 0]: not a work log")
            if (version, size) != (VERSION, SIZE):
                raise ScenarioError(
                    f"{file.path}: [byte 8]: version {version} with records of {size} bytes; this reads {VERSION}"
                    f" with {SIZE}"
                )
            file.offset = SIZE
        while data := os.pread(file.fd, 1 << 22, file.offset):
            whole = len(data) // SIZE * SIZE
            if not whole:
                return
            records = np.frombuffer(data[:whole], RECORD)
            self._check(file, records)
            offset, file.offset = file.offset, file.offset + whole
            named = records["kind"] == RecordKind.NAME
            if named.any():
                for row in np.flatnonzero(named):
                    raw = data[row * SIZE + SIZE - _PART : row * SIZE + SIZE]
                    file.names.setdefault(int(records["tag"][row]), bytearray()).extend(raw)
                records = records[~named]
            if len(records):
                yield LogBatch(number, file.pid, file.path, offset, records)
        if (size := os.fstat(file.fd).st_size) < file.offset:
            raise ScenarioError(
                f"{file.path}: [byte {size}]: the log was cut short; {file.offset} bytes were read before"
            )

    def _check(self, file: _LogFile, records: Records) -> None:
        kind = records["kind"]
        named = kind == RecordKind.NAME
        faults = (
            (kind > max(RecordKind), "unknown kind of record"),
            (~named & (records["end"] < records["start"]), "a record ends before it starts"),
            (~named & (records["device"] >= self._devices), f"a device beyond the scenario's {self._devices}"),
            (~named & (records["precision"] >= len(PRECISIONS)), "unknown precision"),
            (~named & ~np.isfinite(sum(records[key] for key in _AMOUNTS)), "an amount that is not finite"),
        )
        for wrong, reason in faults:
            if wrong.any():
                raise ScenarioError(f"{file.path}: [byte {file.offset + int(np.argmax(wrong)) * SIZE}]: {reason}")
