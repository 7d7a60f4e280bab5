import sys
from typing import Any

import pytest
from msgspec import msgpack
from unit.serving.tiny_engine import EPOCH_NS, MS, Frames, encoded

from gpu_profile.errors import UsageError
from gpu_profile.serving.streams import forward_pass
from gpu_profile.serving.streams.forward_pass import MessageError, MessageFault, decoded, frames_of
from gpu_profile.serving.streams.pass_times import KEPT_BACK_NS, PassTimes, PublishedPasses, TimedPasses

LATER_NS = 2 * KEPT_BACK_NS

#: As msgspec encodes SGLang's structs (48ccb9a): maps, with all fields.
SGLANG: dict[str, Any] = {
    "worker_id": "worker-7", "dp_rank": 3, "wall_time": 0.0125,
    "scheduled_requests": {
        "num_prefill_requests": 2, "sum_prefill_tokens": 12, "var_prefill_length": 4.0, "sum_prefill_kv_tokens": 5,
        "num_decode_requests": 1, "sum_decode_kv_tokens": 11, "var_decode_kv_tokens": 0.0,
    },
    "queued_requests": {
        "num_prefill_requests": 1, "sum_prefill_tokens": 6, "var_prefill_length": 0.0, "num_decode_requests": 1,
        "sum_decode_kv_tokens": 6, "var_decode_kv_tokens": 0.0,
    },
}  # fmt: skip


def frames(message: object, sequence: bytes = b"\0" * 7 + b"\5") -> Frames:
    return b"", sequence, msgpack.encode(message)


def test_a_message_of_sglang_and_of_vllm_is_read() -> None:
    message = decoded(frames(SGLANG))
    assert (message.worker, message.rank, message.sequence, message.wall_s) == ("worker-7", 3, 5, 0.0125)
    assert (message.prefills, message.prefill_tokens, message.prefill_kv) == (2, 12, 5)
    assert (message.length_variance, message.decodes, message.decode_kv, message.requests) == (4.0, 1, 11, None)
    vllm = {"version": 1, "counter_id": 9, "timing_scope": "execute_model_cuda", **SGLANG}
    assert decoded(frames(vllm)) == message
    assert decoded(frames({})).idle
    topic, *rest = frames(SGLANG)
    assert topic == b""
    assert decoded(frames_of(b"".join(rest))) == message


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ((b"", b"\0" * 8), MessageFault.FRAMES),
        ((b"", b"\0" * 7, b"\x80"), MessageFault.SIZE),
        ((b"", b"\0" * 8, b"\0" * 300_000), MessageFault.SIZE),
        ((b"", b"\0" * 8, b""), MessageFault.FORMAT),
        ((b"", b"\0" * 8, b"\x80\x80"), MessageFault.FORMAT),
        ((b"", b"\0" * 8, b"\x81\xa1x" + b"\x91" * 100_000), MessageFault.FORMAT),
        ((b"", b"\0" * 8, b"\x81\xa5ended\xdd\xff\xff\xff\xff"), MessageFault.FORMAT),
        ((b"", b"\0" * 8, b"\xdd\xff\xff\xff\xff"), MessageFault.TYPE),
        (frames([]), MessageFault.TYPE),
        (frames({"version": 2}), MessageFault.VERSION),
        (frames({"worker_id": 3}), MessageFault.TYPE),
        (frames({"worker_id": "x" * 1000}), MessageFault.RANGE),
        (frames({"dp_rank": True}), MessageFault.TYPE),
        (frames({"dp_rank": -1}), MessageFault.RANGE),
        (frames({"wall_time": float("nan")}), MessageFault.RANGE),
        (frames({"wall_time": float("inf")}), MessageFault.RANGE),
        (frames({"wall_time": -1.0}), MessageFault.RANGE),
        (frames({"wall_time": "1"}), MessageFault.TYPE),
        (frames({"scheduled_requests": [1]}), MessageFault.TYPE),
        (frames({"scheduled_requests": {"num_decode_requests": 2**63}}), MessageFault.RANGE),
        (frames({"scheduled_requests": {"num_decode_requests": 1.0}}), MessageFault.TYPE),
        (frames({"scheduled_requests": {"sum_prefill_tokens": 5}}), MessageFault.RANGE),
        (frames({"requests": [["a", "t", 1, 1, 1]]}), MessageFault.RANGE),
        (frames({"scheduled_requests": {"num_decode_requests": 1}, "requests": [["a", 1]]}), MessageFault.TYPE),
        (frames({"ended": [1]}), MessageFault.TYPE),
    ],
)
def test_a_message_that_is_not_as_defined_is_refused_with_a_reason(wrong: Frames, fault: MessageFault) -> None:
    with pytest.raises(MessageError) as error:
        decoded(wrong)
    assert error.value.fault is fault


