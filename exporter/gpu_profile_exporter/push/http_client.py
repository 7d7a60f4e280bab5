"""OTLP over HTTP with the standard library: one connection per request, and one deadline for the whole exchange."""

from __future__ import annotations

import email.utils
import io
import socket
import ssl
import time
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpu_profile.errors import UsageError
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.outcome import Accepted, PushFailed, status_message, taken, words
from gpu_profile_exporter.push.settings import Endpoint

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: The most bytes of an answer's body that are read. Valid answers have a few bytes.
MOST_ANSWER: Final = 64 * 1024
#: The most bytes that are read in all: a server could send interim answers (100 to 199) without end.
_MOST_READ: Final = 4 * MOST_ANSWER
#: Statuses to retry by the OTLP specification.
_RETRY: Final = frozenset({429, 502, 503, 504})


class HttpClient:
    """Pushes to one URL, through the proxy set by HTTP_PROXY, HTTPS_PROXY and NO_PROXY.

    UsageError if a file of the TLS settings cannot be used.
    """

    def __init__(self, endpoint: Endpoint, *, user_agent: str) -> None:
        self._endpoint = endpoint
        self._parts = urlsplit(endpoint.url)
        self._host = self._parts.hostname or ""
        self._secure = self._parts.scheme == "https"
        self._port = self._parts.port or (443 if self._secure else 80)
        self._proxy = _proxy(self._parts.scheme, self._host, self._port)
        self._headers = {
            **dict(endpoint.headers),
            "Content-Type": "application/x-protobuf",
            "User-Agent": user_agent,
            "Connection": "close",
        }
        if endpoint.compression == "gzip":
            self._headers["Content-Encoding"] = "gzip"
        self._context: ssl.SSLContext | None = None
        if self._secure:
            try:
                self._context = _context(endpoint)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(_file_problem(endpoint, error)) from error

    def send(self, batch: Batch, timeout_s: float) -> Accepted:
        """Push one batch within `timeout_s`. Raises PushFailed."""
        body = batch.gzipped() if self._endpoint.compression == "gzip" else batch.unpacked()
        deadline = time.monotonic() + timeout_s
        with ExitStack() as opened:
            return self._exchange(body, deadline, opened)

    def _exchange(self, body: bytes, deadline: float, opened: ExitStack) -> Accepted:
        try:
            connection = self._connection(deadline, opened)
            connection.connect()
            connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
            connection.request("POST", self._target(), body=body, headers=self._headers)
            return self._judge(connection.getresponse())
        except (OSError, HTTPException, UnicodeError) as error:
            if isinstance(error, ssl.SSLError):
                self._context = None  # its files may be renewed before the next try
            raise _failure(error) from error

    def close(self) -> None:
        """Does nothing: no connection stays open between requests."""

    def _target(self) -> str:
        path = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        return f"http://{self._parts.netloc}{path}" if self._proxy and not self._secure else path

    def _connection(self, deadline: float, opened: ExitStack) -> HTTPConnection:
        host, port = self._proxy or (self._host, self._port)
        timeout_s = max(0.001, deadline - time.monotonic())
        connection: HTTPConnection
        if self._secure:
            if self._context is None:
                self._context = _context(self._endpoint)
            connection = HTTPSConnection(host, port, timeout=timeout_s, context=self._context)
            if self._proxy:
                connection.set_tunnel(self._host, self._port)
        else:
            connection = HTTPConnection(host, port, timeout=timeout_s)

        def response(sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
            made = HTTPResponse(sock, *args, **options)
            made.fp.close()
            made.fp = io.BufferedReader(_DeadlineReader(sock, deadline))
            opened.callback(made.close)
            return made

        connection.response_class = response  # type: ignore[assignment]  # any callable that makes one works
        opened.callback(connection.close)
        return connection

    def _judge(self, response: HTTPResponse) -> Accepted:
        status = response.status
        try:
            answer = response.read(MOST_ANSWER + 1)
            broken = bool(response.length) and len(answer) <= MOST_ANSWER
        except (OSError, HTTPException):
            answer, broken = b"", True
        if 200 <= status < 300:
            # The batch was accepted, even if the answer is incomplete: sending it again would duplicate it.
            return Accepted() if broken else _accepted(answer, response)
        detail = _detail(answer, response)
        if 300 <= status < 400:
            place = words(response.headers.get("Location") or "elsewhere")
            text = f"redirects to {place} (status {status}), which is not followed; set the endpoint to that address"
            raise PushFailed("redirected", text, retry=False)
        if status in (401, 403):
            text = f"refuses the credentials (status {status}){detail}; check the headers and the client certificate"
            raise PushFailed("unauthenticated", text, retry=False)
        if status in _RETRY:
            after_s = _retry_after_s(response.headers.get("Retry-After"))
            reason = "throttled" if status == 429 or after_s is not None else "unavailable"
            raise PushFailed(reason, f"is overloaded or away (status {status}){detail}", retry=True, after_s=after_s)
        if status >= 500:
            raise PushFailed("unavailable", f"failed (status {status}){detail}", retry=False, content=True)
        elsewhere = status in (404, 405)
        text = f"does not take the batch (status {status}){detail}{'; is the path right?' if elsewhere else ''}"
        raise PushFailed("rejected", text, retry=False, content=not elsewhere)


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until a deadline, even if its bytes arrive slowly, and at most `_MOST_READ` bytes."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline, self._left = sock, deadline, _MOST_READ
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer is not complete in time")
        if self._left <= 0:
            raise HTTPException("its answer has no end")
        self._sock.settimeout(left_s)
        read: int | None = self._file.readinto(buffer)
        self._left -= read or 0
        return read

    def close(self) -> None:
        self._file.close()
        super().close()


def _accepted(answer: bytes, response: HTTPResponse) -> Accepted:
    if response.headers.get_content_type() == "application/json":
        return Accepted()
    try:
        if len(answer) > MOST_ANSWER:
            raise ValueError("too long")
        return taken(answer)
    except ValueError:
        text = f"sends an answer that is not OTLP{_detail(answer, response)}; does the endpoint name an OTLP receiver?"
        raise PushFailed("garbage", text, retry=False) from None


def _detail(answer: bytes, response: HTTPResponse) -> str:
    text = ""
    if response.headers.get_content_type() == "application/x-protobuf":
        try:
            text = status_message(answer)
        except ValueError:
            text = ""
    elif answer:
        text = words(answer)
    return f": {text}" if text else ""


#: Errors on the way to the endpoint: exceptions, reason, text. The first match counts. All of them are retried.
_CAUSES: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...]] = (
    (ssl.SSLCertVerificationError, "tls", "has a certificate that is not trusted: {why}"),
    (ssl.SSLError, "tls", "has a TLS error: {why}"),
    ((socket.gaierror, UnicodeError), "dns", "has a host name that cannot be resolved: {why}"),
    (TimeoutError, "timeout", "does not answer in time"),
    (ConnectionRefusedError, "unreachable", "refuses the connection: nothing listens there"),
    ((ConnectionError, IncompleteRead), "closed", "closed the connection before it had answered"),
    (HTTPException, "garbage", "does not answer in HTTP: {why}"),
    (Exception, "unreachable", "cannot be reached: {why}"),
)


