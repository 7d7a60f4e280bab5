import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from gpu_profile.errors import UsageError
from gpu_profile.serving import BatchedRequest, Engine, RequestPhase
from gpu_profile.serving.engine import PassSender
from gpu_profile.serving.streams.forward_pass import decoded, frames_of
from gpu_profile.serving.streams.message_types import ForwardPass

BATCH = [BatchedRequest("a", "x", RequestPhase.PREFILL, 100, 20), BatchedRequest("b", "y", RequestPhase.DECODE, 1, 70)]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "serving"))
        receiving.settimeout(60)
        yield receiving


def received(receiver: socket.socket) -> ForwardPass:
    return decoded(frames_of(receiver.recv(2**20)))


def test_iterations_and_ends_of_requests_arrive_over_a_unix_socket(receiver: socket.socket, tmp_path: Path) -> None:
    engine = Engine(f"unix://{tmp_path}/serving", worker="w", rank=2)
    with engine.iteration(BATCH):
        pass
    with pytest.raises(KeyError), engine.iteration(BATCH[1:]):
        raise KeyError
    engine.ended(["a"])
    engine.ended([])
    messages = [received(receiver) for _ in range(3)]
    assert [each.sequence for each in messages] == [0, 1, 2]
    first, second, last = messages
    assert (first.worker, first.rank, first.requests) == ("w", 2, tuple(BATCH))
    assert (first.prefills, first.prefill_tokens, first.prefill_kv, first.decodes, first.decode_kv) == (
        1,
        100,
        20,
        1,
        70,
    )
    assert first.wall_s > 0
    assert first.age_s > 0
    assert second.requests == (BATCH[1],)
    assert last.idle
    assert last.ended == ("a",)
    engine.close()


def test_a_list_that_the_engine_fills_anew_and_the_numbers_of_its_libraries_arrive_as_they_were(
    receiver: socket.socket, tmp_path: Path
) -> None:
    """One request without a tenant does not cost the others their iteration."""
    engine = Engine(f"unix://{tmp_path}/serving")
    batch = [BATCH[0], BatchedRequest("c", None, RequestPhase.DECODE, np.int64(1), np.int32(8))]  # type: ignore[arg-type]
    with engine.iteration(batch):
        pass
    batch.clear()
    message = received(receiver)
    assert message.requests == (BATCH[0], BatchedRequest("c", None, RequestPhase.DECODE, 1, 8))
    assert message.decode_kv == 8
    engine.close()
    assert not engine.lost


def test_an_engine_without_a_receiver_goes_on_and_leaves_a_gap(tmp_path: Path) -> None:
    sender = PassSender(f"unix://{tmp_path}/serving")
    for _ in range(3):
        sender.send(1, BATCH)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        while sender.lost < 3:
            threading.Event().wait(0.01)
        receiving.bind(str(tmp_path / "serving"))
        receiving.settimeout(60)
        sender.send(1, BATCH)
        assert received(receiving).sequence == 3
    sender.close()


def test_iterations_arrive_over_zeromq(tmp_path: Path) -> None:
    engine = Engine(f"ipc://{tmp_path}/serving")
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.connect(f"ipc://{tmp_path}/serving")
        while not subscriber.poll(50):
            with engine.iteration(BATCH):
                pass
        assert decoded(subscriber.recv_multipart()).requests == tuple(BATCH)
    engine.close()


def test_an_address_that_cannot_be_used_is_reported_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="Give a free"):
        Engine("nonsense")
