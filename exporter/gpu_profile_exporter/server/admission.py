"""Which connections are open, and which one is closed for the sake of the next when there is room for no more."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gpu_profile_exporter.server.counts import Counts


class Admitted(Protocol):
    """An open connection: `peer` as of `peer_of`, and how many requests it has made so far."""

    peer: str
    requests: int


C = TypeVar("C", bound=Admitted)

#: Peers with fewer connections than this are not told apart: two scrapers behind one address are no crowd.
_SMALL: Final = 8
#: Requests from which on a connection counts as one that is used again and again, as scrapers do.
_REGULAR: Final = 2


@dataclass(slots=True)
class _Peer(Generic[C]):
    """`waiting`: those that no answer is being made for, by requests so far (0, 1, more); in each the longest first."""

    connections: dict[C, None] = field(default_factory=dict)
    waiting: tuple[dict[C, None], ...] = field(default_factory=lambda: tuple({} for _ in range(_REGULAR + 1)))

    def first(self) -> int | None:
        """The first of `waiting` that is not empty."""
        return next((n for n, queue in enumerate(self.waiting) if queue), None)


class Admission(Generic[C]):
    """The open connections, at most `limit`.

    Room is made at the peer that has most of them, so that none takes all from the others. Of its connections those
    that never asked anything go first, then those that asked once, then the others; in each group the one that has
    been waiting longest. A scraper keeps its connection as long as its own address is no crowd, and is let in anew in
    any case: all peers may share one address, behind a proxy or in a cluster.
    """

    def __init__(self, limit: int, counts: Counts) -> None:
        self._limit = limit
        self._counts = counts
        self._peers: dict[str, _Peer[C]] = {}

    def __iter__(self) -> Iterator[C]:
        return iter([one for peer in self._peers.values() for one in peer.connections])

    @property
    def full(self) -> bool:
        """Whether there is room for no more."""
        return self._counts.connections >= self._limit

    def add(self, connection: C) -> None:
        """A client has connected."""
        peer = self._peers.setdefault(connection.peer, _Peer())
        peer.connections[connection] = None
        self._counts.connections += 1
        self.wait(connection)

    def remove(self, connection: C) -> None:
        """A connection is gone, or about to go; it may be said more than once."""
        peer = self._peers.get(connection.peer)
        if peer is None or connection not in peer.connections:
            return
        self.serve(connection)
        del peer.connections[connection]
        self._counts.connections -= 1
        if not peer.connections:
            del self._peers[connection.peer]

    def serve(self, connection: C) -> None:
        """An answer is being made for it: until `wait` it is not closed."""
        peer = self._peers.get(connection.peer)
        for queue in peer.waiting if peer is not None else ():
            queue.pop(connection, None)

    def wait(self, connection: C) -> None:
        """It has to ask, to say who it is, or to take its answer; from now on, as far as its turn to be closed goes."""
        self.serve(connection)
        peer = self._peers.get(connection.peer)
        if peer is not None and connection in peer.connections:
            peer.waiting[min(connection.requests, _REGULAR)][connection] = None

    def make_room(self) -> C | None:
        """The connection that has to be closed now, no longer counted; None if all are being answered."""
        crowds = [
            (-max(len(peer.connections), _SMALL), first, peer)
            for peer in self._peers.values()
            if (first := peer.first()) is not None
        ]
        if not crowds:
            return None
        _, first, peer = min(crowds, key=lambda crowd: crowd[:2])
        connection = next(iter(peer.waiting[first]))
        self.remove(connection)
        return connection


def peer_of(host: str) -> str:
    """What counts as one client: an IPv4 address, or 64 bits of an IPv6 address, of which one machine may have all."""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))
