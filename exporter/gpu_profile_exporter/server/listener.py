"""The server: a listening socket, an event loop in its own thread, and the open connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.readings.readings import MetricReading
from gpu_profile_exporter.server.admission import Admission, peer_of
from gpu_profile_exporter.server.answers import Answers, Handler
from gpu_profile_exporter.server.connection import Connection
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.settings import Web, WebSettings

_log = logging.getLogger("gpu_profile_exporter")

_BACKLOG: Final = 512
#: Pause of accepting after a failure.
_PAUSE_S: Final = 0.1
#: Time at the end for answers in progress.
_GRACE_S: Final = 0.8
_JOIN_S: Final = 1.5
#: Time for a refused client to read the reason, and the most such clients at once.
_REFUSAL_S: Final = 1.0
_REFUSALS: Final = 64
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 26\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\ntoo many open connections\n"
)


class Server:
    """Listens from construction on, answers from `start()` on.

    `handle` makes the handler of requests, such as `Rendering`, in the server's thread. `web_config` is a file in the
    exporter-toolkit's format. `flag` is the option of the address, for messages. Raises UsageError if the address is
    not available or the file is invalid.
    """

    def __init__(
        self,
        address: Address,
        handle: Callable[[Limits, Counts, asyncio.AbstractEventLoop], Handler],
        *,
        web_config: Path | None = None,
        flag: str = "--listen",
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self.limits = limits
        self._handle = handle
        self.counts = Counts()
        self._web = Web(web_config, self.counts)
        try:
            address, self._socket = _listen(address)
        except OSError as error:
            raise UsageError(_listen_error(address, error, flag)) from error
        self.address = Address(address.host, int(self._socket.getsockname()[1]))
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """The URL without a path."""
        return f"{'https' if self._web.current().tls is not None else 'http'}://{self.address}"

    def start(self) -> None:
        """Answer requests in a new thread."""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Accept no more requests, and end after those in progress. Takes less than 2 s."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._stopping is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:  # the loop has ended by itself
                _log.debug("the server had ended already")
            thread.join(_JOIN_S)
        self._socket.close()

    def reload(self) -> bool:
        """Read the web configuration again. False if it is invalid; the old one then stays. From any thread."""
        return self._web.reload()

    def readings(self, now_ns: int) -> Iterator[MetricReading]:  # noqa: ARG002 - the common signature
        """The server's counters."""
        yield from self.counts.readings()

    # ------------------------------------------------------------------ in the server's thread

    def _run(self) -> None:
        assert self._loop is not None  # noqa: S101 - start() has set it
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type, return-value]
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert self._stopping is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        handler = self._handle(self.limits, self.counts, loop)
        answers = Answers(handler, self._web, self.limits, self.counts, loop=loop)
        acceptor = Acceptor(self._socket, answers, self._web, self.limits, self.counts, loop=loop)
        acceptor.open()
        await self._stopping.wait()
        await acceptor.close(_GRACE_S)
        answers.stop()


class Acceptor:
    """Accepts connections. Above the limit it closes others for them."""

    def __init__(
        self,
        listening: socket.socket,
        answers: Answers,
        web: Web,
        limits: Limits,
        counts: Counts,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._socket = listening
        self._answers = answers
        self._web = web
        self._limits = limits
        self._counts = counts
        self._loop = loop
        most = limits.connections if web.current().tls is None else limits.tls_connections
        self._open: Admission[Connection] = Admission(most, counts)
        #: Connections before the end of their TLS handshake.
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._refused: set[socket.socket] = set()

    def open(self) -> None:
        """Start accepting connections."""
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accept one connection per call, so that the loop serves open ones in between."""
        try:
            accepted, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # the client has disconnected already
            return
        except OSError as error:
            # No descriptor or no memory is left.
            self._counts.rejected["no_descriptor"] += 1
            _log.debug("cannot accept: %s", error)
            self._make_room()
            self._loop.remove_reader(self._socket)
            self._pause = self._loop.call_later(_PAUSE_S, self.open)
            return
        accepted.setblocking(False)
        if self._open.full and not self._make_room():
            self._refuse(accepted)
        else:
            self._admit(accepted, peer_of(address[0]))

    async def close(self, grace_s: float) -> None:
        """Stop accepting and close all connections: idle ones now, answers in progress within `grace_s` seconds."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._pause is not None:
            self._pause.cancel()
        # A task that is cancelled before its first step would not close its socket.
        await asyncio.sleep(0)
        for refused in tuple(self._refused):
            self._close_refused(refused)
        for connection in self._open:
            if connection in self._handshakes:
                self._end(connection)
            else:
                connection.stop()
        end_s = self._loop.time() + grace_s
        while self._counts.connections and self._loop.time() < end_s:
            await asyncio.sleep(0.01)
        for connection in self._open:
            self._end(connection)
        await asyncio.sleep(0)

    def _admit(self, accepted: socket.socket, peer: str) -> None:
        settings = self._web.current()
        connection = Connection(
            self._answers,
            peer=peer,
            loop=self._loop,
            limits=self._limits,
            counts=self._counts,
            admission=self._open,
            allowed_names=settings.allowed_names,
        )
        self._open.add(connection)
        self._handshakes[connection] = self._loop.create_task(self._enter(accepted, connection, settings))

    async def _enter(self, accepted: socket.socket, connection: Connection, settings: WebSettings) -> None:
        timeout_s = None if settings.tls is None else self._limits.request_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=settings.tls,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except BaseException as error:
            self._open.remove(connection)
            if not isinstance(error, OSError):  # TLS errors and timeouts are OSErrors
                raise
            self._counts.rejected["handshake"] += 1
            _log.debug("no TLS connection: %s", error)
        finally:
            del self._handshakes[connection]

    def _make_room(self) -> bool:
        connection = self._open.make_room()
        if connection is None:
            return False
        self._counts.rejected["evicted"] += 1
        self._end(connection)
        return True

    def _end(self, connection: Connection) -> None:
        handshake = self._handshakes.get(connection)
        if handshake is not None:
            handshake.cancel()
        else:
            connection.abort()

    def _refuse(self, connection: socket.socket) -> None:
        self._counts.rejected["connections"] += 1
        if self._web.current().tls is not None or len(self._refused) >= _REFUSALS:
            connection.close()
            return
        try:
            connection.send(_REFUSAL)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
            return
        self._refused.add(connection)
        self._loop.call_later(_REFUSAL_S, self._close_refused, connection)

    def _close_refused(self, connection: socket.socket) -> None:
        self._refused.discard(connection)
        connection.close()


def _listen(address: Address) -> tuple[Address, socket.socket]:
    """A listening socket and its address. `::` accepts IPv4 as well, and is `0.0.0.0` on a machine without IPv6."""
    try:
        return address, _listening(address)
    except OSError as error:
        if address.host != "::" or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        address = Address("0.0.0.0", address.port)  # noqa: S104 - all interfaces, as before
        return address, _listening(address)


def _listening(address: Address) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listening.family is socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # asyncio sets TCP_NODELAY only if the listening socket names its protocol, and this one does not. Without it,
        # the end of an answer waits up to 40 ms for the client's acknowledgement of its beginning.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _listen_error(address: Address, error: OSError, flag: str) -> str:
    advice = f"choose another with {flag}, as in {flag} :9401"
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} is taken{'' if address.host == '::' else f' on {address.host}'}: {advice}"
    if error.errno == errno.EACCES:
        return f"port {address.port} needs rights that this user does not have: {advice}"
    return f"cannot listen on {address}: {error.strerror or os.strerror(error.errno or 0)}: {advice}"
