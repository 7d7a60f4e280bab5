"""The server: a socket, an event loop in a thread of its own, and the connections on it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.readings.readings import Reading
from gpu_profile_exporter.server.answers import Answers, Respond
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.guard import Guard
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.settings import Settings, Web

_log = logging.getLogger("gpu_profile_exporter")

_BACKLOG: Final = 512
#: What is being answered at the end gets this long.
_GRACE_S: Final = 0.8
_JOIN_S: Final = 1.5
#: A refused client has this long to read why; this many do at once.
_REFUSAL_S: Final = 1.0
_REFUSALS: Final = 64
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 26\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\ntoo many open connections\n"
)


class Server:
    """Listens from construction on, answers from `start()` on.

    `respond` is called in a thread of its own, one call at a time. `web_config` is a file in the exporter-toolkit's
    format. UsageError if the address cannot be had or that file cannot be used.
    """

    def __init__(
        self,
        address: Address,
        respond: Respond,
        *,
        web_config: Path | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self.limits = limits
        self._respond = respond
        self._counts = Counts()
        self._web = Web(web_config, self._counts)
        try:
            self._socket = _listen(address)
        except OSError as error:
            raise UsageError(_why(address, error)) from error
        self.address = Address(address.host, int(self._socket.getsockname()[1]))
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Where it answers, as the start of a URL."""
        return f"{'https' if self._web.current().tls is not None else 'http'}://{self.address}"

    def start(self) -> None:
        """Answer requests."""
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests, and give those under way a moment. Takes less than 2 s."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._stopping is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:  # the loop has ended by itself
                _log.debug("the server had ended already")
            thread.join(_JOIN_S)
        self._socket.close()

    def reload(self) -> bool:
        """Read the web configuration again. False if it cannot be used: then the old one stays. From any thread."""
        return self._web.reload()

    def readings(self, now_ns: int) -> Iterator[Reading]:  # noqa: ARG002 - as every room's
        """What the server counts of itself."""
        yield from self._counts.readings()

    # ------------------------------------------------------------------ in the server's thread

    def _run(self) -> None:
        assert self._loop is not None  # noqa: S101 - start() has set it
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type, return-value]
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert self._stopping is not None  # noqa: S101
        loop = asyncio.get_running_loop()
        answers = Answers(self._respond, self._web, self.limits, self._counts, loop=loop)
        door = Door(self._socket, answers, self._web, self.limits, self._counts, loop=loop)
        accepting = loop.create_task(door.accept())
        await self._stopping.wait()
        accepting.cancel()
        await asyncio.wait((accepting,))
        self._socket.close()
        await door.close(_GRACE_S)
        answers.stop()


class Door:
    """Lets connections in, up to the limit, each behind a `Guard`."""

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
        self._web = web
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._state = ServerState()
        self._idle: dict[Guard, None] = {}
        self._entering: dict[Guard, asyncio.Task[None]] = {}
        self._refused: set[socket.socket] = set()
        # Everything that uvicorn would log is counted by the guard; a line for each would let clients fill the log.
        self._config = Config(
            answers,
            http=Guard,
            ws="none",
            lifespan="off",
            loop="none",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self._config.load()

    async def accept(self) -> None:
        """Take connections until cancelled."""
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                # No descriptor or no memory is left: those that are open will end.
                self._counts.rejected["no_descriptor"] += 1
                _log.debug("cannot accept: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self._full() and not self._make_room():
                self._refuse(connection)
            else:
                settings = self._web.current()
                guard = self._guard(settings)
                self._entering[guard] = self._loop.create_task(self._enter(connection, guard, settings))
            await asyncio.sleep(0)

    async def close(self, grace_s: float) -> None:
        """End all connections: at once those that ask nothing, in `grace_s` seconds the others."""
        for task in self._entering.values():
            task.cancel()
        for refused in tuple(self._refused):
            self._let_go(refused)
        for guard in tuple(self._state.connections):
            guard.shutdown()
        end_s = self._loop.time() + grace_s
        while self._state.connections and self._loop.time() < end_s:
            await asyncio.sleep(0.01)
        for guard in tuple(self._state.connections):
            guard.transport.abort()
        await asyncio.sleep(0)

    def _guard(self, settings: Settings) -> Guard:
        return Guard(
            self._config,
            self._state,
            loop=self._loop,
            limits=self._limits,
            counts=self._counts,
            idle=self._idle,
            allowed_names=settings.allowed_names,
        )

    async def _enter(self, connection: socket.socket, guard: Guard, settings: Settings) -> None:
        timeout_s = None if settings.tls is None else self._limits.request_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: guard,
                connection,
                ssl=settings.tls,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except OSError as error:  # as are those of TLS, and of time
            self._counts.rejected["handshake"] += 1
            _log.debug("no TLS connection: %s", error)
        finally:
            del self._entering[guard]

    def _full(self) -> bool:
        # A guard can be in both for a moment.
        return len(self._state.connections.union(self._entering)) >= self._limits.connections

    def _make_room(self) -> bool:
        """Close the connection that has been waiting longest for a next request; clients open another when needed."""
        if not self._idle:
            return False
        guard = next(iter(self._idle))
        guard.end()
        return True

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
        self._loop.call_later(_REFUSAL_S, self._let_go, connection)

    def _let_go(self, connection: socket.socket) -> None:
        self._refused.discard(connection)
        connection.close()


def _listen(address: Address) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # asyncio sets it on connections only where the listening socket names its protocol, which this one does not:
        # without it, the end of an answer waits up to 40 ms for the client's acknowledgement of its beginning.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _why(address: Address, error: OSError) -> str:
    advice = "choose another with --listen, as in --listen :9401"
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} is taken on {address.host}: {advice}"
    if error.errno == errno.EACCES:
        return f"port {address.port} needs rights that this user does not have: {advice}"
    return f"cannot listen on {address}: {error.strerror or os.strerror(error.errno or 0)}: {advice}"
