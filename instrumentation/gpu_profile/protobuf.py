"""The protobuf wire format, as far as OTLP, Perfetto and pprof need it. Imports nothing of gpu-profile.

It is written by hand because each needs only a dozen kinds of message, with numbers that hardly change. That avoids the
package protobuf, which programs so often need in another version, and the memory for its descriptors. The tests read
the output with OpenTelemetry's and Perfetto's own classes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE: Final = struct.Struct("<d")
_UINT64: Final = struct.Struct("<Q")


def varint(value: int) -> bytes:
    """An unsigned number, or a negative int64, seven bits a byte."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """An integer, an enum or a truth value."""
    return varint(field << 3 | _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """An unsigned integer of 8 bytes, such as a time."""
    return varint(field << 3 | _FIXED64) + _UINT64.pack(value)


def double(field: int, value: float) -> bytes:
    """A 64 bit float."""
    return varint(field << 3 | _FIXED64) + _DOUBLE.pack(value)


def head(field: int, size: int) -> bytes:
    """The bytes before an embedded message of `size` bytes."""
    return varint(field << 3 | _BYTES) + varint(size)


def message(field: int, *parts: bytes) -> bytes:
    """A message inside another, or bytes, from its parts."""
    return b"".join((head(field, sum(map(len, parts))), *parts))


def string(field: int, text: str) -> bytes:
    """Text. Characters that are not valid Unicode become question marks: a hostile label must not lose the others."""
    return message(field, text.encode("utf-8", "replace"))


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value, bytes for texts and messages. ValueError if `data` is none."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        field, kind = key >> 3, key & 7
        if not field:
            raise ValueError("a field has no number")
        if kind == _VARINT:
            content, at = _read_varint(data, at)
            yield field, content
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"field {field} has an unknown wire type: {kind}")
        if at + size > len(data):
            raise ValueError(f"field {field} is cut off")
        part = data[at : at + size]
        yield field, part if kind == _BYTES else int.from_bytes(part, "little")
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
    raise ValueError("a number is too long")
