"""One connection: HTTP/1.1 by h11, with a deadline for every step that depends on the client."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import h11

from gpu_profile_exporter.server.admission import Admission
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.routes import Response

_log = logging.getLogger("gpu_profile_exporter")

_CLOSE: Final = ("Connection", "close")
#: A body has at most this many chunks that arrive together and have fewer bytes on average. Each takes 10 to 20 us.
_MOST_SHORT: Final = 1_000
_SHORT: Final = 64
#: After so many parts that arrived together, other connections have their turn.
_MOST_AT_ONCE: Final = 50

#: Receives a request's body and passes each arriving part to a function, which may raise.
ReceiveBody = Callable[[Callable[[bytes], None]], Awaitable[None]]
#: Answers a request of a peer. The first function is called after the authentication of the peer.
Answer = Callable[[h11.Request, str, Callable[[], None], ReceiveBody, "Ends | None"], Awaitable[Response]]


class Ends(NamedTuple):
    """Both ends of a TCP connection: the client's address and port, and those here."""

    host: str
    port: int
    local_host: str
    local_port: int


class BrokenBody(Exception):  # noqa: N818 - an event, not an error for users
    """A request's body is not valid HTTP."""


class Connection(asyncio.Protocol):
    """A connection with deadlines from `limits` for the client. `peer` is the result of `admission.peer_of`.

    Answers one request at a time. Meanwhile it reads nothing but the request's body, if the handler receives it.
    A client that sends another request before its answer gets only the first answer.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        peer: str,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        counts: Counts,
        admission: Admission[Connection],
        allowed_names: frozenset[str] = frozenset(),
    ) -> None:
        self.peer = peer
        #: Requests with a complete head.
        self.requests = 0
        self._answer = answer
        self._loop = loop
        self._limits = limits
        self._counts = counts
        self._admission = admission
        self._allowed_names = allowed_names
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._transport: asyncio.Transport
        self._ends: Ends | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._reading_head = True
        #: Whether the handler receives a body. Meanwhile the transport reads.
        self._receiving_body = False
        #: Set while the handler waits for more of a body.
        self._body_wait: asyncio.Future[None] | None = None
        #: Whether the request has arrived completely.
        self._complete = False
        self._last = False
        #: Whether the write buffer is full because the client does not read.
        self._blocked = False

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._task is not None

    # ------------------------------------------------------------------ callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected, after the handshake if there is TLS."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream's transport
        self._transport = transport
        client, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if client and here:
            self._ends = Ends(*client[:2], *here[:2])
        if self._allowed_names and not self._allowed_names & peer_names(transport):
            self._drop("client_certificate")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The connection was closed by either side."""
        self._admission.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._transport.is_closing():
            return
        if self._receiving_body:
            self._http.receive_data(data)
            if self._body_wait is not None and not self._body_wait.done():
                self._body_wait.set_result(None)
            return
        if not self._reading_head:
            self._await_head()
        self._http.receive_data(data)
        self._read_request()

    def eof_received(self) -> bool:
        """The client has finished sending. The connection ends after the last answer."""
        return False

    def pause_writing(self) -> None:
        """The client does not read. It gets no further answer until it does."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The client has read enough of the answer for the next request."""
        self._blocked = False
        if not self.busy and not self._transport.is_closing() and self._http.our_state is h11.DONE:
            self._begin_next()

    # ------------------------------------------------------------------ requests and answers

    def _read_request(self) -> None:
        """Start the answer to the next request when its head is complete."""
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._reject_malformed(error)
            return
        if not isinstance(event, h11.Request):  # the head is still incomplete
            return
        self._reading_head = self._complete = False
        self.requests += 1
        if self._deadline is not None:
            self._deadline.cancel()
        # Until the peer is authenticated, the connection may still be closed for a new one.
        self._admission.wait(self)
        self._transport.pause_reading()
        self._task = self._loop.create_task(self._serve(event))

    async def _serve(self, request: h11.Request) -> None:
        try:
            admitted = partial(self._admission.serve, self)
            response = await self._answer(request, self.peer, admitted, self._receive_body, self._ends)
            # Pipelined requests are not answered: such a client would delay the clients that wait for answers.
            self._last = self._last or bool(self._http.trailing_data[0])
            if not self._transport.is_closing():
                self._send(response, head_only=request.method == b"HEAD")
        except Exception as error:  # noqa: BLE001 - a defect must not leave a connection without a deadline
            _log.error("%s was not answered: %s: %s", request.target, type(error).__name__, error)
            _log.debug("it failed here", exc_info=error)
            self.abort()
        finally:
            self._task = None
        if self._transport.is_closing():
            return
        self._admission.wait(self)
        self._await_sent()
        try:
            self._complete = self._complete or isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError:
            self._complete = False
        if self._last or not self._complete or self._http.our_state is not h11.DONE:
            self.end()
        elif not self._blocked:
            self._begin_next()

    async def _receive_body(self, take: Callable[[bytes], None]) -> None:
        """Pass each arriving part of the request's body to `take`. Raises BrokenBody for invalid HTTP or short chunks.

        Until the body is complete, the connection may be closed for a new one.
        """
        chunks = size = at_once = 0
        self._admission.wait(self)
        self._arm(self._limits.body_s, self._drop, "slow_request")
        if self._http.they_are_waiting_for_100_continue:
            self._transport.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        try:
            while not self._complete:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    take(event.data)
                    size, at_once = size + len(event.data), at_once + 1
                    chunks += at_once > 1
                    if chunks > _MOST_SHORT + size // _SHORT:
                        raise BrokenBody(f"more than {_MOST_SHORT} chunks of fewer than {_SHORT} bytes")
                    if at_once == _MOST_AT_ONCE:
                        at_once = 0
                        self._transport.pause_reading()
                        await asyncio.sleep(0)
                elif event is h11.NEED_DATA:
                    # Not paused before the end of the body: each change of this costs two system calls.
                    self._receiving_body = True
                    self._transport.resume_reading()
                    self._body_wait = self._loop.create_future()
                    await self._body_wait
                    self._body_wait, at_once = None, 0
                else:
                    self._complete = isinstance(event, h11.EndOfMessage)
                    if not self._complete:
                        raise BrokenBody("the body ends early")
            self._admission.serve(self)
        except h11.RemoteProtocolError as error:
            raise BrokenBody(str(error)) from error
        finally:
            self._receiving_body, self._body_wait = False, None
            self._transport.pause_reading()
            if self._deadline is not None:
                self._deadline.cancel()

    def _send(self, response: Response, *, head_only: bool = False) -> None:
        headers = [
            ("Content-Type", response.content_type),
            # Of an unchanged answer it would be the length of the whole one.
            *([("Content-Length", str(len(response.body)))] if response.status != HTTPStatus.NOT_MODIFIED else []),
            *response.headers,
            *([_CLOSE] if self._last else []),
        ]
        events: tuple[h11.Event, ...] = (
            h11.Response(
                status_code=response.status,
                headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
                reason=HTTPStatus(response.status).phrase.encode(),
            ),
            h11.Data(data=b"" if head_only else response.body),
            h11.EndOfMessage(),
        )
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))

    def _begin_next(self) -> None:
        self._http.start_next_cycle()
        self._transport.resume_reading()

    def _reject_malformed(self, error: h11.RemoteProtocolError) -> None:
        too_large = error.error_status_hint == 431
        self._counts.rejected["header_size" if too_large else "bad_request"] += 1
        text = b"the request's head is too large\n" if too_large else b"this is not HTTP/1.1\n"
        self._last = True
        self._send(Response(431 if too_large else 400, text))
        self.end()

    # ------------------------------------------------------------------ deadlines and ends

    def stop(self) -> None:
        """End after the current answer. Without a request in progress, end now."""
        self._last = True
        if not self.busy:
            self.end()

    def end(self) -> None:
        """Close after the written data has been sent, at the latest after the deadline of writing."""
        self._transport.close()
        self._await_sent()

    def abort(self) -> None:
        """Close at once. Unsent data is lost."""
        self._transport.abort()

    def _await_head(self) -> None:
        self._reading_head = True
        self._arm(self._limits.request_s, self._drop, "slow_request")

    def _await_sent(self) -> None:
        self._arm(self._limits.write_s, self._check_sent, self._loop.time() + self._limits.idle_s)

    def _check_sent(self, idle_end_s: float) -> None:
        if self._transport.is_closing() or unsent(self._transport):
            self._drop("slow_reader")
        else:
            self._arm(idle_end_s - self._loop.time(), self.end)

    def _arm(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` after `seconds`, instead of at the previous deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, action, *arguments)

    def _drop(self, reason: str) -> None:
        self._counts.rejected[reason] += 1
        self.abort()


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not acknowledged, including bytes in the kernel's send buffer."""
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
    """An IP address in its shortest form; any other name unchanged."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_ntop(family, socket.inet_pton(family, name.strip()))
        except OSError:
            continue
    return name