def _failure(error: Exception) -> PushFailed:
    reason, text = next((reason, text) for kinds, reason, text in _CAUSES if isinstance(error, kinds))
    texts = [getattr(error, name, None) for name in ("verify_message", "reason", "strerror")]
    why = next((one for one in texts if isinstance(one, str) and one), f"{type(error).__name__} {error}")
    return PushFailed(reason, text.format(why=words(why)), retry=True)


def _retry_after_s(header: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date. None if it is neither."""
    if not header:
        return None
    if header.isascii() and header.strip().isdigit() and len(header) < 20:
        return float(header)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _context(endpoint: Endpoint) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=endpoint.ca_file or None)
    if endpoint.client_cert:
        # Without a password argument, OpenSSL asks for an encrypted key's password on the terminal.
        context.load_cert_chain(endpoint.client_cert, endpoint.client_key, password="")
    return context


def _file_problem(endpoint: Endpoint, error: Exception) -> str:
    for path in (endpoint.ca_file, endpoint.client_cert, endpoint.client_key):
        if path:
            try:
                with open(path, "rb"):  # noqa: PTH123 - only whether it can be opened
                    pass
            except OSError as problem:
                return f"OTLP: {path}: {problem.strerror}"
    named = ", ".join(path for path in (endpoint.ca_file, endpoint.client_cert, endpoint.client_key) if path)
    return f"OTLP: {named or 'TLS'}: no PEM certificates or keys that belong together: {words(str(error))}"


def _proxy(scheme: str, host: str, port: int) -> tuple[str, int] | None:
    """The proxy for this endpoint by the environment, as host and port. None for a direct connection."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    address = proxies.get(scheme) or proxies.get("all")
    if not address or proxy_bypass(f"{host}:{port}", proxies):
        return None
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme != "http" or not parts.hostname:
        raise UsageError(f"{scheme.upper()}_PROXY: only http:// proxies can be used, or exempt {host} with NO_PROXY")
    return parts.hostname, parts.port or 80
