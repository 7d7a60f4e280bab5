"""Crowds of bad clients against a running exporter, and the scrapers that it has to answer all the same."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from support.programs import Exporter, exporter
from support.servers import GET, answer

CROWD = 600


@pytest.fixture(scope="module")
def running() -> Iterator[Exporter]:
    with exporter("--driver", "none", "--config", "/dev/null") as made:
        yield made


class Crowd:
    """Connections of one kind from one address: `says` is sent at once, `more` each time that `grow` is called."""

    def __init__(self, port: int, stack: ExitStack, says: bytes, more: bytes, source: str) -> None:
        self.port, self.stack, self.says, self.more, self.source = port, stack, says, more, source
        self.members: list[socket.socket] = []

    def grow(self, n: int) -> None:
        for member in self.members if self.more else ():
            with suppress(OSError):  # it was closed: the next ones take its place
                member.sendall(self.more)
        for _ in range(n):
            member = self.stack.enter_context(socket.socket())
            member.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            member.settimeout(10)
            member.bind((self.source, 0))
            member.connect(("127.0.0.1", self.port))
            with suppress(OSError):  # refused
                member.sendall(self.says)
            self.members.append(member)


def scraper(port: int, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))


def scrape(connection: socket.socket) -> int:
    connection.sendall(GET)
    return answer(connection)[0]


@pytest.mark.parametrize(
    ("says", "more"),
    [
        pytest.param(b"", b"", id="silent"),
        pytest.param(b"GET /", b"x", id="a-byte-now-and-then"),
        pytest.param(GET[:-2], b"", id="half-a-request"),
        pytest.param(GET, b"", id="one-request-whose-answer-is-not-read"),
        pytest.param(GET * 20, GET, id="many-requests-whose-answers-are-not-read"),
    ],
)
def test_scrapers_are_answered_beside_600_bad_clients_of_their_own_host(
    running: Exporter, says: bytes, more: bytes
) -> None:
    port = int(running.url.rpartition(":")[2])
    with ExitStack() as stack:
        steady = scraper(port, stack)
        assert [scrape(steady) for _ in range(3)] == [200] * 3
        crowd = Crowd(port, stack, says, more, "127.0.0.1")
        crowd.grow(CROWD)
        for _ in range(10):
            assert scrape(steady) == 200, "on the connection that it has had from the start"
            assert scrape(scraper(port, stack)) == 200, "on a new connection"
            crowd.grow(30)


def test_a_host_that_takes_all_connections_takes_none_from_another(running: Exporter) -> None:
    port = int(running.url.rpartition(":")[2])
    with ExitStack() as stack:
        steady = scraper(port, stack)
        assert scrape(steady) == 200
        crowd = Crowd(port, stack, GET, GET, "127.0.0.2")
        crowd.grow(CROWD)
        for _ in range(3):
            crowd.grow(CROWD)
        newcomer = scraper(port, stack)
        crowd.grow(CROWD)
        assert (scrape(steady), scrape(newcomer)) == (200, 200)
