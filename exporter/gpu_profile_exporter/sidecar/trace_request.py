"""A request with spans as bytes: finds its spans, parses them, and inserts attributes into the bytes.

Unknown fields, the order of fields and their encoding must survive. So the original bytes are kept, and only lengths
and added attributes are new. OpenTelemetry's own classes parse the spans.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.protobuf import head

if TYPE_CHECKING:
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from gpu_profile_exporter.server.connection import Ends

#: Field 1 of a request contains ResourceSpans. Field 2 of these contains ScopeSpans; field 2 of those, spans.
_OF_RESOURCE: Final = 1
_NESTED: Final = 2
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
#: The bytes before a span of so many bytes. Senders choose the sizes, so the cache has a limit.
_span_head: Final = lru_cache(10_000)(partial(head, _NESTED))

#: The largest length that is encoded in two bytes.
_MOST_IN_TWO: Final = 0x3FFF
#: The key and the length of a trace's id, with which encoders begin a span.
_ID_HEAD: Final = b"\x0a\x10"
#: Spans of more bytes than this are looked for together.
_MANY_BYTES: Final = 4_096

#: Most ResourceSpans, ScopeSpans and spans in a request. Each takes about 500 bytes of memory when parsed.
MOST_MESSAGES: Final = 200_000


class TooManyError(ValueError):
    """A request has more messages than permitted."""


class FieldPosition(NamedTuple):
    """The offsets of a nested message: of its key, of its content, and of its end."""

    key: int
    content: int
    end: int


class FieldPositions:
    """Nested messages of one field as columns: the offsets of their keys, of their contents, and of their ends."""

    __slots__ = ("contents", "ends", "keys")

    def __init__(self) -> None:
        self.keys, self.contents, self.ends = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[FieldPosition]:
        return map(FieldPosition, self.keys, self.contents, self.ends)

    @property
    def extent(self) -> tuple[int, int]:
        """The offsets of the first content and of the last end; (0, 0) if there is no message."""
        return (self.contents[0], self.ends[-1]) if self.ends else (0, 0)


class Scope(NamedTuple):
    """The spans of one resource and one instrumentation scope, and their positions in the request."""

    resource: Resource
    name: str
    spans: Sequence[Span]
    places: FieldPositions


class _Pieces(NamedTuple):
    """Bytes in pieces, and their number. They are joined once, at the end, because each join copies all spans."""

    pieces: list[bytes]
    size: int


class RequestPart(NamedTuple):
    """A request as bytes in pieces, of `size` bytes together, and the number of its spans."""

    pieces: list[bytes]
    size: int
    spans: int


class TraceRequest:
    """An ExportTraceServiceRequest. Raises ValueError for invalid bytes. `ends`: of its connection."""

    def __init__(self, data: bytes, ends: Ends | None = None) -> None:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.data, self.ends = data, ends
        room = MOST_MESSAGES

        def inside(place: FieldPosition, field: int) -> FieldPositions:
            nonlocal room
            nested = places(data, place.content, place.end, field, room)
            room -= len(nested)
            return nested

        resources = inside(FieldPosition(0, 0, len(data)), _OF_RESOURCE)
        #: The positions of the ResourceSpans, each with the positions of its ScopeSpans.
        self._places = [(place, inside(place, _NESTED)) for place in resources]
        #: The positions of the spans of each scope.
        self._spans = [inside(scope, _NESTED) for _, scopes in self._places for scope in scopes]
        try:
            request: Any = ExportTraceServiceRequest.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        pairs = ((one.resource, one.scope_spans) for one in request.resource_spans)
        read = ((resource, each) for resource, scopes in pairs for each in scopes)
        #: All scopes, in order, until `release`.
        self.scopes = [
            Scope(resource, each.scope.name, each.spans, at)
            for (resource, each), at in zip(read, self._spans, strict=True)
        ]

        #: The number of the first span of each scope, and the number of all spans.
        self._firsts = [0, *accumulate(map(len, self._spans))]

    def release(self) -> None:
        """Free the parsed spans, which may take ten times the memory of the bytes. Only `parts` may follow."""
        self.scopes = []

    def __len__(self) -> int:
        """The number of spans."""
        return self._firsts[-1]

    @property
    def contents(self) -> Ints:
        """The offsets of the contents of all spans."""
        return _together(places.contents for places in self._spans)

    @property
    def extents(self) -> Ints:
        """The offsets of the ends of all spans."""
        return _together(places.ends for places in self._spans)

    def span(self, number: int) -> Span:
        """A span by its number in the request."""
        scope = bisect_right(self._firsts, number) - 1
        return self.scopes[scope].spans[number - self._firsts[scope]]

    def by_scope(self, rows: list[bytes]) -> list[list[bytes]]:
        """Values by span, as one list for each scope."""
        return [rows[first:end] for first, end in pairwise(self._firsts)]

    def parts(self, added: Sequence[Sequence[bytes]], most: int) -> list[RequestPart]:
        """The request with encoded attributes (field 9) at the end of each span, in parts of about `most` bytes.

        `added` has one sequence per scope with one entry per span. An empty entry or sequence leaves the span or scope
        unchanged.
        """
        data = self.data
        whole = _Pieces([data], len(data))
        if any(map(any, added)):
            whole = _spliced(data, 0, len(data), self._resources(zip(self._spans, added, strict=True)))
        if whole.size <= most or len(self) < 2:
            return [RequestPart(*whole, len(self))]
        sizes = [
            end - key + len(more)
            for places, mores in zip(self._spans, added, strict=True)
            for key, end, more in zip(places.keys, places.ends, mores or [b""] * len(places), strict=True)
        ]
        around = whole.size - sum(sizes)  # every part repeats the bytes around the spans
        part, filled, number = [], 0, 0
        for size in sizes:
            if filled and filled + size + around > most:
                number, filled = number + 1, 0
            filled += size
            part.append(number)
        return [self._part(added, part, i) for i in range(number + 1)]

    def _part(self, added: Sequence[Sequence[bytes]], part: Sequence[int], number: int) -> RequestPart:
        """The request with the spans of part `number` only."""
        data, at = self.data, 0
        kept: list[list[bytes | None]] = []
        for places, mores in zip(self._spans, added, strict=True):
            numbers = part[at : at + len(places)]
            at += len(places)
            kept.append(
                [more if i == number else None for i, more in zip(numbers, mores or [b""] * len(numbers), strict=True)]
            )
        scopes = iter(zip(self._spans, kept, strict=True))
        resources = []
        for place, inside in self._places:
            grown = [
                (around, _scope_spans(data, around, places, more))
                for around, (places, more) in zip(inside, scopes, strict=False)
            ]
            resources.append((place, _message(_OF_RESOURCE, _spliced(data, place.content, place.end, grown))))
        return RequestPart(*_spliced(data, 0, len(data), resources), part.count(number))

    def _resources(
        self, scopes: Iterator[tuple[FieldPositions, Sequence[bytes]]]
    ) -> Iterator[tuple[FieldPosition, _Pieces]]:
        data = self.data
        for place, inside in self._places:
            grown = [
                (around, _scope_spans(data, around, places, more))
                for around, (places, more) in zip(inside, scopes, strict=False)
                if any(more)
            ]
            if grown:
                yield place, _message(_OF_RESOURCE, _spliced(data, place.content, place.end, grown))


def _together(columns: Iterable[array[int]]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(np.frombuffer(column, np.int64) for column in columns)])


def _scope_spans(data: bytes, around: FieldPosition, places: FieldPositions, added: Sequence[bytes | None]) -> _Pieces:
    """The ScopeSpans with these attributes added to its spans. None removes the span."""
    keys, contents, ends = places.keys, places.contents, places.ends
    if ends and all(added) and keys[1:] == ends[:-1]:
        # As nearly always: without a loop in Python, which takes twice as long.
        n = len(ends)
        sizes = np.frombuffer(ends, np.int64) - np.frombuffer(contents, np.int64)
        sizes += np.fromiter(map(len, added), np.int64, n)  # type: ignore[arg-type]  # all of them are bytes
        heads = _span_heads(sizes)
        pieces = [data[around.content : keys[0]], *[b""] * (3 * n), data[ends[-1] : around.end]]
        pieces[1:-1:3] = heads
        pieces[2:-1:3] = [data[content:end] for content, end in zip(contents, ends, strict=True)]
        pieces[3:-1:3] = added  # type: ignore[assignment]
        outside = keys[0] - around.content + around.end - ends[-1]
        return _message(_NESTED, _Pieces(pieces, outside + int(sizes.sum()) + sum(map(len, heads))))
    pieces, start = list[bytes](), around.content
    for key, content, end, more in zip(keys, contents, ends, added, strict=True):
        if more == b"":
            continue
        if key > start:
            pieces.append(data[start:key])
        if more is not None:
            pieces += _span_head(end - content + len(more)), data[content:end], more
        start = end
    pieces.append(data[start : around.end])
    return _message(_NESTED, _Pieces(pieces, sum(map(len, pieces))))


def _span_heads(sizes: Ints) -> list[bytes]:
    """The bytes before spans of so many bytes."""
    if sizes.min() <= 0x7F or sizes.max() > _MOST_IN_TWO:
        return list(map(_span_head, sizes.tolist()))
    heads = np.empty((len(sizes), 3), np.uint8)
    heads[:, 0], heads[:, 1], heads[:, 2] = _NESTED << 3 | _BYTES, sizes & 0x7F | 0x80, sizes >> 7
    return cast("list[bytes]", heads.view("V3")[:, 0].tolist())


def _message(field: int, content: _Pieces) -> _Pieces:
    before = head(field, content.size)
    return _Pieces([before, *content.pieces], len(before) + content.size)


def _spliced(data: bytes, start: int, end: int, replaced: Iterable[tuple[FieldPosition, _Pieces]]) -> _Pieces:
    """The bytes from `start` to `end`, with new messages at the replaced positions."""
    pieces, size = list[bytes](), end - start
    for place, message in replaced:
        if place.key > start:
            pieces.append(data[start : place.key])
        pieces += message.pieces
        size += message.size - (place.end - place.key)
        start = place.end
    pieces.append(data[start:end])
    return _Pieces(pieces, size)


def places(data: bytes, at: int, end: int, field: int, most: int) -> FieldPositions:
    """The messages of this field from `at` to `end`. Raises ValueError if malformed, TooManyError above `most`."""
    try:
        return _places(data, at, end, field, most)
    except (IndexError, OverflowError) as error:  # a length may have 70 bits
        raise ValueError("it is cut off") from error


def _places(data: bytes, at: int, end: int, field: int, most: int) -> FieldPositions:
    wanted, positions = field << 3 | _BYTES, FieldPositions()
    keys, contents, ends = positions.keys, positions.contents, positions.ends
    many_from = at if field == _NESTED else end
    while at < end:
        if at >= many_from and data[at + 3 : at + 5] == _ID_HEAD and end - at > _MANY_BYTES:
            # Once more only where a part as large follows: each look reads all the rest.
            many_from = at + (end - at) // 2
            at = _like_first(data, at, end, most, positions)
            continue
        start = at
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = _varint(data, start)
        if key & 7 == _BYTES:
            size = data[at]
            at += 1
            if size > 0x7F:
                high = data[at]
                if high > 0x7F:
                    size, at = _varint(data, at - 1)
                else:  # as of most spans
                    size += (high << 7) - 0x80
                    at += 1
            if key == wanted:
                if len(ends) >= most:
                    raise TooManyError(f"more than {MOST_MESSAGES} resources, scopes and items")
                keys.append(start)
                contents.append(at)
                at += size
                ends.append(at)
            else:
                at += size
        else:
            at = _after(data, at, key)
    if at > end:
        raise ValueError("it is cut off")
    return positions


def _like_first(data: bytes, at: int, end: int, most: int, positions: FieldPositions) -> int:
    """Add the spans of 128 to 16,383 bytes that follow each other from `at` on. Returns the end of the last one.

    Together, by the bytes at which nearly all spans begin: the key of the trace's id and its length. One after the
    other takes three times as long.
    """
    octets = np.frombuffer(data, np.uint8, end - at, at)
    heads = np.flatnonzero((octets[3:-1] == _ID_HEAD[0]) & (octets[4:] == _ID_HEAD[1]))
    low, high = octets[heads + 1].astype(np.int64), octets[heads + 2].astype(np.int64)
    fits = (octets[heads] == (_NESTED << 3 | _BYTES)) & (low > 0x7F) & (high <= 0x7F)
    heads, sizes = heads[fits], (low & 0x7F | high << 7)[fits]
    ends = heads + 3 + sizes
    # The part in which each begins at the end of the one before.
    begins = np.concatenate(([0], ends[:-1])) if len(ends) else ends
    broken = np.flatnonzero((begins != heads) | (ends > len(octets)))
    n = min(int(broken[0]) if len(broken) else len(heads), most - len(positions))
    for column, offsets in ((positions.keys, heads), (positions.contents, heads + 3), (positions.ends, ends)):
        column.frombytes((offsets[:n] + at).tobytes())
    return positions.ends[-1] if n > 0 else at


def _after(data: bytes, at: int, key: int) -> int:
    """The end of a field with content at `at` that is not length-delimited."""
    kind = key & 7
    if kind == _VARINT:
        return _varint(data, at)[1]
    if kind in (_FIXED64, _FIXED32):
        return at + (8 if kind == _FIXED64 else 4)
    if kind != _GROUP:
        raise ValueError(f"invalid wire type {kind}")
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
