"""Renders answers, one at a time. Waiting requests for the same answer share one rendering.

Answers of the live page have a thread of their own, so that a scrape waits for none of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from gpu_profile_exporter.server.answers import CLOSE, AuthorizedRequest, failure, rejected
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.routes import LIVE, ROUTES, Request, Response, cursor
from gpu_profile_exporter.server.worker import Worker

#: Headers that an answer may depend on, besides method and path. Requests with equal ones share a rendering.
_RELEVANT: Final = ("accept", "accept-encoding", "if-none-match")

Respond = Callable[[Request], Response]
Key = tuple[str, ...]


class _Renderings:
    """A thread that renders, and the answers that wait for it."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.worker: Worker[Response] = Worker(name, loop)
        self.waiting: dict[Key, asyncio.Future[Response]] = {}


class Rendering:
    """Answers GET and HEAD. `respond` runs in two threads, one call at a time in each."""

    routes: Sequence[str] = ROUTES

    def __init__(self, respond: Respond, limits: Limits, counts: Counts, loop: asyncio.AbstractEventLoop) -> None:
        self._respond = respond
        self._limits = limits
        self._counts = counts
        self._loop = loop
        self._scrapes = _Renderings("gpu-profile-render", loop)
        self._live = _Renderings("gpu-profile-live", loop)

    def stop(self) -> None:
        """End the threads of the renderings."""
        self._scrapes.worker.stop()
        self._live.worker.stop()

    async def answer(self, request: AuthorizedRequest, ends_s: float) -> Response | None:
        """The answer, or None if it is not ready by `ends_s` (the loop's time). A request with a body is rejected."""
        if request.method not in ("GET", "HEAD"):
            return rejected(
                self._counts, "method", 405, f"{request.method} is not allowed here", CLOSE, ("Allow", "GET, HEAD")
            )
        if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            return rejected(self._counts, "body", 413, "requests must not have a body", CLOSE)
        relevant = {name: request.headers[name] for name in _RELEVANT if name in request.headers}
        live = request.path == LIVE
        scrape = Request(request.method, request.path, relevant, request.query if live else "")
        key = (scrape.method, scrape.path, cursor(scrape.query), *(relevant.get(name, "") for name in _RELEVANT))
        renderings = self._live if live else self._scrapes
        rendering = renderings.waiting.get(key)
        if rendering is not None:
            self._counts.coalesced += 1
        elif len(renderings.waiting) >= self._limits.renderings:
            return rejected(
                self._counts, "busy", 503, "too many different answers are being rendered", ("Retry-After", "1")
            )
        else:
            # Registered first: the thread may render and unregister it before this one continues.
            rendering = renderings.waiting[key] = self._loop.create_future()
            renderings.worker.do(lambda: self._render(renderings, key, scrape), rendering)
        done, _ = await asyncio.wait((rendering,), timeout=max(0.0, ends_s - self._loop.time()))
        return rendering.result() if done else None

    def _render(self, renderings: _Renderings, key: Key, request: Request) -> Response:
        # No further request joins from here on: an answer is never older than its request.
        renderings.waiting.pop(key, None)
        started_s = time.perf_counter()
        try:
            return self._respond(request)
        except Exception as error:  # noqa: BLE001 - logged once for all waiting requests
            return failure(request.method, request.path, error)
        finally:
            self._counts.renderings += 1
            self._counts.rendering_s += time.perf_counter() - started_s
