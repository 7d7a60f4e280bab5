"""One request's worth of items, kept until it can be sent, and what OTLP's messages share."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from gpu_profile.protobuf import message, string

#: Level 6 takes half as long again for some hundredths of the size.
_LEVEL: Final = 4
_GZIP: Final = 31

#: The scope that data points and records are of, and the conventions that their names follow.
SCOPE: Final = "gpu_profile_exporter"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"


class Batch(NamedTuple):
    """A request. `packed` is gzip: what waits for an endpoint to come back takes a tenth of the memory that way. With
    `plain` it is the request itself, which saves the time.
    """

    packed: bytes
    items: int
    plain: bool = False

    @classmethod
    def of(cls, request: bytes, items: int) -> Batch:
        """Pack a request that carries so many items."""
        return cls(_gzip(request), items)

    def gzipped(self) -> bytes:
        """The request as gzip."""
        return _gzip(self.packed) if self.plain else self.packed

    def unpacked(self) -> bytes:
        """The request as it was."""
        return self.packed if self.plain else zlib.decompress(self.packed, _GZIP)


def _gzip(request: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(request) + packer.flush()


class Envelope:
    """What every request of one exporter says around its items: resource, scope, schema."""

    def __init__(self, resource: tuple[tuple[str, str], ...], version: str) -> None:
        self._resource = message(1, *(attribute(1, key, text) for key, text in resource))
        self._scope = message(1, string(1, SCOPE), string(2, version))
        self._schema = string(3, SCHEMA_URL)

    def around(self, items: list[bytes]) -> bytes:
        """A request: Export{Metrics,Logs}ServiceRequest have the same numbers down to the items of a scope."""
        scoped = message(2, self._scope, *items, self._schema)
        return message(1, self._resource, scoped, self._schema)


def value(field: int, text: str) -> bytes:
    """OTLP's AnyValue, as a text."""
    return message(field, string(1, text))


def attribute(field: int, key: str, text: str) -> bytes:
    """OTLP's KeyValue."""
    return message(field, string(1, key), value(2, text))
