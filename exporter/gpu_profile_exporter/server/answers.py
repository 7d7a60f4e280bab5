"""Authenticates requests, passes them to a handler under a deadline, and completes the answers' headers."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

import h11

from gpu_profile_exporter.server.auth import ChecksPending, Hashes, Passwords
from gpu_profile_exporter.server.connection import Ends, ReceiveBody
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.routes import Response, line
from gpu_profile_exporter.server.settings import Web

_log = logging.getLogger("gpu_profile_exporter")

_TIMEOUT: Final = "x-prometheus-scrape-timeout-seconds"
#: A timeout as Prometheus writes it: a plain decimal. `nan`, `inf`, `1e9` and negative numbers are ignored.
_DECIMAL: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
#: Part of the client's timeout that is reserved for the transfer of the answer.
_OFFSET_S: Final = 0.25
#: The header that ends the connection after its answer.
CLOSE: Final = ("connection", "close")
#: A date of HTTP. Its names are English, as the exporter sets no locale. `email.utils` would take 0.4 MiB for it.
_DATE: Final = "%a, %d %b %Y %H:%M:%S GMT"
_FIXED: Final = (("Server", "gpu-profile-exporter"), ("X-Content-Type-Options", "nosniff"))


class AuthorizedRequest(NamedTuple):
    """An authenticated request. `path` is without the query. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    receive_body: ReceiveBody
    ends: Ends | None = None
    query: str = ""


class Handler(Protocol):
    """Answers authenticated requests. `routes`: the paths that are counted by name."""

    routes: Sequence[str]

    async def answer(self, request: AuthorizedRequest, ends_s: float) -> Response | None:
        """The answer, or None if it is not ready by `ends_s` (the loop's time)."""
        ...

    def stop(self) -> None:
        """End the handler's threads."""
        ...


class Answers:
    """Answers requests with a handler. All methods run in the loop's thread."""

    def __init__(
        self, handler: Handler, web: Web, limits: Limits, counts: Counts, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._handler = handler
        self._web = web
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._passwords = Passwords(loop)

    def stop(self) -> None:
        """End all threads."""
        self._handler.stop()
        self._passwords.stop()

    async def __call__(
        self,
        request: h11.Request,
        peer: str,
        admitted: Callable[[], None],
        receive_body: ReceiveBody,
        ends: Ends | None = None,
    ) -> Response:
        """The complete answer, without its framing. `admitted` is called after the authentication."""
        started_s = time.perf_counter()
        settings = self._web.current()
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        encoded, _, query = target.partition("?")
        path = unquote(encoded)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        patience_s = self._patience_s(headers.get(_TIMEOUT))
        ends_s = self._loop.time() + patience_s
        self._counts.active += 1
        try:
            refusal = None
            if len(request.headers) > self._limits.headers:
                refusal = self._reject("header_count", 431, f"more than {self._limits.headers} headers", CLOSE)
            elif settings.users is not None:
                refusal = await self._authenticate(settings.users, headers, peer, patience_s)
            admitted()
            # Requests with wrong passwords do not use up the rate limit.
            if refusal is None and settings.bucket is not None and not settings.bucket.take():
                refusal = self._reject("rate", 429, "too many requests", ("Retry-After", "1"))
            authorized = AuthorizedRequest(method, path, headers, receive_body, ends, query)
            response = refusal or await self._handler.answer(authorized, ends_s)
            response = response or self._reject("timeout", 503, f"no answer was ready within {patience_s:g} s")
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the others
            response = failure(method, path, error)
        finally:
            self._counts.active -= 1
        route = path if path in self._handler.routes else "other"
        self._counts.answered(route, response.status, time.perf_counter() - started_s)
        # Headers of the web configuration override the answer's headers.
        named = {"Date": time.strftime(_DATE, time.gmtime()), **dict((*_FIXED, *response.headers, *settings.headers))}
        return replace(response, headers=tuple(named.items()))

    async def _authenticate(
        self, users: Hashes, headers: Mapping[str, str], peer: str, patience_s: float
    ) -> Response | None:
        """None for a user's request, otherwise the refusal. A check that takes too long is refused too."""
        header = headers.get("authorization", "")
        try:
            if await self._passwords.allow(header, users, peer=peer, patience_s=patience_s):
                return None
        except ChecksPending:
            return self._reject("busy", 503, "too many passwords are being checked", ("Retry-After", "1"))
        self._counts.auth_failures += 1
        return line(401, "name and password required", ("WWW-Authenticate", 'Basic realm="gpu-profile-exporter"'))

    def _patience_s(self, header: str | None) -> float:
        if header is None:
            return self._limits.answer_s
        timeout_s = float(header) if _DECIMAL.fullmatch(header.strip()) else 0.0
        if not timeout_s:
            self._counts.timeouts_ignored += 1
            return self._limits.answer_s
        return min(max(timeout_s - _OFFSET_S, timeout_s / 2), self._limits.longest_s)

    def _reject(self, reason: str, status: int, text: str, *headers: tuple[str, str]) -> Response:
        return rejected(self._counts, reason, status, text, *headers)


def rejected(counts: Counts, reason: str, status: int, text: str, *headers: tuple[str, str]) -> Response:
    """The refusal of a request in a line of text. Counts it."""
    counts.rejected[reason] += 1
    return line(status, text, *headers)


def failure(method: str, path: str, error: Exception) -> Response:
    """The answer after an internal error, which is logged."""
    _log.error("%s %s failed: %s: %s", method, path, type(error).__name__, error)
    _log.debug("it failed here", exc_info=error)
    return line(500, "internal error; see the exporter's log")
