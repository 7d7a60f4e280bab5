"""The fields of a request's spans that the join needs, as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain, pairwise, starmap
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Ints
from gpu_profile_exporter.sidecar.searching import RareText, RareTexts

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from gpu_profile_exporter.sidecar.trace_request import TraceRequest

_FAILED: Final = 2
#: Fewer spans are parsed one by one: for them, numpy's cost per call dominates.
_FEW: Final = 60
#: Most bytes of a key. Valid ones have 24.
_LONGEST_KEY: Final = 64
#: The keys of a span's fields in their order (a trace's id, a span's id, trace state, parent, name, kind, start, end)
#: and the key of the field after them, or a later one.
_TRACE, _ID, _STATE, _PARENT, _NAME, _KIND, _START, _END, _NEXT = 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x30, 0x39, 0x41, 0x4A
#: The bytes of the two ids, and of the kind and the two times, with their keys.
_IDS, _TIMES = 28, 20
#: Keys with the sizes above them, and the largest that is a size in one byte.
_TRACE_OF_16, _ID_OF_8, _PARENT_OF_8 = 16 << 8 | _TRACE, 8 << 8 | _ID, 8 << 8 | _PARENT
_MOST_SHORT: Final = 0x7FFF
_MOST_KIND: Final = 0x7F
#: Bytes of fields that may come after the times: a status of failure (its field `code` with the value 2), a parent, and
#: the part of a trace state that `joining` reads. Attributes rarely contain them.
_LATE: Final = RareTexts(RareText(b"\x18\x02"), RareText(b"\x22\x08"), RareText(b"ot=", len("o")))


class SpanFields(NamedTuple):
    """Columns by span. A key is a trace's id followed by a span's id. It is empty if they are too long, and in
    `parents` without a parent.

    `labels` are in the form of `label`. `starts` and `ends` are in ns; times of more than 63 bits are negative.
    `states`: the spans that have a trace state. `failed`: the spans with a status of failure.
    """

    labels: list[bytes]
    keys: list[bytes]
    parents: list[bytes]
    starts: Ints
    ends: Ints
    states: Sequence[int]
    failed: Sequence[int]

    @classmethod
    def of(cls, request: TraceRequest) -> SpanFields:
        """The fields of all spans of a request.

        Encoders write a span's fields in the order of their numbers. Such spans are read together with numpy, which
        takes a fifth of the time of OpenTelemetry's classes; other spans are read by these.
        """
        contents, extents = request.contents, request.extents
        n = len(contents)
        others: Iterable[tuple[int, Span]]
        if n >= _FEW:
            fields, numbers = _together(request.data, contents, extents)
            others = ((i, request.span(i)) for i in numbers)
        else:
            labels, keys, parents = ([b""] * n for _ in range(3))
            none = np.zeros(n, np.int64)
            fields = cls(labels, keys, parents, none, none.copy(), (), ())
            others = enumerate(chain.from_iterable(scope.spans for scope in request.scopes))
        starts, ends, states = fields.starts.view(np.uint64), fields.ends.view(np.uint64), [*fields.states]
        failed = [i for i in fields.failed if _has_failed(request.span(i))]
        for i, span in others:
            fields.labels[i] = label(span.kind, span.name)
            fields.keys[i] = _key(span.trace_id, span.span_id)
            fields.parents[i] = span.parent_span_id and _key(span.trace_id, span.parent_span_id)
            starts[i], ends[i] = span.start_time_unix_nano, span.end_time_unix_nano
            if span.trace_state:
                states.append(i)
            if _has_failed(span):
                failed.append(i)
        return fields._replace(states=states, failed=sorted(failed))

    def distinct(self, arrived: Set[bytes]) -> Iterator[range]:
        """Ranges of rows, nearly always one. Each row with a key in `arrived`, or with a repeated key, is alone."""
        n = len(self.keys)
        if len(set(self.keys)) < n:
            arrived = arrived | {key for key, times in Counter(self.keys).items() if times > 1}
        edges = {i + more for i, key in enumerate(self.keys) if key in arrived for more in (0, 1)} if arrived else set()
        yield from starmap(range, pairwise(sorted({0, *edges, n})))


def _key(trace: bytes, span: bytes) -> bytes:
    # Invalid ids may be as large as a request, and keys are kept.
    return trace + span if len(trace) + len(span) <= _LONGEST_KEY else b""


def label(kind: int, name: str) -> bytes:
    """Kind and name of spans as in their bytes: the name in UTF-8, the key of the kind, the kind."""
    # OTLP has six kinds. Others have no meaning, like 0.
    return name.encode() + bytes((_KIND, kind if 0 <= kind <= _MOST_KIND else 0))


def kind_and_name(label: bytes) -> tuple[int, str]:
    """Kind and name of the spans with this label."""
    return label[-1], label[:-2].decode()


def _has_failed(span: Span) -> bool:
    # To ask for the code of a status that was not sent would make an empty one, at five times the cost.
    return span.HasField("status") and span.status.code == _FAILED


def _together(data: bytes, contents: Ints, extents: Ints) -> tuple[SpanFields, list[int]]:
    """The fields of the spans at these offsets, and the numbers of the spans with fields in another order.

    `failed`: spans that may have failed. Of fields that are repeated after the times, the first one counts.
    """

    def block(at: Ints, size: int) -> npt.NDArray[np.uint8]:
        """These bytes by span."""
        return _windows(data, size)[np.minimum(at, len(data) - size)].view(np.uint8).reshape(-1, size)

    def key_and_size(at: Ints) -> npt.NDArray[np.uint16]:
        """The key of a field, and above it the lower byte of the size."""
        return block(at, 2).view("<u2")[:, 0]

    ids = block(contents, _IDS)
    fits = (ids.view("<u2")[:, 0] == _TRACE_OF_16) & (ids.view("<u2")[:, 9] == _ID_OF_8)
    at = contents + _IDS
    field = key_and_size(at)
    with_state = field & 0xFF == _STATE
    if with_state.any():
        fits &= ~with_state | (field <= _MOST_SHORT)
        at = at + np.where(with_state, (field >> 8) + 2, 0)
        field = key_and_size(at)
    # A parent of another size is no name, so that its span does not fit.
    with_parent, parent_at = field == _PARENT_OF_8, at + 2
    if with_parent.any():
        at = at + np.where(with_parent, 10, 0)
        field = key_and_size(at)
    fits &= field & 0x80FF == _NAME
    name_at, name_size = at + 2, field >> 8
    at = name_at + name_size
    times = block(at, _TIMES)
    fits &= (times[:, 0] == _KIND) & (times[:, 1] <= _MOST_KIND) & (times[:, 2] == _START) & (times[:, 11] == _END)
    at = at + _TIMES
    after = np.frombuffer(data, np.uint8).take(at, mode="clip")
    fits &= (at == extents) | ((at < extents) & (after >= _NEXT))
    tails = np.where(fits, at, extents)
    failure, late_parent, late_state = (_holding(places, tails, extents) for places in _LATE.places(data))
    fits &= ~late_parent & (with_state | ~late_state)
    traces = ids[:, 2:18]
    parents = [b""] * len(contents)
    if with_parent.any():
        rows = np.flatnonzero(with_parent)
        around = np.concatenate((traces[rows], block(parent_at[rows], 8)), axis=1)
        for i, parent in zip(rows.tolist(), around.view("V24")[:, 0].tolist(), strict=True):
            parents[i] = parent
    fields = SpanFields(
        _texts(data, name_at, name_size.astype(np.int64) + 2),
        np.concatenate((traces, ids[:, 20:28]), axis=1).view("V24")[:, 0].tolist(),
        parents,
        times[:, 3:11].copy().view("<i8")[:, 0],
        times[:, 12:20].copy().view("<i8")[:, 0],
        np.flatnonzero(with_state & fits).tolist(),
        np.flatnonzero(fits & failure).tolist(),
    )
    return fields, np.flatnonzero(~fits).tolist()


def _texts(data: bytes, starts: Ints, sizes: Ints) -> list[bytes]:
    """The bytes from each offset on. If all are equal, as of a service with one route, they are one object."""
    size = sizes.item(0)
    first = data[starts.item(0) : starts.item(0) + size]
    if len(first) == size and (sizes == size).all():
        texts = _windows(data, size)[np.minimum(starts, len(data) - size)].view(np.uint8).reshape(-1, size)
        if (texts == np.frombuffer(first, np.uint8)).all():
            return [first] * len(starts)
    return [data[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]


def _holding(places: Ints, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Which of these parts, in order and apart, contain one of `places`."""
    result = np.zeros(len(starts), np.bool_)
    if len(places):
        parts = np.searchsorted(starts, places, "right") - 1
        inside = (parts >= 0) & (places < ends[parts])
        result[parts[inside]] = True
    return result


def _windows(data: bytes, size: int) -> npt.NDArray[np.void]:
    """The `size` bytes from each offset on, without a copy."""
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
