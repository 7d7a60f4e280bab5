"""Decompresses request bodies: gzip, and zstd if its package is installed. The decompressed size is limited."""

from __future__ import annotations

import zlib
from typing import Final

from gpu_profile_exporter.sidecar.messages import Refused

#: Most bytes of a request, compressed and decompressed. The Collector accepts 20 MiB by default.
MOST_BYTES: Final = 20 << 20
_GZIP: Final = 31
#: Telemetry compresses to about a tenth. A body that decompresses to more than `_MOST_TIMES` times its size, and to
#: more than `_HARMLESS` bytes, is treated as an attack.
_MOST_TIMES: Final = 300
_HARMLESS: Final = 1 << 20
#: Most members of a gzip body. Each costs a copy of the remaining bytes.
_MOST_MEMBERS: Final = 64
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
    try:
        if zstandard.frame_content_size(data) > MOST_BYTES:
            raise Refused(413, "body", _TOO_LARGE)
        unpacker = zstandard.ZstdDecompressor(max_window_size=MOST_BYTES)
        return unpacker.decompress(data, max_output_size=MOST_BYTES, allow_extra_data=False)
    except zstandard.ZstdError as error:
        # For a frame without a size, truncated and too large frames raise the same error.
        raise Refused(400, "undecodable", f"not one frame of zstd of at most {MOST_BYTES} bytes: {error}") from error
