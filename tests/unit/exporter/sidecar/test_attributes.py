"""Attributes as bytes are what OpenTelemetry's own classes read."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.push import attributes

from gpu_profile_exporter.sidecar.attributes import _EncodedRows, encoded

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


def test_rows_that_differ_in_doubles_are_as_if_each_was_packed_alone() -> None:
    columns = np.array([[0.0, -1.5, np.inf, 1e-300], [3.0, 2.0, 1.0, 0.1]])
    packed = [b"before" + struct.pack("<d", a) + b"" + struct.pack("<d", b) for a, b in columns.T.tolist()]
    assert _EncodedRows(b"before", b"").of(*columns) == packed
    # Zeros at the end of a row belong to it.
    assert _EncodedRows(b"\0").of(np.zeros(2)) == [bytes(9), bytes(9)]
