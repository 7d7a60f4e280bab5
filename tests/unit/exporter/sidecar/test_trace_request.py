"""A request with spans as bytes: what is received, less what was added, is what was sent."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.otlp_traces import request_of, span, spans_of, with_attributes

from gpu_profile.protobuf import double, fixed64, message, number, string, varint
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

ADDED = message(9, string(1, "gpu_profile.x"), message(2, double(4, 1.5)))

#: Fields that no version of OTLP has, of every kind, a group with a group inside among them.
unknown = st.sampled_from(
    [
        number(90, 7),
        number(500_000, 1 << 63),
        fixed64(91, 5),
        varint(92 << 3 | 5) + b"abcd",
        message(93, b"\x12\x00\xff"),
        varint(94 << 3 | 3)
        + number(1, 1)
        + varint(2 << 3 | 3)
        + string(3, "x")
        + varint(2 << 3 | 4)
        + varint(94 << 3 | 4),
    ]
)
names = st.text(max_size=200)
raw_spans = st.builds(
    lambda name, before, after: b"".join(before) + span(name, 1, 2).SerializeToString() + b"".join(after),
    names,
    st.lists(unknown, max_size=2),
    st.lists(unknown, max_size=2),
)


@st.composite
def enclosed(draw: st.DrawFn, inner: st.SearchStrategy[bytes], field: int) -> bytes:
    """A message with such messages in a field, and others' fields between them, in any order."""
    parts = [message(field, draw(inner)) for _ in range(draw(st.integers(0, 3)))]
    parts += draw(st.lists(unknown, max_size=2))
    if draw(st.booleans()):
        parts.append(message(1, b"") if field == 2 else number(95, 1))
    return b"".join(draw(st.permutations(parts)))


requests = enclosed(enclosed(enclosed(raw_spans, 2), 2), 1)


@given(requests, st.data())
def test_received_less_what_was_added_is_what_was_sent(sent: bytes, data: st.DataObject) -> None:
    request = TraceRequest(sent)
    chosen = [[ADDED if data.draw(st.booleans()) else b"" for _ in scope.places] for scope in request.scopes]
    received = with_attributes(request, chosen)
    flags = [bool(one) for group in chosen for one in group]
    assert len(flags) == len(request)
    if not any(flags):
        assert received == sent
    expected = ExportTraceServiceRequest.FromString(sent)
    of = [one for r in expected.resource_spans for s in r.scope_spans for one in s.spans]
    for one, has in zip(of, flags, strict=True):
        if has:
            one.MergeFromString(ADDED)
    assert ExportTraceServiceRequest.FromString(received) == expected
    # Byte for byte: without the additions, and with the lengths of before, it is the same again.
    again = TraceRequest(received)
    shorter = {place: place.end - len(ADDED) * has for place, has in zip(places(again), flags, strict=True)}
    assert [again.data[p.content : shorter[p]] for p in places(again)] == [
        sent[p.content : p.end] for p in places(request)
    ]
    assert outside(received, again) == outside(sent, request)


def places(request: TraceRequest) -> list:  # type: ignore[type-arg]
    return [place for scope in request.scopes for place in scope.places]


def outside(data: bytes, request: TraceRequest) -> list[tuple[int, bytes]]:
    """All fields that are no spans, at each level, as they are encoded."""
    found = []
    for place, inside in request._places:
        found.append((1, without(data, place.content, place.end, list(inside))))
        for around in inside:
            mine = [p for p in places(request) if around.content <= p.key and p.end <= around.end]
            found.append((2, without(data, around.content, around.end, mine)))
    return [(0, without(data, 0, len(data), [place for place, _ in request._places])), *found]


def without(data: bytes, start: int, end: int, left_out: list) -> bytes:  # type: ignore[type-arg]
    parts = []
    for place in left_out:
        parts.append(data[start : place.key])
        start = place.end
    return b"|".join([*parts, data[start:end]])


@given(st.binary(max_size=300))
@example(b"\x0a" + b"\xff" * 9 + b"\x7f")
@example(b"\x0a\x0b\x12" + b"\xff" * 9 + b"\x01")
def test_what_is_no_request_is_a_value_error(data: bytes) -> None:
    try:
        ExportTraceServiceRequest.FromString(data)
    except Exception:
        with pytest.raises(ValueError, match=r".+"):
            TraceRequest(data)
    else:
        assert with_attributes(TraceRequest(data), [[b""] * len(s.places) for s in TraceRequest(data).scopes]) == data


