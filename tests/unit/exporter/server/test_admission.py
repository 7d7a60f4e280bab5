from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.server.admission import Admission, peer_of
from gpu_profile_exporter.server.counts import Counts

LIMIT = 24


class Client:
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.requests = 0
        self.busy = False


class Crowd:
    """Clients that come, ask, are answered and go, and what must hold of each that is closed for another."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.admission: Admission[Client] = Admission(LIMIT, self.counts)
        self.open: list[Client] = []
        self.refused = 0

    def come(self, peer: str) -> Client:
        if self.admission.full:
            closed = self.admission.make_room()
            if closed is None:
                assert all(client.busy for client in self.open), "refused only while all are being answered"
                self.refused += 1
                return Client(peer)
            self._judge(closed)
            self.open.remove(closed)
        client = Client(peer)
        self.admission.add(client)
        self.open.append(client)
        return client

    def ask(self, client: Client) -> None:
        client.requests += 1
        client.busy = True
        self.admission.serve(client)

    def take(self, client: Client) -> None:
        client.busy = False
        self.admission.wait(client)

    def go(self, client: Client) -> None:
        self.admission.remove(client)
        self.admission.remove(client)
        self.open.remove(client)

    def _judge(self, closed: Client) -> None:
        assert not closed.busy
        waiting = [client for client in self.open if not client.busy]
        n = Counter(client.peer for client in self.open)
        assert all(max(n[client.peer], 8) <= max(n[closed.peer], 8) for client in waiting), "the largest peer's"
        siblings = [client for client in waiting if client.peer == closed.peer]
        assert min(client.requests for client in siblings) >= closed.requests or closed.requests >= 2


@given(st.lists(st.tuples(st.sampled_from("cccctag"), st.sampled_from("abcdef"), st.integers(0, LIMIT)), max_size=120))
def test_whoever_comes_and_goes_the_largest_peer_s_least_used_connection_makes_room(
    steps: list[tuple[str, str, int]],
) -> None:
    crowd = Crowd()
    for what, peer, n in steps:
        client = crowd.open[n % len(crowd.open)] if crowd.open else None
        if what == "c" or client is None:
            crowd.come(peer)
        elif what == "g":
            crowd.go(client)
        elif what == "a" and not client.busy:
            crowd.ask(client)
        elif what == "t" and client.busy:
            crowd.take(client)
        assert set(crowd.admission) == set(crowd.open)
        assert crowd.counts.connections == len(crowd.open) <= LIMIT


@pytest.mark.parametrize("peers", [["scraper"], ["crowd"], [str(n) for n in range(1000)]])
def test_a_scraper_stays_whatever_silent_crowd_comes_after_it(peers: list[str]) -> None:
    crowd = Crowd()
    scraper = crowd.come("scraper")
    crowd.ask(scraper)
    crowd.take(scraper)
    for n in range(1000):
        crowd.come(peers[n % len(peers)])
    assert scraper in crowd.open
    assert crowd.refused == 0


def test_of_those_that_ask_again_and_again_the_longest_unused_goes_first() -> None:
    crowd = Crowd()
    clients = [crowd.come("a") for _ in range(LIMIT)]
    for client in (*clients, *clients[::-1]):
        crowd.ask(client)
        crowd.take(client)
    for gone in clients[:-6:-1]:
        crowd.ask(crowd.come("a"))
        assert gone not in crowd.open


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::"),
        ("2001:db8:1:2:bbbb::2", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
    ],
)
def test_a_machine_s_many_ipv6_addresses_are_one_peer(host: str, peer: str) -> None:
    assert peer_of(host) == peer
