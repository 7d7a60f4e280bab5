"""What a reader and its supervisor say to each other, however the pipe cuts it and whatever else writes to it."""

import os
import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.reader.wire import LONGEST, Incoming, Message, WireError, send

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=5), some, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.builds(lambda kind, rest: (kind, *rest), st.text(max_size=8), st.lists(VALUES, max_size=4)), max_size=5
)


def sent(messages: list[Message]) -> bytes:
    reading, writing = os.pipe()
    found = b""
    try:
        for message in messages:
            send(writing, message)
            found += os.read(reading, 1 << 20)
    finally:
        os.close(reading)
        os.close(writing)
    return found


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_messages_come_out_as_they_went_in_however_their_bytes_are_cut(
    messages: list[Message], cuts: list[int]
) -> None:
    data, incoming = sent(messages), Incoming()
    found: list[Message] = []
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in zip(edges, [*edges[1:], len(data)], strict=True):
        found += incoming.feed(data[start:end])
    assert found == messages


@given(garbage=st.binary(min_size=8, max_size=300))
def test_garbage_is_refused_or_waited_on_and_never_taken_for_a_message(garbage: bytes) -> None:
    size, checksum = struct.unpack_from("<II", garbage)
    incoming = Incoming()
    if size > LONGEST or (size <= len(garbage) - 8 and zlib.crc32(garbage[8 : 8 + size]) != checksum):
        with pytest.raises(WireError):
            list(incoming.feed(garbage))
    elif size > len(garbage) - 8:
        assert list(incoming.feed(garbage)) == []


@given(st.lists(st.text(max_size=9), min_size=1, max_size=3), st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_is_noticed(words: list[str], place: int, change: int) -> None:
    data = bytearray(sent([("word", words)]))
    data[place % len(data)] ^= change
    with suppress(WireError):
        assert list(Incoming().feed(bytes(data))) == []


@pytest.mark.parametrize("size", [LONGEST + 1, 2**32 - 1])
def test_a_frame_of_an_absurd_length_is_refused_before_anything_is_kept_for_it(size: int) -> None:
    with pytest.raises(WireError, match=str(size)):
        list(Incoming().feed(struct.pack("<II", size, 0)))


@pytest.mark.parametrize("body", [b"", b"i\x01\0\0\0", b")\x01i\x01\0\0\0", b")\0", b"(\x05\0\0\0", b"z\x02hi"])
def test_a_whole_frame_that_holds_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        list(Incoming().feed(struct.pack("<II", len(body), zlib.crc32(body)) + body))


def test_messages_before_the_garbage_are_given() -> None:
    found = Incoming().feed(sent([("one", 1)]) + b"\xff" * 20)
    assert next(found) == ("one", 1)
    with pytest.raises(WireError):
        next(found)


def test_who_sends_to_nobody_is_told() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        send(writing, ("hello",))
    os.close(writing)