@given(requests, st.data())
def test_a_request_that_is_cut_off_anywhere_is_read_as_the_library_reads_it(sent: bytes, data: st.DataObject) -> None:
    part = sent[: data.draw(st.integers(0, len(sent)))]
    try:
        whole = spans_of(part)
    except Exception:
        with pytest.raises(ValueError, match=r".+"):
            TraceRequest(part)
    else:
        assert len(TraceRequest(part)) == len(whole)


def test_a_long_span_of_many_gets_its_attributes_at_its_end() -> None:
    spans = [span(f"{i}" * (i * 97), 1, 2, url__path="/x") for i in range(9)]
    request = TraceRequest(request_of(spans))
    found = spans_of(with_attributes(request, [[ADDED if i % 2 else b"" for i in range(9)]]))
    assert [one.name for one in found] == [one.name for one in spans]
    assert [[pair.key for pair in one.attributes] for one in found] == [
        ["url.path", *(["gpu_profile.x"] * (i % 2))] for i in range(9)
    ]


@given(requests, st.data())
def test_a_request_in_parts_has_every_span_once_with_its_attributes_and_all_around_it(
    sent: bytes, data: st.DataObject
) -> None:
    request = TraceRequest(sent)
    chosen = [[ADDED if data.draw(st.booleans()) else b"" for _ in scope.places] for scope in request.scopes]
    whole = with_attributes(request, chosen)
    most = data.draw(st.integers(1, max(2, len(whole) + 10)))
    whole_parts = request.parts(chosen, most)
    parts = [(b"".join(part.pieces), part.spans) for part in whole_parts]
    assert [len(part) for part, _ in parts] == [part.size for part in whole_parts]
    assert [one for part, _ in parts for one in spans_of(part)] == spans_of(whole)
    assert [len(spans_of(part)) for part, _ in parts] == [n for _, n in parts]
    for part, _ in parts:
        again = ExportTraceServiceRequest.FromString(part)
        assert [(r.resource, len(r.scope_spans)) for r in again.resource_spans] == [
            (r.resource, len(r.scope_spans)) for r in ExportTraceServiceRequest.FromString(request.data).resource_spans
        ]
    if len(whole) > most:
        largest = max((place.end - place.key for place in places(TraceRequest(whole))), default=0)
        around = len(whole) - sum(place.end - place.key for place in places(TraceRequest(whole)))
        # Lengths of what stands around may take a few bytes more or less.
        assert all(len(part) <= max(most, largest + around) + 40 for part, _ in parts)


def test_spans_of_several_scopes_stay_with_their_resource() -> None:
    both = request_of([span("a", 1, 2)], scope="one", k8s__pod__uid="p") + request_of([span("b", 1, 2)], scope="two")
    request = TraceRequest(both)
    assert [scope.name for scope in request.scopes] == ["one", "two"]
    assert [len(scope.resource.attributes) for scope in request.scopes] == [2, 1]
    found = ExportTraceServiceRequest.FromString(with_attributes(request, [[], [ADDED]]))
    assert [len(r.scope_spans[0].spans[0].attributes) for r in found.resource_spans] == [0, 1]


@pytest.mark.parametrize("pattern", [b"", b"\x12\x90\x01\x0a\x10"])
@pytest.mark.parametrize("lengths", [[150] * 60, [150, 10, 150, 17_000, 300, 0] * 12, [10] * 200])
def test_spans_of_every_size_are_found(lengths: list[int], pattern: bytes) -> None:
    spans = [span("x" * n, 1, 2).SerializeToString() + message(93, pattern) for n in lengths]
    data = message(1, message(2, message(1, string(1, "app")), *(message(2, one) for one in spans), string(3, "url")))
    request = TraceRequest(data)
    (scope,) = request.scopes
    assert [data[place.content : place.end] for place in scope.places] == spans
    assert [place.key for place in scope.places][1:] == [place.end for place in scope.places][:-1]
    assert [request.span(i).name for i in range(len(request))] == ["x" * n for n in lengths]
