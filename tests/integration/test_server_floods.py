"""Crowds of bad clients against a running exporter, and the scrapers that it has to answer all the same."""

import base64
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Self

import bcrypt
import pytest
from support.programs import Exporter, exporter, said, until
from support.servers import GET, answer

CROWD = 600
#: What a bad client says at once, and what now and then.
KINDS = {
    "silent": (b"", b""),
    "a byte now and then": (b"GET /", b"x"),
    "half a request": (GET[:-2], b""),
    "one request whose answer is not read": (GET, b""),
    "many requests whose answers are not read": (GET * 20, GET),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01", b"\r\n\r\n"),
    "a body without end": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 1000),
}


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


@pytest.mark.parametrize("kind", KINDS)
def test_scrapers_are_answered_beside_600_bad_clients_of_their_own_host(running: Exporter, kind: str) -> None:
    port = int(running.url.rpartition(":")[2])
    with ExitStack() as stack:
        steady = scraper(port, stack)
        assert [scrape(steady) for _ in range(3)] == [200] * 3
        crowd = Crowd(port, stack, *KINDS[kind], "127.0.0.1")
        crowd.grow(CROWD)
        for _ in range(10):
            assert scrape(steady) == 200, "on the connection that it has had from the start"
            assert scrape(scraper(port, stack)) == 200, "on a new connection"
            crowd.grow(30)


@pytest.mark.parametrize("seed", range(4))
def test_scrapers_are_answered_beside_any_mix_of_bad_clients(running: Exporter, seed: int) -> None:
    port = int(running.url.rpartition(":")[2])
    random = Random(seed)  # noqa: S311 - nothing is kept secret by it
    with ExitStack() as stack:
        hosts = [f"127.0.0.{n}" for n in range(1, 4)]
        crowds = [Crowd(port, stack, *random.choice([*KINDS.values()]), random.choice(hosts)) for _ in range(5)]
        for _ in range(20):
            random.choice(crowds).grow(random.randint(1, 150))
            assert scrape(scraper(port, stack)) == 200
    assert running.process.poll() is None


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


# ------------------------------------------------------------------ guesses of passwords

#: "secret", at the usual cost.
HASHED = "$2b$10$xvEMM/41FLsdbK3yRaVotOKd77S4VWwfd8Dp0h2WO13dmNN/i7d5e"


def with_password(password: str) -> bytes:
    coded = base64.b64encode(f"prometheus:{password}".encode())
    return GET[:-2] + b"Authorization: Basic " + coded + b"\r\n\r\n"


class Guessers:
    """Threads that guess, each on one connection, as fast as they are answered."""

    def __init__(self, port: int, n: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self.statuses: Counter[int] = Counter()
        self._threads = [threading.Thread(target=self._guess, args=(i,)) for i in range(n)]

    def _guess(self, i: int) -> None:
        n = 0
        while not self._ended.is_set():
            with suppress(OSError), ExitStack() as stack:
                connection = scraper(self._port, stack)
                while not self._ended.is_set():
                    n += 1
                    connection.sendall(with_password(f"{i}.{n}"))
                    self.statuses[answer(connection)[0]] += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_guessers_of_its_own_host_cost_a_scraper_no_answer(tmp_path: Path) -> None:
    config = tmp_path / "web.yml"
    config.write_text(f"basic_auth_users: {{prometheus: {HASHED}}}")
    with exporter("--driver", "none", "--config", "/dev/null", "--web-config-file", str(config)) as running:
        port = int(running.url.rpartition(":")[2])

        def scraped() -> int:
            with ExitStack() as stack:
                connection = scraper(port, stack)
                connection.sendall(with_password("secret"))
                return answer(connection)[0]

        assert scraped() == 200
        with Guessers(port, 20) as guessers:
            until(lambda: guessers.statuses[401] >= 3, "guesses are checked")
            for _ in range(3):
                running.process.send_signal(signal.SIGHUP)
                assert "was read again" in said(running, "was read again")[-1]
                before = guessers.statuses.total()
                until(lambda: guessers.statuses.total() > before, "guesses come after the reload")  # noqa: B023
                assert [scraped() for _ in range(5)] == [200] * 5
            # The same password under another hash: it has to be checked among the guesses.
            config.write_text(
                f"basic_auth_users: {{prometheus: {bcrypt.hashpw(b'secret', bcrypt.gensalt(10)).decode()}}}"
            )

            def let_in() -> bool:
                # On a busy machine a check among the guesses can take longer than a scraper waits; it comes again.
                with suppress(TimeoutError):
                    return scraped() == 200
                return False

            until(let_in, "the scraper is let in anew", 120)
            assert not guessers.statuses[200]
