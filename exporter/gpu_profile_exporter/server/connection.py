"""One connection: HTTP/1.1 by h11, with a deadline on everything that a client can be slow at."""

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
from typing import Any, Final

import h11

from gpu_profile_exporter.server.admission import Admission
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.routes import Response

_log = logging.getLogger("gpu_profile_exporter")

_CLOSE: Final = ("Connection", "close")

#: Receives a request's body and gives each part of it, as it comes, to a function, which may raise.
ReceiveBody = Callable[[Callable[[bytes], None]], Awaitable[None]]
#: Answers a request of a peer; the first function is called once the peer is found to be one that may ask.
Answer = Callable[[h11.Request, str, Callable[[], None], ReceiveBody], Awaitable[Response]]


class BrokenBody(Exception):  # noqa: N818 - what happened, not a kind of error that a user meets
    """A request's body is no HTTP."""


class Connection(asyncio.Protocol):
    """A connection that its client cannot hold for longer than `limits` say. `peer` as of `admission.peer_of`.

    One request is answered at a time, and meanwhile nothing is read but its body, if that is asked for. A client that
    sent more before its answer gets this one answer alone.
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
        #: Requests whose head was whole.
        self.requests = 0
        self._answer = answer
        self._loop = loop
        self._limits = limits
        self._counts = counts
        self._admission = admission
        self._allowed_names = allowed_names
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_head = True
        #: What waits for more of a body.
        self._more: asyncio.Future[None] | None = None
        #: Whether all of the request has come.
        self._whole = False
        self._last = False
        #: Whether more of an answer waits here than should, as the client does not read.
        self._blocked = False

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._task is not None

    # ------------------------------------------------------------------ what the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came, and speaks TLS by now if it has to."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a stream
        self._transport = transport
        if self._allowed_names and not self._allowed_names & peer_names(transport):
            self._drop("client_certificate")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The connection is gone, whoever ended it."""
        self._admission.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._transport.is_closing():
            return
        if self._more is not None:
            self._http.receive_data(data)
            if not self._more.done():
                self._more.set_result(None)
            return
        if not self._in_head:
            self._await_head()
        self._http.receive_data(data)
        self._take_request()

    def eof_received(self) -> bool:
        """The client sends no more: after its last answer the connection ends."""
        return False

    def pause_writing(self) -> None:
        """The client does not read: it gets no further answer until it does."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The client has read."""
        self._blocked = False
        if not self.busy and not self._transport.is_closing() and self._http.our_state is h11.DONE:
            self._begin_next()

    # ------------------------------------------------------------------ requests and answers

    def _take_request(self) -> None:
        """Answer the next request once its head is whole."""
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._answer_no_http(error)
            return
        if not isinstance(event, h11.Request):  # more of it has to come
            return
        self._in_head = self._whole = False
        self.requests += 1
        if self._deadline is not None:
            self._deadline.cancel()
        # Until it is found to be somebody's who may ask, it may still have to make room.
        self._admission.wait(self)
        self._transport.pause_reading()
        self._task = self._loop.create_task(self._serve(event))

    async def _serve(self, request: h11.Request) -> None:
        try:
            admitted = partial(self._admission.serve, self)
            response = await self._answer(request, self.peer, admitted, self._receive_body)
            # A client that sends requests ahead would take the turns of those that wait for their answers.
            self._last = self._last or bool(self._http.trailing_data[0])
            if not self._transport.is_closing():
                self._send(response, head_only=request.method == b"HEAD")
        except Exception as error:  # noqa: BLE001 - no defect may leave a connection without a deadline
            _log.error("%s was not answered: %s: %s", request.target, type(error).__name__, error)
            _log.debug("it failed here", exc_info=error)
            self.abort()
        finally:
            self._task = None
        if self._transport.is_closing():
            return
        self._admission.wait(self)
        self._await_taken()
        try:
            self._whole = self._whole or isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError:
            self._whole = False
        if self._last or not self._whole or self._http.our_state is not h11.DONE:
            self.end()
        elif not self._blocked:
            self._begin_next()

    async def _receive_body(self, take: Callable[[bytes], None]) -> None:
        """Give each part of the request's body to `take` as it comes. BrokenBody for what is no HTTP."""
        self._arm(self._limits.body_s, self._drop, "slow_request")
        if self._http.they_are_waiting_for_100_continue:
            self._transport.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        try:
            while not self._whole:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    take(bytes(event.data))
                elif event is h11.NEED_DATA:
                    self._more = self._loop.create_future()
                    self._transport.resume_reading()
                    await self._more
                    self._more = None
                    self._transport.pause_reading()
                else:
                    self._whole = isinstance(event, h11.EndOfMessage)
                    if not self._whole:
                        raise BrokenBody("the body ends early")
        except h11.RemoteProtocolError as error:
            raise BrokenBody(str(error)) from error
        finally:
            self._more = None
            if self._deadline is not None:
                self._deadline.cancel()

    def _send(self, response: Response, *, head_only: bool = False) -> None:
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
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

    def _answer_no_http(self, error: h11.RemoteProtocolError) -> None:
        too_large = error.error_status_hint == 431
        self._counts.rejected["header_size" if too_large else "bad_request"] += 1
        text = b"the request's head is too large\n" if too_large else b"this is not HTTP/1.1\n"
        self._last = True
        self._send(Response(431 if too_large else 400, text))
        self.end()

    # ------------------------------------------------------------------ deadlines and ends

    def stop(self) -> None:
        """The server stops: what was asked is answered, nothing is waited for."""
        self._last = True
        if not self.busy:
            self.end()

    def end(self) -> None:
        """Close; at the latest when the client has had its time to take what was written."""
        self._transport.close()
        self._await_taken()

    def abort(self) -> None:
        """Close at once; what the client has not taken yet is lost."""
        self._transport.abort()

    def _await_head(self) -> None:
        self._in_head = True
        self._arm(self._limits.request_s, self._drop, "slow_request")

    def _await_taken(self) -> None:
        self._arm(self._limits.write_s, self._check_taken, self._loop.time() + self._limits.idle_s)

    def _check_taken(self, idle_end_s: float) -> None:
        if self._transport.is_closing() or unsent(self._transport):
            self._drop("slow_reader")
        else:
            self._arm(idle_end_s - self._loop.time(), self.end)

    def _arm(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Wait for the client no longer than this; it replaces what it was waited for before."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, action, *arguments)

    def _drop(self, reason: str) -> None:
        self._counts.rejected[reason] += 1
        self.abort()


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
