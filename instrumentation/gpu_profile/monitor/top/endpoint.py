"""One scrape of a Prometheus endpoint: the check of its URL, and its text within one deadline for the whole answer.

`read` has the deadline and the limits for any request.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import urllib.error
import urllib.request
from contextlib import ExitStack
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.monitor.top.region_rates import ScrapeError
from gpu_profile.units import NS_PER_S, nanoseconds

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: The time for one scrape from the request to the last byte, in s.
TIMEOUT_S: Final = 5.0
#: A longer body is refused.
MOST_BYTES: Final = 4 << 20
#: The bytes of a failure's body that are read.
_WORDS_BYTES: Final = 4096
#: OpenSSL's environment variable with trusted authorities.
_CA_FILE: Final = "SSL_CERT_FILE"


class NoAnswerError(ScrapeError):
    """The answer was not complete in time."""


class UntrustedError(ScrapeError):
    """The server's certificate is of no trusted authority."""


class StatusError(ScrapeError):
    """The answer has another status than success: `code`. `words` is the beginning of its body, in one line."""

    def __init__(self, code: int, reason: str, words: str) -> None:
        super().__init__(f"HTTP {code} {reason}")
        self.code, self.words = code, words


def check_url(url: str) -> str:
    """`url` with a scheme and a path. Raises UsageError if it is no URL of an endpoint."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = valid and parts.username is None
    except ValueError:  # not a port number, or not an IPv6 address
        valid = False
    if not valid:
        raise UsageError(f"--url: {_hidden(url)!r} is not written as http://HOST:PORT/metrics, without a user name")
    return parts._replace(path=parts.path if parts.path.strip("/") else "/metrics").geturl()


def shown_url(url: str) -> str:
    """A checked URL for the screen: without its query, which may have a password or a token."""
    return urlsplit(url)._replace(query="…" if urlsplit(url).query else "", fragment="").geturl()


def _hidden(url: str) -> str:
    """`url`, which may be no URL, without a user name and a password."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1…@", url, flags=re.IGNORECASE | re.DOTALL)


def fetch(url: str, *, clock: Clock = SYSTEM_CLOCK) -> str:
    """The text at `url` after at most `TIMEOUT_S`, besides the time that the resolver takes for the host's name.

    Each address of the host may take as long until it is connected. Raises ScrapeError.
    """
    request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - checked
    return read(request, timeout_s=TIMEOUT_S, clock=clock).decode("utf-8", "replace")


def read(request: urllib.request.Request, *, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> bytes:
    """The body of the answer, of at most `MOST_BYTES`, after at most `timeout_s` as for `fetch`. Raises ScrapeError."""
    try:
        with ExitStack() as opened:
            opener = urllib.request.build_opener(_Handler(_Deadline(clock, timeout_s), opened), _Redirects)
            try:
                answer = opener.open(request)
            except urllib.error.HTTPError as error:
                raise StatusError(error.code, error.reason, _words(error)) from error
            data: bytes = answer.read(MOST_BYTES + 1)
            missing = answer.length
    except urllib.error.URLError as error:
        raise _failed(error.reason, timeout_s) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed(error, timeout_s) from error
    if len(data) > MOST_BYTES:
        raise ScrapeError(f"its answer has more than {MOST_BYTES >> 20} MiB")
    if missing:
        raise ScrapeError(f"its answer ended {missing} bytes too early")
    return data


def _words(error: urllib.error.HTTPError) -> str:
    """The beginning of the body of a failure; empty if it does not come."""
    try:
        with error:
            return " ".join(error.read(_WORDS_BYTES).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException, ValueError):
        return ""


def _failed(error: object, timeout_s: float) -> ScrapeError:
    if isinstance(error, TimeoutError):
        return NoAnswerError(f"no answer within {timeout_s:g} s")
    if isinstance(error, http.client.IncompleteRead):
        return ScrapeError("its answer ended too early")
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedError(f"its certificate is not trusted ({error.verify_message}): set {_CA_FILE}")
    if isinstance(error, OSError) and error.strerror:
        return ScrapeError(error.strerror)
    return ScrapeError(str(error) or type(error).__name__)


class _Deadline:
    """The end of a request that begins now."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._end_ns = clock.elapsed_ns() + nanoseconds(timeout_s)

    def left_s(self) -> float:
        """The time that is left, in s. TimeoutError if there is none."""
        left_ns = self._end_ns - self._clock.elapsed_ns()
        if left_ns <= 0:
            raise TimeoutError
        return left_ns / NS_PER_S


class _TimedReader(io.RawIOBase):
    """Reads a socket until the deadline. A timeout of the socket alone begins anew with each byte."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._sock, self._deadline = sock, deadline
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        count: int | None = self._file.readinto(buffer)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens http:// and https:// with connections that keep to the deadline. All answers are closed with `opened`."""

    def __init__(self, deadline: _Deadline, opened: ExitStack) -> None:
        super().__init__()
        self._deadline, self._opened = deadline, opened

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), req)

    def _connection(self, kind: type[http.client.HTTPConnection], host: str, **options: Any) -> Any:
        connection = kind(host, **(options | {"timeout": self._deadline.left_s()}))
        connection.response_class = self._response  # type: ignore[assignment]  # any callable that makes one works
        return connection

    def _response(self, sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(sock, *args, **options)
        response.fp.close()
        self._opened.callback(response.close)
        response.fp = io.BufferedReader(_TimedReader(sock, self._deadline))
        return response


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to endpoints, but not from https:// to http://, and not with a body or a key: it may lead to
    another server, which is not the user's."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        try:
            check_url(newurl)
            refused = req.type == "https" and not newurl.lower().startswith("https:")
            refused = refused or req.data is not None or req.has_header("Authorization")
        except UsageError:
            refused = True
        if refused:
            reason = f"redirects to {_hidden(newurl).partition('?')[0]}, which is not followed"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        fp.close()  # else its body is read to the end, of any length
        return super().redirect_request(req, fp, code, msg, headers, newurl)
