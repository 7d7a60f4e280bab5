"""Messages of engines: received with the time of their arrival, bounded, and from publishers that restart."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from support.programs import until

from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.errors import UsageError
from gpu_profile_exporter.serving import listener
from gpu_profile_exporter.serving.listener import EngineListener, EngineMessage


@contextmanager
def listening(**addresses: str) -> Iterator[EngineListener]:
    engines = EngineListener(addresses, SYSTEM_CLOCK)
    engines.start()
    try:
        yield engines
    finally:
        engines.close()


def published(address: str, engines: EngineListener, text: bytes) -> EngineMessage:
    """Publish a message until it arrives."""
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.bind(address)
    found: list[EngineMessage] = []

    def arrived() -> bool:
        publisher.send_multipart([b"", bytes(8), text])
        found.extend(each for each in engines.take("zmq") if each.frames[2] == text)
        return bool(found)

    try:
        until(arrived, "a message")
    finally:
        context.destroy(linger=0)
    return found[0]


def test_messages_arrive_over_zeromq_after_a_restart_too_and_over_a_local_socket(tmp_path: Path) -> None:
    zeromq, local = f"ipc://{tmp_path}/engine", tmp_path / "local.sock"
    before_ns = SYSTEM_CLOCK.now_ns()
    with listening(zmq=zeromq, own=f"unix://{local}") as engines:
        first, second = (published(zeromq, engines, text) for text in (b"first", b"second"))
        assert before_ns < first.arrival_ns < second.arrival_ns < SYSTEM_CLOCK.now_ns()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(local))
            sender.send(bytes(8) + b"mine")
        assert until(lambda: engines.take("own"), "a datagram")[0].frames == (b"", bytes(8), b"mine")
    assert not local.exists()


def test_a_flood_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_MOST_WAITING", 10)
    monkeypatch.setattr(listener, "MOST_BYTES", 1_000)
    path = tmp_path / "local.sock"
    with listening(own=f"unix:{path}") as engines, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))
        sender.send(bytes(5_000))
        for _ in range(15):
            sender.send(b"x")
        until(lambda: engines.dropped("own") == {"too_large": 1, "no_room": 5}, "a full queue")
        assert len(engines.take("own")) == 10
        sender.send(b"y")
        until(lambda: engines.take("own"), "room again")


@pytest.mark.parametrize(
    "addresses", [("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"), ("unix:///run/e.sock", "unix:/run/e.sock")]
)
def test_two_engines_at_one_address_are_refused(addresses: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="--serving: a and b have one address; each engine publishes at its own"):
        EngineListener(dict(zip("ab", addresses, strict=True)), SYSTEM_CLOCK)


def test_an_address_that_cannot_be_used_is_the_users_error(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("not a socket")
    for address, says in ((f"unix:{taken}", "exists and is no socket"), ("unix:/nonexistent/x", "No such file")):
        with pytest.raises(UsageError, match=f"--serving: own: .*{says}"):
            EngineListener({"own": address}, SYSTEM_CLOCK)
    assert taken.read_text() == "not a socket"
