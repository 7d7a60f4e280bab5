"""The routes: a pure function from request to response, independent of the server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpu_profile_exporter.readings.health import Health
from gpu_profile_exporter.server.page import PageData, render

_TEXT: Final = "text/plain; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_COMPRESS_FROM: Final = 1024
#: Output a tenth larger than at level 5, in less than half of the time.
GZIP_LEVEL: Final = 3
#: All paths with an answer.
ROUTES: Final = ("/", "/metrics", "/-/ready", "/-/healthy", "/api/devices")
#: The page is one file. It may load nothing from other hosts, and no other page may frame it.
_PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `path` is without the query. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `headers` are additional headers of the route."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes with their sources.

    `metrics` returns the exposition and its content type for an `Accept` header. `health` returns the exporter's state,
    `page` the data of the landing page and of /api/devices.
    """

    metrics: Callable[[str], tuple[bytes, str]]
    health: Callable[[], Health]
    page: Callable[[], PageData]

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        if request.method not in ("GET", "HEAD"):
            return line(405, f"{request.method} is not allowed here", ("Allow", "GET, HEAD"))
        response = self._route(request)
        wants_gzip = _accepts_gzip(request.headers.get("accept-encoding", ""))
        if wants_gzip and len(response.body) >= _COMPRESS_FROM:
            packed = gzip.compress(response.body, compresslevel=GZIP_LEVEL, mtime=0)
            response = replace(response, body=packed, headers=(*response.headers, ("Content-Encoding", "gzip")))
        return replace(response, headers=(*response.headers, ("Vary", "Accept, Accept-Encoding")))

    def _route(self, request: Request) -> Response:
        match request.path:
            case "/metrics":
                body, content_type = self.metrics(request.headers.get("accept", ""))
                return Response(200, body, content_type)
            case "/-/healthy":
                health = self.health()
                note = f": {health.reason}" if health.reason else ""
                return line(200, f"healthy{note}") if health.alive else line(503, f"not healthy{note}")
            case "/-/ready":
                health = self.health()
                return line(200, "ready") if health.ready else line(503, f"not ready: {health.reason}")
            case "/api/devices":
                body = json.dumps(self.page(), ensure_ascii=False, allow_nan=False).encode()
                return Response(200, body, _JSON, (("Cache-Control", "no-store"),))
            case "/":
                headers = (("Content-Security-Policy", _PAGE_POLICY), ("Cache-Control", "no-store"))
                return Response(200, render(self.page()).encode(), _HTML, headers)
            case _:
                return line(404, f"not found: try {', '.join(ROUTES[:-1])} or {ROUTES[-1]}")


def line(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """A line of text."""
    return Response(status, f"{text}\n".encode(), _TEXT, headers)


def _accepts_gzip(header: str) -> bool:
    for token in header.lower().split(","):
        coding, _, weight = token.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
