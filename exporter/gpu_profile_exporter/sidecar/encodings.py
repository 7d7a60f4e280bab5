"""Decompresses request bodies: gzip, and zstd if its package is installed. The decompressed size is limited."""

from __future__ import annotations

import zlib
from types import ModuleType
from typing import Final

from gpu_profile_exporter.sidecar.messages import Refused

#: Most bytes of a request, compressed and decompressed. The Collector accepts 20 MiB by default.
MOST_BYTES: Final = 20 << 20
_GZIP: Final = 31
#: Telemetry compresses to about a tenth. A body that decompresses to more than `_MOST_TIMES` times its size, and to
#: more than `_HARMLESS` bytes, is treated as an attack.
_MOST_TIMES: Final = 300
_HARMLESS: Final = 1 << 20
#: Most members of a gzip body, or frames of a zstd body. Each costs a copy of the content before it.
_MOST_MEMBERS: Final = 64
#: A frame of zstd that has no content, the longest header of the others, and the type of a block that is one byte
#: repeated (RFC 8878, sections 3.1.1 and 3.1.2).
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_LONGEST_HEAD: Final = 18
_REPEATED: Final = 1
#: The most memory for what a frame may refer back to.
_WINDOW: Final = MOST_BYTES
_TOO_LARGE: Final = f"a request has at most {MOST_BYTES} bytes after decompression"


def unpacked(data: bytes, encoding: str) -> bytes:
    """The decompressed body. Raises Refused if it is invalid or too large."""
    if encoding in ("", "identity"):
        return data
    unpack = {"gzip": _from_gzip, "zstd": _from_zstd}.get(encoding)
    if unpack is None:
        raise Refused(415, "content_encoding", f"the content encoding is {encoding}, not gzip or zstd")
    content = unpack(data)
    if len(content) > max(_HARMLESS, _MOST_TIMES * len(data)):
        raise Refused(413, "body", f"it decompresses to more than {_MOST_TIMES} times its size")
    return content


def _from_gzip(data: bytes) -> bytes:
    content = b""
    for _ in range(_MOST_MEMBERS):
        unpacker = zlib.decompressobj(_GZIP)
        try:
            content += unpacker.decompress(data, MOST_BYTES + 1 - len(content))
        except zlib.error as error:
            raise Refused(400, "undecodable", f"not gzip: {error}") from error
        if len(content) > MOST_BYTES:
            raise Refused(413, "body", _TOO_LARGE)
        if not unpacker.eof:
            raise Refused(400, "undecodable", "not gzip: it is cut off")
        data = unpacker.unused_data
        if not data:
            return content
    raise Refused(400, "undecodable", f"gzip of more than {_MOST_MEMBERS} members")


def _from_zstd(data: bytes) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        text = "the content encoding is zstd, which needs the package zstandard here; send gzip"
        raise Refused(415, "content_encoding", text) from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    content, start = b"", 0
    try:
        for _ in range(_MOST_MEMBERS):
            skippable = int.from_bytes(data[start : start + 4], "little") & _SKIPPABLE_MASK == _SKIPPABLE
            end = start + 8 + _number(data, start + 4, 4) if skippable else _end_of_frame(data, start, zstandard)
            if end > len(data):
                raise Refused(400, "undecodable", "not zstd: it is cut off")
            if not skippable:
                frame, room = data[start:end], MOST_BYTES - len(content)
                if zstandard.frame_content_size(frame) > room:
                    raise Refused(413, "body", _TOO_LARGE)
                # To the library 0 is no limit.
                content += unpacker.decompress(frame, max_output_size=max(1, room))
                if len(content) > MOST_BYTES:
                    raise Refused(413, "body", _TOO_LARGE)
            start = end
            if start == len(data):
                return content
    except zstandard.ZstdError as error:
        # For a frame without a size, truncated and too large frames raise the same error.
        raise Refused(400, "undecodable", f"not zstd of at most {MOST_BYTES} bytes: {error}") from error
    raise Refused(400, "undecodable", f"zstd of more than {_MOST_MEMBERS} frames")


def _end_of_frame(data: bytes, start: int, zstandard: ModuleType) -> int:
    """The end of the frame at `start`, from its header and the headers of its blocks (RFC 8878, section 3.1.1)."""
    head = data[start : start + _LONGEST_HEAD]
    at = start + int(zstandard.frame_header_size(head))
    last = 0
    while not last:
        block = _number(data, at, 3)
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        at += 3 + (1 if kind == _REPEATED else size)
    return at + 4 * bool(zstandard.get_frame_parameters(head).has_checksum)


def _number(data: bytes, at: int, size: int) -> int:
    part = data[at : at + size]
    if len(part) < size:
        raise Refused(400, "undecodable", "not zstd: it is cut off")
    return int.from_bytes(part, "little")
