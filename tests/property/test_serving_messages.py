from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from gpu_profile.serving.streams.forward_pass import MessageError, decoded
from gpu_profile.serving.streams.message_types import ForwardPass

NAMES = st.sampled_from([
    "worker_id", "dp_rank", "wall_time", "scheduled_requests", "queued_requests", "version", "requests", "ended", "age",
    "num_prefill_requests", "sum_prefill_tokens", "var_prefill_length", "sum_prefill_kv_tokens", "num_decode_requests",
    "sum_decode_kv_tokens", "x",
])  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.integers(0, 3), st.floats(), st.text(max_size=5),
    st.binary(max_size=5),
)  # fmt: skip
MESSAGES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=8), max_leaves=20
)


def read(frames: Any) -> None:
    try:
        message = decoded(frames)
    except MessageError:
        pass
    else:
        assert isinstance(message, ForwardPass)
        assert 0 <= message.wall_s <= 3600
        assert message.requests is None or len(message.requests) == message.prefills + message.decodes


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_frames_are_read_or_refused(frames: list[bytes]) -> None:
    read(frames)


@settings(max_examples=60)
@given(st.binary(min_size=8, max_size=8), st.dictionaries(NAMES, MESSAGES, max_size=8), st.integers(0, 60))
def test_any_map_is_read_or_refused(sequence: bytes, message: dict[str, Any], cut: int) -> None:
    payload = msgpack.encode(message)
    read((b"", sequence, payload))
    read((b"", sequence, payload[:cut]))
