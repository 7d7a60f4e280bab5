"""The fields of a request's spans that the join needs, as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Ints
from gpu_profile_exporter.sidecar.searching import RareText

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from gpu_profile_exporter.sidecar.trace_request import TraceRequest

_FAILED: Final = 2
#: Fewer spans are parsed one by one: for them, numpy's cost per call dominates.
_FEW: Final = 24
#: The keys of a span's fields in their order (a trace's id, a span's id, trace state, parent, name, kind, start, end)
#: and the key of the field after them, or a later one.
_TRACE, _ID, _STATE, _PARENT, _NAME, _KIND, _START, _END, _NEXT = 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x30, 0x39, 0x41, 0x4A
#: The bytes of the two ids, and of the two times, with their keys.
_IDS, _TIMES = 28, 18
_MOST_KIND: Final = 0x7F
#: Bytes of fields that may come after the times: a status of failure (its field `code` with the value 2), a parent, and
#: the part of a trace state that `joining` reads. Attributes rarely contain them.
_FAILURE, _LATE_PARENT = RareText(b"\x18\x02"), RareText(b"\x22\x08")
_LATE_STATE: Final = RareText(b"ot=", len("o"))


class SpanFields(NamedTuple):
    """Columns by span. A key is a trace's id followed by a span's id. A key in `parents` is empty without a parent.

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
        if n >= _FEW:
            fields, others = _together(request.data, contents, extents)
        else:
            labels, keys, parents = ([b""] * n for _ in range(3))
            none, others = np.zeros(n, np.int64), list(range(n))
            fields = cls(labels, keys, parents, none, none.copy(), (), ())
        starts, ends, states = fields.starts.view(np.uint64), fields.ends.view(np.uint64), [*fields.states]
        failed = [i for i in fields.failed if _has_failed(request.span(i))]
        for i in others:
            span = request.span(i)
            fields.labels[i] = label(span.kind, span.name)
            fields.keys[i] = span.trace_id + span.span_id
            fields.parents[i] = span.parent_span_id and span.trace_id + span.parent_span_id
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
    octets = np.frombuffer(data, np.uint8)

    def byte(at: Ints) -> Ints:
        return octets.take(at, mode="clip").astype(np.int64)

    def block(at: Ints, size: int) -> npt.NDArray[np.uint8]:
        """These bytes by span."""
        return _windows(data, size)[np.minimum(at, len(data) - size)].view(np.uint8).reshape(-1, size)

    ids = block(contents, _IDS)
    fits = (ids[:, 0] == _TRACE) & (ids[:, 1] == 16) & (ids[:, 18] == _ID) & (ids[:, 19] == 8)
    at = contents + _IDS
    texts: list[tuple[npt.NDArray[np.bool_], Ints, Ints]] = []
    for key in (_STATE, _PARENT, _NAME):
        present, size = byte(at) == key, byte(at + 1)
        size *= present
        fits &= (size <= 0x7F) if key != _PARENT else (size == 8 * present)
        # Without a name it may come later.
        fits &= present | (key != _NAME)
        texts.append((present, at + 2, size))
        at = at + 2 * present + size
    present = byte(at) == _KIND
    kinds = byte(at + 1)
    at = at + 2
    times = block(at, _TIMES)
    at += _TIMES
    fits &= present & (kinds <= _MOST_KIND) & (times[:, 0] == _START) & (times[:, 9] == _END)
    fits &= (at == extents) | ((at < extents) & (byte(at) >= _NEXT))
    tails = np.where(fits, at, extents)
    (with_state, _, _), (with_parent, parent_at, _), (_, name_at, name_size) = texts
    fits &= ~_holding(data, _LATE_PARENT, tails, extents)
    fits &= with_state | ~_holding(data, _LATE_STATE, tails, extents)
    traces = ids[:, 2:18]
    parents = [b""] * len(contents)
    if with_parent.any():
        rows = np.flatnonzero(with_parent)
        around = np.concatenate((traces[rows], block(parent_at[rows], 8)), axis=1)
        for i, parent in zip(rows.tolist(), around.view("V24")[:, 0].tolist(), strict=True):
            parents[i] = parent
    fields = SpanFields(
        _texts(data, name_at, name_size + 2),
        np.concatenate((traces, ids[:, 20:28]), axis=1).view("V24")[:, 0].tolist(),
        parents,
        times[:, 1:9].copy().view("<i8")[:, 0],
        times[:, 10:18].copy().view("<i8")[:, 0],
        np.flatnonzero(with_state & fits).tolist(),
        np.flatnonzero(fits & _holding(data, _FAILURE, tails, extents)).tolist(),
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


def _holding(data: bytes, text: RareText, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    """Which of these parts, in order and apart, contain `text`."""
    result = np.zeros(len(starts), np.bool_)
    places = text.places(data)
    if len(places):
        parts = np.searchsorted(starts, places, "right") - 1
        inside = (parts >= 0) & (places < ends[parts])
        result[parts[inside]] = True
    return result


def _windows(data: bytes, size: int) -> npt.NDArray[np.void]:
    """The `size` bytes from each offset on, without a copy."""
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
