"""A request that waits to be sent, and the parts that all OTLP requests share."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from gpu_profile.protobuf import message, string

#: Level 6 takes half as long again, and saves only some hundredths of the size.
_LEVEL: Final = 4
_GZIP: Final = 31

#: The scope of all data points and records, and the conventions that their names follow.
SCOPE: Final = "gpu_profile_exporter"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"


class Batch(NamedTuple):
    """A request. `packed` is gzip, which takes a tenth of the memory while an endpoint is away. With `plain` it is the
    uncompressed request, which saves the time.
    """

    packed: bytes
    items: int
    plain: bool = False

    @classmethod
    def of(cls, request: bytes, items: int) -> Batch:
        """Compress a request with this number of items."""
        return cls(_gzip(request), items)

    def gzipped(self) -> bytes:
        """The request as gzip."""
        return _gzip(self.packed) if self.plain else self.packed

    def unpacked(self) -> bytes:
        """The uncompressed request."""
        return self.packed if self.plain else zlib.decompress(self.packed, _GZIP)


def _gzip(request: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(request) + packer.flush()


class Envelope:
    """The parts of each request around its items: resource, scope, schema."""

    def __init__(self, resource: tuple[tuple[str, str], ...], version: str) -> None:
        self._resource = message(1, *(attribute(1, key, text) for key, text in resource))
        self._scope = message(1, string(1, SCOPE), string(2, version))
        self._schema = string(3, SCHEMA_URL)

    def around(self, items: list[bytes]) -> bytes:
        """A request. Export{Metrics,Logs}ServiceRequest have the same field numbers, down to the items of a scope."""
        scoped = message(2, self._scope, *items, self._schema)
        return message(1, self._resource, scoped, self._schema)


def value(field: int, text: str) -> bytes:
    """OTLP's AnyValue, as a string."""
    return message(field, string(1, text))


def attribute(field: int, key: str, text: str) -> bytes:
    """OTLP's KeyValue."""
    return message(field, string(1, key), value(2, text))
