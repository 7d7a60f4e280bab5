"""A request with spans as bytes: where its spans are, what they say, and the same bytes with attributes added.

What a receiver does not know must come out as it came in: unknown fields, their order, and how each is encoded. So the
bytes are kept, and only lengths and added attributes are new. OpenTelemetry's own classes read what the spans say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpu_profile.protobuf import head

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: Field 1 of a request is its ResourceSpans; field 2 of each its ScopeSpans, and of each of these its spans.
_OF_RESOURCE: Final = 1
_NESTED: Final = 2
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_head: Final = cache(head)


#: ResourceSpans, ScopeSpans and spans of one request together: read, each takes some 500 bytes, however short it is.
MOST_MESSAGES: Final = 200_000


class TooManyError(ValueError):
    """A request has more messages than may be read."""


class FieldPosition(NamedTuple):
    """Where a message inside another is: its key, its content, and the end of both, as offsets."""

    key: int
    content: int
    end: int


class Scope(NamedTuple):
    """Spans of one resource and one instrumentation scope, and where each is in the request."""

    resource: Resource
    name: str
    spans: Sequence[Span]
    places: list[FieldPosition]


class TraceRequest:
    """An ExportTraceServiceRequest. ValueError if the bytes are none."""

    def __init__(self, data: bytes) -> None:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.data = data
        room = MOST_MESSAGES

        def inside(place: FieldPosition, field: int) -> list[FieldPosition]:
            nonlocal room
            found = places(data, place.content, place.end, field, room)
            room -= len(found)
            return found

        resources = inside(FieldPosition(0, 0, len(data)), _OF_RESOURCE)
        #: The places of the ResourceSpans, each with those of its ScopeSpans.
        self._places = [(place, inside(place, _NESTED)) for place in resources]
        spans = [inside(scope, _NESTED) for _, scopes in self._places for scope in scopes]
        try:
            self._request: Any = ExportTraceServiceRequest.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        read = ((one.resource, each) for one in self._request.resource_spans for each in one.scope_spans)
        #: All scopes, in order.
        self.scopes = [
            Scope(resource, each.scope.name, each.spans, at) for (resource, each), at in zip(read, spans, strict=True)
        ]

    def __len__(self) -> int:
        """How many spans there are."""
        return sum(len(scope.places) for scope in self.scopes)

    def with_attributes(self, added: Sequence[Sequence[bytes]]) -> bytes:
        """The request with encoded attributes (field 9 of a span) at the end of each span.

        `added` has for each scope one entry for each span, empty for a span that stays as it is; or no entries for a
        scope that stays as it is.
        """
        if not any(map(any, added)):
            return self.data
        scopes = zip(self.scopes, added, strict=True)
        return b"".join(_spliced(self.data, 0, len(self.data), self._resources(scopes)))

    def parts(self, added: Sequence[Sequence[bytes]], most: int) -> list[tuple[bytes, int]]:
        """The request with these attributes, in requests of about `most` bytes if it has more, each with its spans."""
        whole = self.with_attributes(added)
        if len(whole) <= most or len(self) < 2:
            return [(whole, len(self))]
        sizes = [
            place.end - place.key + len(more)
            for scope, mores in zip(self.scopes, added, strict=True)
            for place, more in zip(scope.places, mores or [b""] * len(scope.places), strict=True)
        ]
        around = len(whole) - sum(sizes)  # what stands around the spans comes with each part
        part, filled, number = [], 0, 0
        for size in sizes:
            if filled and filled + size + around > most:
                number, filled = number + 1, 0
            filled += size
            part.append(number)
        return [self._part(added, part, i) for i in range(number + 1)]

    def _part(self, added: Sequence[Sequence[bytes]], part: Sequence[int], number: int) -> tuple[bytes, int]:
        """The request without the spans of other parts."""
        data, at = self.data, 0
        kept: list[list[bytes | None]] = []
        for scope, mores in zip(self.scopes, added, strict=True):
            mine = part[at : at + len(scope.places)]
            at += len(scope.places)
            kept.append(
                [more if i == number else None for i, more in zip(mine, mores or [b""] * len(mine), strict=True)]
            )
        scopes = iter(zip(self.scopes, kept, strict=True))
        resources = []
        for place, inside in self._places:
            grown = [
                (around, _scope_spans(data, around, scope.places, more))
                for around, (scope, more) in zip(inside, scopes, strict=False)
            ]
            resources.append((place, _message(_OF_RESOURCE, _spliced(data, place.content, place.end, grown))))
        return b"".join(_spliced(data, 0, len(data), resources)), part.count(number)

    def _resources(self, scopes: Iterator[tuple[Scope, Sequence[bytes]]]) -> Iterator[tuple[FieldPosition, bytes]]:
        data = self.data
        for place, inside in self._places:
            grown = [
                (around, _scope_spans(data, around, scope.places, more))
                for around, (scope, more) in zip(inside, scopes, strict=False)
                if any(more)
            ]
            if grown:
                yield place, _message(_OF_RESOURCE, _spliced(data, place.content, place.end, grown))


def _scope_spans(
    data: bytes, around: FieldPosition, places: Sequence[FieldPosition], added: Sequence[bytes | None]
) -> bytes:
    """The ScopeSpans with these attributes added to its spans; None takes the span away."""
    grown = [
        (
            place,
            b""
            if more is None
            else _head(_NESTED, place.end - place.content + len(more)) + data[place.content : place.end] + more,
        )
        for place, more in zip(places, added, strict=True)
        if more != b""
    ]
    return _message(_NESTED, _spliced(data, around.content, around.end, grown))


def _message(field: int, parts: list[bytes]) -> bytes:
    content = b"".join(parts)
    return head(field, len(content)) + content


def _spliced(
    data: bytes,
    start: int,
    end: int,
    replaced: Sequence[tuple[FieldPosition, bytes]] | Iterator[tuple[FieldPosition, bytes]],
) -> list[bytes]:
    """The bytes from `start` to `end` with these messages in place of those that were there."""
    parts = []
    for place, message in replaced:
        if place.key > start:
            parts.append(data[start : place.key])
        parts.append(message)
        start = place.end
    parts.append(data[start:end])
    return parts


def places(data: bytes, at: int, end: int, field: int, most: int) -> list[FieldPosition]:
    """The messages of this field from `at` to `end`. ValueError where that is no message, TooManyError with more."""
    try:
        found = _places(data, at, end, field, most)
    except IndexError as error:
        raise ValueError("it is cut off") from error
    return found


def _places(data: bytes, at: int, end: int, field: int, most: int) -> list[FieldPosition]:
    wanted, found = field << 3 | _BYTES, list[FieldPosition]()
    while at < end:
        start = at
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = _varint(data, start)
        if key & 7 == _BYTES:
            size = data[at]
            at += 1
            if size > 0x7F:
                size, at = _varint(data, at - 1)
            if key == wanted:
                if len(found) >= most:
                    raise TooManyError(f"more than {MOST_MESSAGES} resources, scopes and items")
                found.append(FieldPosition(start, at, at + size))
            at += size
        else:
            at = _after(data, at, key)
    if at > end:
        raise ValueError("it is cut off")
    return found


def _after(data: bytes, at: int, key: int) -> int:
    """Where the field ends whose content, of another kind than bytes, begins at `at`."""
    kind = key & 7
    if kind == _VARINT:
        return _varint(data, at)[1]
    if kind in (_FIXED64, _FIXED32):
        return at + (8 if kind == _FIXED64 else 4)
    if kind != _GROUP:
        raise ValueError(f"a field of a kind that there is not: {kind}")
    while True:
        key, at = _varint(data, at)
        if key & 7 == _GROUP_END:
            return at
        if key & 7 == _BYTES:
            size, at = _varint(data, at)
            at += size
        else:
            at = _after(data, at, key)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")
