"""One connection: uvicorn's HTTP/1.1 with a deadline on everything that a client can be slow at.

uvicorn itself waits for ever for the rest of a request's head, and for a client that does not read.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits

_PHRASES: Final = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class Guard(H11Protocol):
    """A connection that its client cannot hold for longer than `limits` say. `idle` are those between two requests."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        counts: Counts,
        idle: dict[Guard, None],
        allowed_names: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self.timeout_keep_alive = limits.idle_s  # type: ignore[assignment]  # whole seconds are uvicorn's own idea
        self._limits = limits
        self._counts = counts
        self._idle = idle
        self._allowed_names = allowed_names
        self._head: asyncio.TimerHandle | None = None
        self._taken: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    # ------------------------------------------------------------------ what the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client came, and speaks TLS by now if it has to."""
        super().connection_made(transport)
        self._counts.connections = len(self.connections)
        if self._allowed_names and not self._allowed_names & peer_names(transport):
            self._drop("client_certificate")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, whoever ended it."""
        self._idle.pop(self, None)
        for timer in (self._head, self._taken):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._counts.connections = len(self.connections)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self._idle.pop(self, None)
        if not self.busy:
            self._await_head()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It still gets its answer, where that is possible: TLS closes both ways at once."""
        if not self.busy or self.scheme == "https":
            return False
        self.cycle.keep_alive = False
        return True

    # ------------------------------------------------------------------ what uvicorn does in between

    def handle_events(self) -> None:
        """Take in what has come so far; once it is a whole head, the client is no longer waited for."""
        super().handle_events()
        if self.busy and self._head is not None:
            self._head.cancel()
            self._head = None

    def on_response_complete(self) -> None:
        """The answer is written: now the client has to take it, and may then ask again."""
        if self._taken is not None:
            self._taken.cancel()
        self._taken = self.loop.call_later(self._limits.write_s, self._check_taken)
        super().on_response_complete()
        if self.busy or self.transport.is_closing():
            return
        if self.conn.trailing_data[0]:
            self._await_head()
        else:
            self._idle[self] = None

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Answer what is no HTTP, and close."""
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        status = hint if hint in _PHRASES else 400
        self._counts.rejected["header_size" if status == 431 else "bad_request"] += 1
        text = b"the request's head is too large\n" if status == 431 else b"this is not HTTP/1.1\n"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
        parts: list[h11.Event] = [
            h11.Response(status_code=status, headers=[*headers, ("Connection", "close")], reason=_PHRASES[status]),
            h11.Data(data=text),
            h11.EndOfMessage(),
        ]
        try:
            answer = b"".join(self.conn.send(part) or b"" for part in parts)
        except h11.LocalProtocolError:  # an answer is on its way already
            self.transport.abort()
            return
        self.transport.write(answer)
        self.end()

    def timeout_keep_alive_handler(self) -> None:
        """No next request has come."""
        self.end()

    def shutdown(self) -> None:
        """The server stops: answer what was asked, wait for nothing."""
        if self.busy:
            self.cycle.keep_alive = False
        else:
            self.end()

    # ------------------------------------------------------------------ ending

    def end(self) -> None:
        """Close; at the latest when the client has had its time to take what was written."""
        self._idle.pop(self, None)
        self.transport.close()
        if self._taken is not None:
            self._taken.cancel()
        self._taken = self.loop.call_later(self._limits.write_s, self._check_taken)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._limits.request_s, self._drop, "slow_request")

    def _check_taken(self) -> None:
        if self.transport.is_closing() or unsent(self.transport):
            self._drop("slow_reader")

    def _drop(self, reason: str) -> None:
        self._counts.rejected[reason] += 1
        self.transport.abort()


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not acknowledged: also those that a TLS transport no longer counts as its own."""
    connection: Any = transport.get_extra_info("socket")
    if transport.get_write_buffer_size() or connection is None or connection.fileno() < 0:
        return transport.get_write_buffer_size()
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def peer_names(transport: asyncio.BaseTransport) -> frozenset[str]:
    """The names in the client's certificate: DNS, e-mail, URI, and IP addresses in their shortest form."""
    certificate = transport.get_extra_info("peercert") or {}
    return frozenset(address(name) for _, name in certificate.get("subjectAltName", ()))


def address(name: str) -> str:
    """An IP address in its shortest form, anything else as it is."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, name.strip()))
        except OSError:
            continue
    return name
