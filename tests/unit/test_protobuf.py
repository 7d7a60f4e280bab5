import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile import protobuf


@pytest.mark.parametrize(
    ("number", "written"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (-1, "ff" * 9 + "01")]
)
def test_whole_numbers_are_written_in_base_128(number: int, written: str) -> None:
    assert protobuf.varint(number).hex() == written


@given(st.integers(1, 1 << 20), st.integers(0, (1 << 64) - 1), st.text(), st.floats(allow_nan=False))
def test_what_is_written_is_read_again(field: int, number: int, text: str, real: float) -> None:
    parts = (
        protobuf.number(field, number),
        protobuf.fixed64(field, number),
        protobuf.string(field, text),
        protobuf.double(field, real),
    )
    (numbered, inside), *_ = protobuf.fields(protobuf.message(field, *parts))
    assert numbered == field
    assert isinstance(inside, bytes)
    found = [value for _, value in protobuf.fields(inside)]
    (eight,) = struct.unpack("<Q", struct.pack("<d", real))
    assert found == [number, number, text.encode("utf-8", "replace"), eight]


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_are_a_value_error_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert all(field > 0 for field, _ in protobuf.fields(data))
