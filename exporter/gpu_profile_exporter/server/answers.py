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

from gpu_profile_exporter.server.auth import Busy
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
        self._doorkeeper: Worker[bool] | None = None
        self._waiting: dict[Key, asyncio.Future[Response]] = {}

    def stop(self) -> None:
        """Let the threads end."""
        self._renderer.stop()
        if self._doorkeeper is not None:
            self._doorkeeper.stop()

    async def __call__(self, request: h11.Request, peer: str) -> Response:  # noqa: ARG002
        """The whole answer but its framing. A request's body is never received."""
        started_s = time.perf_counter()
        settings = self._web.current()
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        path = unquote(target.partition("?")[0])
        self._counts.active += 1
        try:
            response = await self._answer(method, path, request, settings)
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the others
            response = _failure(method, path, error)
        finally:
            self._counts.active -= 1
        route = path if path in ROUTES else "other"
        self._counts.answered(route, response.status, time.perf_counter() - started_s)
        # What the web configuration sets goes before what an answer comes with.
        headers = {"Date": formatdate(usegmt=True), **dict((*_FIXED, *response.headers, *settings.headers))}
        return replace(response, headers=tuple(headers.items()))

    async def _answer(self, method: str, path: str, request: h11.Request, settings: Settings) -> Response:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        if settings.bucket is not None and not settings.bucket.take():
            return self._reject("rate", 429, "too many requests", ("Retry-After", "1"))
        if len(request.headers) > self._limits.headers:
            return self._reject("header_count", 431, f"more than {self._limits.headers} headers", _CLOSE)
        if settings.users is not None:
            refusal = await self._doorkeep(settings, headers.get("authorization", ""))
            if refusal is not None:
                return refusal
        if method not in ("GET", "HEAD"):
            return self._reject("method", 405, f"{method} is not possible here", _CLOSE, ("Allow", "GET, HEAD"))
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return self._reject("body", 413, "no request here has a body", _CLOSE)
        return await self._rendered(method, path, headers)

    async def _doorkeep(self, settings: Settings, header: str) -> Response | None:
        if self._doorkeeper is None:
            self._doorkeeper = Worker("gpu-profile-passwords", self._loop)
        try:
            if settings.users is None or await settings.users.allow(header, self._doorkeeper):
                return None
        except Busy:
            return self._reject("busy", 503, "too many passwords are being checked", ("Retry-After", "1"))
        self._counts.auth_failures += 1
        return line(401, "name and password, please", ("WWW-Authenticate", 'Basic realm="gpu-profile-exporter"'))

    async def _rendered(self, method: str, path: str, headers: Mapping[str, str]) -> Response:
        telling = {name: headers[name] for name in _TELLING if name in headers}
        request = Request(method, path, telling)
        key = (request.method, request.path, telling.get("accept", ""), telling.get("accept-encoding", ""))
        wait_s = self._patience_s(headers.get(_TIMEOUT))
        rendering = self._waiting.get(key)
        if rendering is not None:
            self._counts.coalesced += 1
        elif len(self._waiting) >= self._limits.renderings:
            return self._reject("busy", 503, "too many different answers are being rendered", ("Retry-After", "1"))
        else:
            rendering = self._renderer.do(lambda: self._render(key, request))
            self._waiting[key] = rendering
        done, _ = await asyncio.wait((rendering,), timeout=wait_s)
        if not done:
            return self._reject("timeout", 503, f"no answer was ready within {wait_s:g} s")
        return rendering.result()

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
