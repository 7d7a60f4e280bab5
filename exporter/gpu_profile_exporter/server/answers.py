"""What stands before `respond`: who may ask, how long it may take, one rendering for all that wait."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import formatdate
from typing import Final
from urllib.parse import unquote

import h11

from gpu_profile_exporter.server.auth import Busy, Hashes, Passwords
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.routes import ROUTES, Request, Response, line
from gpu_profile_exporter.server.settings import Settings, Web
from gpu_profile_exporter.server.worker import Worker

_log = logging.getLogger("gpu_profile_exporter")

#: What an answer may depend on, besides method and path: requests that agree in these share one rendering.
_TELLING: Final = ("accept", "accept-encoding")
_TIMEOUT: Final = "x-prometheus-scrape-timeout-seconds"
#: As Prometheus writes it: a plain decimal. `nan`, `inf`, `1e9` and negative numbers are nobody's timeout.
_DECIMAL: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
#: The answer has to travel too.
_OFFSET_S: Final = 0.25
_CLOSE: Final = ("connection", "close")
_FIXED: Final = (("Server", "gpu-profile-exporter"), ("X-Content-Type-Options", "nosniff"))

Respond = Callable[[Request], Response]
Key = tuple[str, str, str, str]


class Answers:
    """Answers requests. `respond` runs in a thread of its own, one call at a time; everything else in the loop's."""

    def __init__(
        self, respond: Respond, web: Web, limits: Limits, counts: Counts, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._respond = respond
        self._web = web
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._renderer: Worker[Response] = Worker("gpu-profile-render", loop)
        self._passwords = Passwords(loop)
        self._waiting: dict[Key, asyncio.Future[Response]] = {}

    def stop(self) -> None:
        """Let the threads end."""
        self._renderer.stop()
        self._passwords.stop()

    async def __call__(self, request: h11.Request, peer: str, admitted: Callable[[], None]) -> Response:
        """The whole answer but its framing. A request's body is never received.

        `admitted` is called once it is known that the peer may ask.
        """
        started_s = time.perf_counter()
        settings = self._web.current()
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        path = unquote(target.partition("?")[0])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        patience_s = self._patience_s(headers.get(_TIMEOUT))
        ends_s = self._loop.time() + patience_s
        self._counts.active += 1
        try:
            refusal = None
            if len(request.headers) > self._limits.headers:
                refusal = self._reject("header_count", 431, f"more than {self._limits.headers} headers", _CLOSE)
            elif settings.users is not None:
                refusal = await self._authenticate(settings.users, headers, peer, patience_s)
            admitted()
            response = refusal or self._unfair(settings, method, headers)
            response = response or await self._rendered(method, path, headers, ends_s)
            response = response or self._reject("timeout", 503, f"no answer was ready within {patience_s:g} s")
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the others
            response = _failure(method, path, error)
        finally:
            self._counts.active -= 1
        route = path if path in ROUTES else "other"
        self._counts.answered(route, response.status, time.perf_counter() - started_s)
        # What the web configuration sets goes before what an answer comes with.
        named = {"Date": formatdate(usegmt=True), **dict((*_FIXED, *response.headers, *settings.headers))}
        return replace(response, headers=tuple(named.items()))

    async def _authenticate(
        self, users: Hashes, headers: Mapping[str, str], peer: str, patience_s: float
    ) -> Response | None:
        """The refusal of a request that is not a user's, or cannot be said to be in time."""
        header = headers.get("authorization", "")
        try:
            if await self._passwords.allow(header, users, peer=peer, patience_s=patience_s):
                return None
        except Busy:
            return self._reject("busy", 503, "too many passwords are being checked", ("Retry-After", "1"))
        self._counts.auth_failures += 1
        return line(401, "name and password, please", ("WWW-Authenticate", 'Basic realm="gpu-profile-exporter"'))

    def _unfair(self, settings: Settings, method: str, headers: Mapping[str, str]) -> Response | None:
        """The refusal of what nobody may ask. Guesses of passwords do not use up the rate of those who may."""
        if settings.bucket is not None and not settings.bucket.take():
            return self._reject("rate", 429, "too many requests", ("Retry-After", "1"))
        if method not in ("GET", "HEAD"):
            return self._reject("method", 405, f"{method} is not possible here", _CLOSE, ("Allow", "GET, HEAD"))
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return self._reject("body", 413, "no request here has a body", _CLOSE)
        return None

    async def _rendered(self, method: str, path: str, headers: Mapping[str, str], ends_s: float) -> Response | None:
        """The answer; None if there is none by `ends_s`, in the loop's time."""
        telling = {name: headers[name] for name in _TELLING if name in headers}
        request = Request(method, path, telling)
        key = (request.method, request.path, telling.get("accept", ""), telling.get("accept-encoding", ""))
        rendering = self._waiting.get(key)
        if rendering is not None:
            self._counts.coalesced += 1
        elif len(self._waiting) >= self._limits.renderings:
            return self._reject("busy", 503, "too many different answers are being rendered", ("Retry-After", "1"))
        else:
            # First of all: the thread may have rendered it, and taken it out again, before this one goes on.
            rendering = self._waiting[key] = self._loop.create_future()
            self._renderer.do(lambda: self._render(key, request), rendering)
        done, _ = await asyncio.wait((rendering,), timeout=max(0.0, ends_s - self._loop.time()))
        return rendering.result() if done else None

    def _render(self, key: Key, request: Request) -> Response:
        # From here on nobody joins: an answer is never older than the question.
        self._waiting.pop(key, None)
        started_s = time.perf_counter()
        try:
            return self._respond(request)
        except Exception as error:  # noqa: BLE001 - as above; told once for all that wait
            return _failure(request.method, request.path, error)
        finally:
            self._counts.renderings += 1
            self._counts.rendering_s += time.perf_counter() - started_s

    def _patience_s(self, header: str | None) -> float:
        if header is None:
            return self._limits.answer_s
        timeout_s = float(header) if _DECIMAL.fullmatch(header.strip()) else 0.0
        if not timeout_s:
            self._counts.timeouts_ignored += 1
            return self._limits.answer_s
        return min(max(timeout_s - _OFFSET_S, timeout_s / 2), self._limits.longest_s)

    def _reject(self, reason: str, status: int, text: str, *headers: tuple[str, str]) -> Response:
        self._counts.rejected[reason] += 1
        return line(status, text, *headers)


def _failure(method: str, path: str, error: Exception) -> Response:
    _log.error("%s %s failed: %s: %s", method, path, type(error).__name__, error)
    _log.debug("it failed here", exc_info=error)
    return line(500, "internal error; the exporter's log says more")
