"""The listener: the standard library's threading server. It carries requests to `respond`, and knows nothing else."""

from __future__ import annotations

import errno
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.app import Request, Response
from gpu_profile_exporter.config import Address

_log = logging.getLogger("gpu_profile_exporter")

#: A client that sends nothing for this long is disconnected.
HEADER_TIMEOUT_S: Final = 5.0


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: Address, respond: Callable[[Request], Response]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.respond = respond
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        # The stock method looks up the host's name, which can take seconds where DNS is slow.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - stdlib's signature
        _log.debug("a connection from %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    server_version = "gpu-profile-exporter"
    sys_version = ""
    timeout = HEADER_TIMEOUT_S

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path.partition("?")[0], headers)
        try:
            response = self.server.respond(request)
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the others
            _log.error("%s %s failed: %s: %s", request.method, request.path, type(error).__name__, error)
            _log.debug("it failed here", exc_info=True)
            response = Response(500, b"internal error; the exporter's log says more\n")
        self.send_response(response.status)
        for name, value in (
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815 - stdlib's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - stdlib's name
        _log.debug("%s " + format, self.address_string(), *args)


class Server:
    """Listens from construction on, answers from `start()` on. UsageError if the address cannot be had."""

    def __init__(self, address: Address, respond: Callable[[Request], Response]) -> None:
        try:
            self._listener = _Listener(address, respond)
        except OSError as error:
            raise UsageError(_why(address, error)) from error
        self.address = Address(address.host, int(self._listener.server_address[1]))
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer requests, each in a thread of its own."""
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.05,), name="gpu-profile-server", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests. One that is being answered ends with the process."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._listener.shutdown()
            thread.join(1.0)
        self._listener.server_close()


def _why(address: Address, error: OSError) -> str:
    advice = "choose another with --listen, as in --listen :9401"
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} is taken on {address.host}: {advice}"
    if error.errno == errno.EACCES:
        return f"port {address.port} needs rights that this user does not have: {advice}"
    return f"cannot listen on {address}: {error.strerror or error}: {advice}"