def test_without_msgspec_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = frames(SGLANG)
    forward_pass.message_types.cache_clear()
    monkeypatch.delitem(sys.modules, "gpu_profile.serving.streams.message_types", raising=False)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(UsageError, match=r"pip install 'gpu-profile\[serving\]'"):
        decoded(message)


def decode(sequence: int, wall_s: float = 0.01, decodes: int = 1, worker: str = "w") -> Any:
    scheduled = {"num_decode_requests": decodes, "sum_decode_kv_tokens": 100 * decodes} if decodes else {}
    return decoded(encoded(sequence, worker, wall_time=wall_s, scheduled_requests=scheduled))


def in_ms(passes: TimedPasses) -> list[tuple[int, int]]:
    """The start and the end of each iteration."""
    return [((start - EPOCH_NS) // MS, (end - EPOCH_NS) // MS) for start, end in zip(*passes[:2], strict=True)]


def test_later_messages_correct_late_ones_and_iterations_do_not_overlap() -> None:
    times = PassTimes()
    late_ms = [0, 40, 32, 21, 10, 0, 0]
    for place, late in enumerate(late_ms):
        times.take(decode(place), EPOCH_NS + (place + 1) * 10 * MS + late * MS)
    passes = times.settled(EPOCH_NS + LATER_NS)
    assert (passes.ends - EPOCH_NS).tolist() == [10 * MS * (place + 1) for place in range(7)]
    assert (passes.ends[:-1] <= passes.starts[1:]).all()
    assert times.settled(EPOCH_NS + 2 * LATER_NS).messages == []


def test_a_short_gap_belongs_to_the_iteration_and_an_idle_one_does_not() -> None:
    times = PassTimes()
    for place, end_ms in enumerate((10, 23, 43, 60)):
        times.take(decode(place), EPOCH_NS + end_ms * MS)
    times.take(decode(4, 0.0, 0), EPOCH_NS + 61 * MS)
    times.take(decode(5), EPOCH_NS + 72 * MS)
    passes = times.settled(EPOCH_NS + LATER_NS)
    assert in_ms(passes) == [
        (0, 13), (13, 23), (33, 43), (50, 60), (62, 72),
    ]  # fmt: skip


def test_lost_messages_have_places_and_a_restart_begins_anew() -> None:
    times = PassTimes()
    for sequence, end_ms in ((7, 10), (10, 40), (0, 100), (1, 110)):
        times.take(decode(sequence), EPOCH_NS + end_ms * MS)
    passes = times.settled(EPOCH_NS + LATER_NS)
    assert [each is None for each in passes.messages] == [False, True, True, False, False, False]
    assert [end for _, end in in_ms(passes)[:4]] == [10, 20, 30, 40]
    assert times.gaps == 2
    with pytest.raises(MessageError):
        times.take(decode(1), EPOCH_NS + 200 * MS)


def test_a_sequence_that_the_time_cannot_hold_is_refused_unless_the_next_message_continues_it() -> None:
    published = PublishedPasses()
    sequences = [3, 4, 2**63, 5, 2**40, 2**50, 7, 10**6, 10**6 + 1, 10**6 + 2, 0, 5 * 10**5, 1]
    for place, sequence in enumerate(sequences):
        published.take(decode(sequence), EPOCH_NS + place * 10 * MS)
    (stream,) = published.streams.values()
    assert published.refused == {MessageFault.SEQUENCE: 5}
    # One message between 5 and 7, and the first one of the restart at a million.
    assert stream.gaps == 2
    passes = [each and each.sequence for each in stream.settled(EPOCH_NS + LATER_NS).messages]
    assert passes == [3, 4, 5, None, 7, None, 10**6 + 1, 10**6 + 2, 0, 1]
    published.take(decode(80_000), EPOCH_NS + 20_000 * MS)
    assert stream.gaps == 80_000


def test_a_restart_with_an_impossible_sequence_is_accepted_although_every_second_message_is_lost() -> None:
    published = PublishedPasses()
    for place in range(40):
        sequence = 5 + place if place < 10 else 10**9 + 2 * place
        published.take(decode(sequence), EPOCH_NS + place * 10 * MS)
    # The first ones of the restart are refused: a tenth of a second.
    assert published.refused == {MessageFault.SEQUENCE: 7}


def test_impossible_sequences_that_jump_or_come_beside_the_publishers_are_never_accepted() -> None:
    published = PublishedPasses()
    for place in range(40):
        published.take(decode(5 if not place else 10**9 + 10**6 * place), EPOCH_NS + place * 10 * MS)
        published.take(decode(10**12 - place), EPOCH_NS + place * 10 * MS)
    assert published.refused == {MessageFault.SEQUENCE: 79}


@pytest.mark.parametrize("first", [1_000, 10**9])
def test_two_publishers_in_turn_with_one_name_lose_no_more_messages_than_time_can_hold(first: int) -> None:
    published = PublishedPasses()
    for turn in range(500):
        for place, sequence in enumerate((5 + turn, first + turn)):
            published.take(decode(sequence), EPOCH_NS + (2 * turn + place) * 10 * MS)
    assert published.gaps <= 4096 * (1 + 10_000 * MS / KEPT_BACK_NS)
    # Far apart, the second one's messages change nothing: none follows its last one.
    assert first < 10**9 or (published.gaps, published.refused) == (0, {MessageFault.SEQUENCE: 500})


def test_lost_messages_still_count_after_their_publisher_has_ended() -> None:
    published = PublishedPasses()
    for place, sequence in enumerate((0, 5, 6)):
        published.take(decode(sequence), EPOCH_NS + place * 10 * MS)
    published.settled(EPOCH_NS + LATER_NS)
    published.settled(EPOCH_NS + 200 * KEPT_BACK_NS)
    assert (published.streams, published.gaps) == ({}, 4)


def test_times_begin_anew_when_the_clock_is_set_back() -> None:
    times = PassTimes()
    for sequence, end_ms in ((0, 100_000), (1, 10), (2, 20)):
        times.take(decode(sequence), EPOCH_NS + end_ms * MS)
    passes = times.settled(EPOCH_NS + LATER_NS)
    assert [end for _, end in in_ms(passes)] == [10, 20]


def test_an_iteration_without_a_duration_lasts_since_the_one_before_unless_the_engine_was_idle() -> None:
    times = PassTimes()
    for sequence, (end_ms, decodes) in enumerate([(10, 1), (20, 1), (32, 1), (33, 0), (500, 1)]):
        times.take(decode(sequence, 0.0, decodes), EPOCH_NS + end_ms * MS)
    passes = times.settled(EPOCH_NS + 2 * LATER_NS)
    assert [end - start for start, end in in_ms(passes)[1:3]] == [10, 12]
    assert passes.starts[3] > EPOCH_NS + 480 * MS


def test_publishers_are_bounded_and_silent_ones_end() -> None:
    published = PublishedPasses()
    for place in range(100):
        published.take(decode(0, worker=f"w{place}"), EPOCH_NS)
    assert len(published.streams) == published.MOST
    assert published.refused == {MessageFault.STREAMS: 36}
    assert len(published.settled(EPOCH_NS + LATER_NS)) == 64
    published.settled(EPOCH_NS + 100 * KEPT_BACK_NS * 2)
    assert published.streams == {}


def test_a_flood_of_messages_is_refused() -> None:
    published = PublishedPasses()
    for place in range(5000):
        published.take(decode(place), EPOCH_NS)
    assert published.refused == {MessageFault.RATE: 5000 - 4096}
