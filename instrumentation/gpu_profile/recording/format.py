"""The bytes of a file: the header, the frames around records, and the frame's payload."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

VERSION: Final = 1
SUFFIX: Final = ".gpr"

#: After PNG's: a byte above 127, both line ends and an end-of-file mark show transfers that treat the file as text.
MAGIC: Final = b"\x89GPR\r\n\x1a\n"
_HEADER: Final = struct.Struct("<8sHHI")
HEADER_SIZE: Final = _HEADER.size

#: 0xF5 never occurs in UTF-8, so no text in a payload can look like the start of a frame.
_MARK: Final = b"\xf5GPR"
_FRAME: Final = struct.Struct("<4sIII")
_CHECKED: Final = struct.Struct("<II")

#: Bound of a payload after inflation: a reader never needs more memory for one record.
MAX_PAYLOAD: Final = 1 << 26


class RecordType(IntEnum):
    """The content of a record. Numbers are never reused. A reader skips unknown ones."""

    PROCESS = 1
    DEVICES = 2
    SAMPLES = 3
    SPANS = 4
    EVENTS = 5
    NOTES = 6
    UNWRITTEN = 7
    END = 8


class FileRecord(NamedTuple):
    """An intact record: its type number, its payload (still deflated), and its frame's place in the file."""

    type: int
    payload: bytes
    start: int
    end: int


def header() -> bytes:
    """The first 16 bytes of a file: magic, version, zero, CRC-32 of these."""
    head = _HEADER.pack(MAGIC, VERSION, 0, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def header_problem(data: bytes) -> tuple[int, str] | None:
    """The byte offset and the reason if `data` does not start a readable file; None if it does."""
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        return 0, "not a recording of gpu-profile (wrong magic)"
    if len(data) < HEADER_SIZE:
        return len(data), f"cut off within the {HEADER_SIZE} byte header"
    _, version, _, crc = _HEADER.unpack_from(data)
    if zlib.crc32(data[: HEADER_SIZE - 4]) != crc:
        return len(MAGIC), "damaged header"
    if version != VERSION:
        return len(MAGIC), f"version {version}, but this gpu-profile reads version {VERSION}; use a newer gpu-profile"
    return None


def frame(kind: int, content: bytes) -> bytes:
    """A record ready to be appended: mark, type, length, CRC-32 of type, length and payload; then the payload.

    The payload is `content`, deflated. ValueError if `content` is longer than `MAX_PAYLOAD`.
    """
    if len(content) > MAX_PAYLOAD:
        raise ValueError(f"{len(content)} bytes in one record, at most {MAX_PAYLOAD} fit")
    payload = zlib.compress(content)
    crc = zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, len(payload))))
    return _FRAME.pack(_MARK, kind, len(payload), crc) + payload


def frames(data: bytes) -> Iterator[FileRecord]:
    """The intact records of a file's bytes, in order. Bytes between two of them are damaged."""
    at = HEADER_SIZE
    while (at := data.find(_MARK, at)) >= 0:
        record = _frame_at(data, at)
        if record is None:
            at += 1
        else:
            yield record
            at = record.end


def _frame_at(data: bytes, at: int) -> FileRecord | None:
    if at + _FRAME.size > len(data):
        return None
    _, kind, length, crc = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    if length > len(data) - start:
        return None
    payload = data[start : start + length]
    if zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, length))) != crc:
        return None
    return FileRecord(kind, payload, at, start + length)


def inflate(payload: bytes) -> bytes:
    """The content of a payload. ValueError if it is no complete zlib stream or longer than `MAX_PAYLOAD`."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(payload, MAX_PAYLOAD)
    except zlib.error as error:
        raise ValueError(f"not a zlib stream: {error}") from error
    if not stream.eof:
        raise ValueError(f"not complete within {MAX_PAYLOAD} bytes")
    return content


def to_json(value: object) -> str:
    """`value` as JSON in ASCII. Values that JSON has no type for become text. ValueError if it is nested too deeply."""
    try:
        return json.dumps(value, separators=(",", ":"), default=str, skipkeys=True)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
