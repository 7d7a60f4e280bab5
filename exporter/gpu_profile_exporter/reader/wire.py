"""The messages between a reader process and the supervisor: framed tuples of plain values over a pipe.

`marshal` is the fastest serializer of the standard library, and both ends always run the same interpreter. It does not
validate its input, so each frame carries a checksum: `marshal` never receives the bytes of a stray write.
"""

from __future__ import annotations

import marshal
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

#: The body's length and CRC-32.
_HEAD: Final = struct.Struct("<II")
#: A longer frame is invalid: a reader's longest, the first round of 64 GPUs, has some 2 MB.
LONGEST: Final = 1 << 24

Message = tuple[Any, ...]


class WireError(Exception):
    """The pipe contains invalid data: other code writes to it."""


def send(fd: int, message: Message) -> None:
    """Write one message. OSError if the other end is closed."""
    body = marshal.dumps(message)
    data = memoryview(_HEAD.pack(len(body), zlib.crc32(body)) + body)
    while data:
        data = data[os.write(fd, data) :]


class Incoming:
    """Decodes messages from the bytes of a pipe, which may be split anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes, and yield the messages that are complete. WireError for invalid data."""
        rest = self._rest
        rest += data
        while len(rest) >= _HEAD.size:
            size, checksum = _HEAD.unpack_from(rest)
            if size > LONGEST:
                raise WireError(f"a frame of {size} bytes")
            if len(rest) < _HEAD.size + size:
                return
            body = bytes(memoryview(rest)[_HEAD.size : _HEAD.size + size])
            del rest[: _HEAD.size + size]
            if zlib.crc32(body) != checksum:
                raise WireError(f"{size} bytes that were changed on their way")
            try:
                message = marshal.loads(body)  # noqa: S302 - from our own child, which runs our own code
            except (EOFError, ValueError, TypeError) as error:
                raise WireError(f"not a message: {error}") from error
            if not isinstance(message, tuple) or not message or not isinstance(message[0], str):
                raise WireError("not a message of ours")
            yield message
