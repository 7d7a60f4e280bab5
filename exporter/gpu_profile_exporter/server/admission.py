"""Registers open connections, and chooses the one to close for a new one when the limit is reached."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gpu_profile_exporter.server.counts import Counts


class Admitted(Protocol):
    """An open connection: `peer` is the result of `peer_of`, `requests` the number of its requests so far."""

    peer: str
    requests: int


C = TypeVar("C", bound=Admitted)

#: Peers with fewer connections than this count as equal: two scrapers behind one address are normal.
_SMALL: Final = 8
#: Requests from which on a connection counts as reused, like a scraper's.
_REGULAR: Final = 2


@dataclass(slots=True)
class _Peer(Generic[C]):
    """A client. `waiting`: connections without an answer in progress, by requests (0, 1, more), longest wait first."""

    connections: dict[C, None] = field(default_factory=dict)
    waiting: tuple[dict[C, None], ...] = field(default_factory=lambda: tuple({} for _ in range(_REGULAR + 1)))

    def first(self) -> int | None:
        """The index of the first queue in `waiting` that is not empty."""
        return next((n for n, queue in enumerate(self.waiting) if queue), None)


class Admission(Generic[C]):
    """The open connections, at most `limit`.

    The peer with the most connections loses one, so that no peer displaces the others. Its connections without a
    request are closed first, then connections with one request, then the others, the longest wait first in each group.
    A scraper keeps its connection unless its address has many. It can always reconnect, because all peers may share one
    address behind a proxy or in a cluster.
    """

    def __init__(self, limit: int, counts: Counts) -> None:
        self._limit = limit
        self._counts = counts
        self._peers: dict[str, _Peer[C]] = {}

    def __iter__(self) -> Iterator[C]:
        return iter([one for peer in self._peers.values() for one in peer.connections])

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._counts.connections >= self._limit

    def add(self, connection: C) -> None:
        """Register the connection of a client, as waiting."""
        peer = self._peers.setdefault(connection.peer, _Peer())
        peer.connections[connection] = None
        self._counts.connections += 1
        self.wait(connection)

    def remove(self, connection: C) -> None:
        """Unregister a connection that is closed or closing. Repeated calls have no effect."""
        peer = self._peers.get(connection.peer)
        if peer is None or connection not in peer.connections:
            return
        self.serve(connection)
        del peer.connections[connection]
        self._counts.connections -= 1
        if not peer.connections:
            del self._peers[connection.peer]

    def serve(self, connection: C) -> None:
        """Exempt a connection from closing while its answer is made, until `wait`."""
        peer = self._peers.get(connection.peer)
        for queue in peer.waiting if peer is not None else ():
            queue.pop(connection, None)

    def wait(self, connection: C) -> None:
        """Register a connection as waiting for its client from now on, so that it may be closed for a new one."""
        self.serve(connection)
        peer = self._peers.get(connection.peer)
        if peer is not None and connection in peer.connections:
            peer.waiting[min(connection.requests, _REGULAR)][connection] = None

    def make_room(self) -> C | None:
        """Unregister and return the connection to close now. None if all are being answered."""
        candidates = [
            (-max(len(peer.connections), _SMALL), first, peer)
            for peer in self._peers.values()
            if (first := peer.first()) is not None
        ]
        if not candidates:
            return None
        _, first, peer = min(candidates, key=lambda candidate: candidate[:2])
        connection = next(iter(peer.waiting[first]))
        self.remove(connection)
        return connection


def peer_of(host: str) -> str:
    """The key of a client: its IPv4 address or the /64 prefix of its IPv6 address, which one machine may own."""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))
