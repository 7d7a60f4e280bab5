"""The columns of a request's spans are what OpenTelemetry's own classes read from each span."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.otlp_traces import add_attributes, request_of

from gpu_profile.protobuf import fixed64, message, number, string
from gpu_profile_exporter.sidecar.span_fields import SpanFields, kind_and_name
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

#: Enough spans to be read together, however few there are of each kind.
MANY = 64


def _span(
    trace: int, own: int, parent: int, state: str, name: str, kind: int, start: int, end: int, code: int | None,
    retries: int | str | None, flags: int,
) -> Span:  # fmt: skip
    span = Span(
        trace_id=os.urandom(trace), span_id=os.urandom(own), parent_span_id=os.urandom(parent), trace_state=state,
        name=name, kind=kind, start_time_unix_nano=start, end_time_unix_nano=end, flags=flags,  # type: ignore[arg-type]
    )  # fmt: skip
    if retries is not None:
        add_attributes(span, {"retries": retries})
    if code is not None:
        span.status.CopyFrom(Status(code=code, message="why"))  # type: ignore[arg-type]
    return span


ids = st.sampled_from([8, 8, 8, 0, 1, 16])
made = st.builds(
    _span,
    st.sampled_from([16, 16, 16, 0, 24]),
    ids,
    st.sampled_from([0, 8, 8, 3]),
    st.sampled_from(["", "", "ot=th:8", "x" * 130]),
    st.sampled_from(["GET /x", "", "Prüfung", "y" * 127, "z" * 128, "*" * 300]),
    st.integers(0, 5),
    st.sampled_from([0, 1, 10**18, (1 << 64) - 1]),
    st.sampled_from([0, 2, 10**18 + 7, 1 << 63]),
    st.sampled_from([None, 0, 1, 2, 2]),
    st.sampled_from([None, 2, "x" * 40]),
    st.sampled_from([0, 0x301]),
)
#: A span's field may come anywhere in it, and unknown ones may come first.
first = st.sampled_from(
    [b"", b"", b"", number(90, 7), string(5, "early"), number(6, 3), fixed64(8, 9), message(4, b"p")]
)


#: The field that an encoder writes last, or fields that a later version of OTLP has after the known ones.
last = st.sampled_from(["", "", "parent_span_id", "name", "kind", "attributes", "end_time_unix_nano", "span_id", *"nb"])
_NEW = {"n": number(90, 7), "b": message(93, b"\x12\x00\xff")}


def _encoded(before: bytes, span: Span, last: str) -> bytes:
    moved, rest = Span(), Span()
    rest.CopyFrom(span)
    if last not in ("", *_NEW) and any(field.name == last for field, _ in span.ListFields()):
        rest.ClearField(last)  # type: ignore[arg-type]
        moved.CopyFrom(span)
        for field, _ in span.ListFields():
            if field.name != last:
                moved.ClearField(field.name)
    return b"".join((before, rest.SerializeToString(), moved.SerializeToString(), _NEW.get(last, b"")))


@given(st.lists(st.tuples(first, made, last), min_size=1, max_size=9), st.sampled_from([1, MANY]))
def test_columns_are_the_fields_of_the_spans(spans: list[tuple[bytes, Span, str]], times: int) -> None:
    encoded = [_encoded(*each) for each in spans] * times
    data = message(1, message(2, *(message(2, one) for one in encoded), string(3, "schema")))
    parsed = [Span.FromString(one) for one in encoded]
    fields = SpanFields.of(TraceRequest(data))
    assert list(map(kind_and_name, fields.labels)) == [(span.kind, span.name) for span in parsed]
    assert fields.keys == [span.trace_id + span.span_id for span in parsed]
    assert fields.parents == [span.parent_span_id and span.trace_id + span.parent_span_id for span in parsed]
    assert fields.starts.view("u8").tolist() == [span.start_time_unix_nano for span in parsed]
    assert fields.ends.view("u8").tolist() == [span.end_time_unix_nano for span in parsed]
    assert sorted(fields.states) == [i for i, span in enumerate(parsed) if span.trace_state]
    assert fields.failed == [i for i, span in enumerate(parsed) if span.status.code == 2]


@pytest.mark.parametrize("n", [1, MANY])
def test_ids_that_are_far_too_long_are_not_kept(n: int) -> None:
    spans = [
        _span(1_000, 8, 8, "", "GET /x", 2, 1, 2, None, None, 0),
        _span(16, 999, 0, "", "", 2, 1, 2, None, None, 0),
    ]
    fields = SpanFields.of(TraceRequest(request_of(spans * n)))
    assert set(fields.keys) == set(fields.parents) == {b""}


@pytest.mark.parametrize("late", ["name", "kind", "parent_span_id", "trace_state", "n", "b"])
def test_a_field_after_attributes_and_status_is_seen(late: str) -> None:
    one = _span(16, 8, 8, "ot=th:8", "GET /x", 3, 5, 6, 2, "x", 0x301)
    data = message(1, message(2, *[message(2, _encoded(b"", one, late))] * MANY))
    fields = SpanFields.of(TraceRequest(data))
    assert set(map(kind_and_name, fields.labels)) == {(3, "GET /x")}
    assert set(fields.parents) == {one.trace_id + one.parent_span_id}
    assert sorted(fields.states) == fields.failed == list(range(MANY))


@pytest.mark.parametrize(
    ("arrived", "expected"), [(set(), [0, 1, 2, 3, 5]), ({b"c"}, [0, 1, 2, 3, 4, 5]), ({b"x"}, [0, 1, 2, 3, 5])]
)
def test_spans_that_came_before_or_come_twice_are_alone(arrived: set[bytes], expected: list[int]) -> None:
    request = TraceRequest(request_of([Span(trace_id=key) for key in (b"a", b"b", b"a", b"c", b"d")]))
    ranges = list(SpanFields.of(request).distinct(arrived))
    assert [rows.start for rows in ranges] + [ranges[-1].stop] == expected


def test_many_spans_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    request = TraceRequest(request_of([_span(16, 8, 8, "", "GET /x", 2, 1, 2, None, None, 0)] * MANY))
    monkeypatch.setattr(TraceRequest, "span", None)
    assert len(SpanFields.of(request).keys) == MANY


def test_a_request_without_spans_has_empty_columns() -> None:
    fields = SpanFields.of(TraceRequest(b""))
    assert not fields.keys
    assert list(fields.distinct(frozenset())) == []


@given(st.lists(st.sampled_from(["a", "b", "longer"]), min_size=2, max_size=3))
def test_spans_of_one_name_share_its_label(names: list[str]) -> None:
    spans = [_span(16, 8, 8, "", names[i % len(names)], 2, 1, 2, None, None, 0) for i in range(MANY)]
    labels = SpanFields.of(TraceRequest(request_of(spans))).labels
    assert [kind_and_name(label) for label in labels] == [(2, span.name) for span in spans]
    assert len(set(names)) > 1 or len(set(map(id, labels))) == 1
