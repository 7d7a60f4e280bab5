"""A server with a raw client, one of its connections in memory, and a small separate HTTP server."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpu_profile_exporter.config import Address
from gpu_profile_exporter.server import Limits, Rendering, Server
from gpu_profile_exporter.server.admission import Admission
from gpu_profile_exporter.server.answers import Answers, AuthorizedRequest, Handler
from gpu_profile_exporter.server.connection import Connection
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.routes import Request, Response
from gpu_profile_exporter.server.settings import Web

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
Respond = Callable[[Request], Response]


def echo(request: Request) -> Response:
    """Answers with the requested path."""
    return Response(200, f"{request.path}\n".encode())


@contextmanager
def serving(
    respond: Respond = echo, *, host: str = "127.0.0.1", web_config: Path | None = None, limits: Limits | None = None
) -> Iterator[Server]:
    server = Server(Address(host, 0), partial(Rendering, respond), web_config=web_config, limits=limits or Limits())
    server.start()
    try:
        yield server
    finally:
        server.stop()


def connect(server: Server, tls: ssl.SSLContext | None = None) -> socket.socket:
    plain = socket.create_connection((server.address.host, server.address.port), timeout=10)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (names in lower case) and body of one answer with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += received(connection)
    return int(first.split(" ")[1]), headers, body


def received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("closed without an answer")
    return data


def ask(
    server: Server, request: bytes = GET, tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()).encode()
    with connect(server, tls) as connection:
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n", 1))
        return answer(connection)


def closed(connection: socket.socket) -> bool:
    """Read until the connection is closed. Raises TimeoutError after the socket's timeout."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def until_counted(server: Server, reason: str, n: int = 1) -> None:
    """Wait until `n` rejections for a reason are counted."""
    deadline = time.monotonic() + 10
    while rejected(server, reason) < n:
        if time.monotonic() > deadline:
            raise AssertionError(f"{reason} was counted {rejected(server, reason)} times, not {n}")
        time.sleep(0.01)


def rejected(server: Server, reason: str) -> float:
    return value(server, "gpu_profile.http.rejected", reason=reason)


def value(server: Server, name: str, **attributes: str) -> float:
    """The sum of a metric's readings with these attributes."""
    values = [
        reading.value
        for reading in server.readings(0)
        if reading.metric.otel == name
        and all(reading.attributes.get(key.replace("__", ".")) == text for key, text in attributes.items())
    ]
    assert values, name
    return sum(values)


class Gate:
    """A `respond` that waits for `opened` and answers with the number of its calls."""

    def __init__(self) -> None:
        self.calls: list[Request] = []
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, request: Request) -> Response:
        self.calls.append(request)
        self.entered.release()
        self.opened.wait(10)
        return Response(200, f"{len(self.calls)}\n".encode())


class MovedLoop(asyncio.SelectorEventLoop):
    """A loop with a time that only `advance` moves, so that a slow machine changes nothing."""

    moved_s = 0.0

    def time(self) -> float:
        return 1_000.0 + self.moved_s

    def turn(self, times: int = 3) -> None:
        """Run all due callbacks."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()

    def advance(self, seconds: float) -> None:
        self.moved_s += seconds
        self.turn()


class Wire(asyncio.Transport):
    """A transport that collects the sent bytes. `stuck`: the client reads nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.sent = b""
        self.stuck = False
        self.open = True
        self.protocol: asyncio.Protocol | None = None
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return len(self.sent) if self.stuck else 0

    def write(self, data: Any) -> None:
        assert self.open
        self.sent += bytes(data)

    def is_closing(self) -> bool:
        return not self.open

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        if self.open and not self.stuck:
            self.loop.call_soon(self._lost)
        self.open = False

    def abort(self) -> None:
        self.open = False
        self.loop.call_soon(self._lost)

    def _lost(self) -> None:
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            protocol.connection_lost(None)


class InlineRendering(Rendering):
    """Renders without a thread, so that a turn of the loop is enough."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, counts: Counts) -> None:
        super().__init__(echo, limits, counts, loop)
        self.stop()
        self._scrapes.worker = self._live.worker = _Inline()  # type: ignore[assignment]


class Receiving:
    """Receives the body of every request and answers with it."""

    routes: Sequence[str] = ("/",)

    def __init__(self, *_: object) -> None:
        self.bodies: list[bytes] = []

    async def answer(self, request: AuthorizedRequest, ends_s: float) -> Response:
        parts: list[bytes] = []
        await request.receive_body(parts.append)
        self.bodies.append(b"".join(parts))
        return Response(200, self.bodies[-1])

    def stop(self) -> None:
        """Does nothing: there is no thread."""


class _Inline:
    def do(self, action: Callable[[], Response], future: asyncio.Future[Response]) -> asyncio.Future[Response]:
        future.set_result(action())
        return future

    def stop(self) -> None:
        """Does nothing: there is no thread."""


class Line:
    """A connection in memory. Exceptions of the protocol and reports of the loop fail the test."""

    def __init__(
        self,
        limits: Limits | None = None,
        handle: Callable[[asyncio.AbstractEventLoop, Limits, Counts], Handler] = InlineRendering,
    ) -> None:
        self.loop = MovedLoop()
        self.limits = limits or Limits()
        self.counts = Counts()
        self.reports: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.reports.append(context))
        self.admission: Admission[Connection] = Admission(self.limits.connections, self.counts)
        self.handler = handle(self.loop, self.limits, self.counts)
        answers = Answers(self.handler, Web(None, self.counts), self.limits, self.counts, loop=self.loop)
        answers.stop()
        self.connection = Connection(
            answers, peer="192.0.2.1", loop=self.loop, limits=self.limits, counts=self.counts, admission=self.admission
        )
        self.admission.add(self.connection)
        self.wire = Wire(self.loop)
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)

    def send(self, data: bytes) -> None:
        if self.wire.open:
            self.connection.data_received(data)
        self.loop.turn()

    @property
    def gone(self) -> bool:
        return self.wire.protocol is None

    def close(self) -> None:
        self.wire.abort()
        self.loop.turn()
        self.loop.close()
        assert not self.reports


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The URL of a server that answers each GET and POST with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(5)
