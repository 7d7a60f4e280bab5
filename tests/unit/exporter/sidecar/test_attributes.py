"""Attributes as bytes are what OpenTelemetry's own classes read."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.push import attributes

from gpu_profile_exporter.sidecar.attributes import encoded

values = st.one_of(
    st.text(max_size=300),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.lists(st.text(max_size=5), max_size=4),
)


@given(st.dictionaries(st.text(min_size=1, max_size=200), values, max_size=6))
def test_every_value_is_read_back(told: dict[str, object]) -> None:
    found = attributes(Span.FromString(encoded(told)).attributes)  # type: ignore[arg-type]
    assert found == told
    assert [type(value) for value in found.values()] == [type(value) for value in told.values()]
