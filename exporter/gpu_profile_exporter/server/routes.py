"""The routes: a pure function from request to response, independent of the server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from urllib.parse import parse_qs

from gpu_profile.report.live.served_page import ANSWERS, LivePage, accepts_gzip
from gpu_profile_exporter.readings.health import Health
from gpu_profile_exporter.server.page import PageData

_TEXT: Final = "text/plain; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_JSON: Final = "application/json"
_COMPRESS_FROM: Final = 1024
#: Output a tenth larger than at level 5, in less than half of the time.
GZIP_LEVEL: Final = 3
_PACKED: Final = (("Content-Encoding", "gzip"),)
_LONGEST_QUERY: Final = 200
_LONGEST_CURSOR: Final = 40
#: All paths with an answer.
LIVE: Final = f"/{ANSWERS}"
ROUTES: Final = ("/", "/metrics", "/-/ready", "/-/healthy", "/api/devices", LIVE)


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `path` is without the query. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""

    @property
    def accepts_gzip(self) -> bool:
        """Whether the client takes answers compressed with gzip."""
        return accepts_gzip(self.headers.get("accept-encoding", ""))


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. `headers` are additional headers of the route."""

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class LiveAnswers(Protocol):
    """The live page and its answers."""

    @property
    def page(self) -> LivePage:
        """The page."""
        ...

    def answer(self, after: str, *, packed: bool) -> bytes:
        """The JSON after a cursor. `packed`: compressed with gzip."""
        ...


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes with their sources.

    `metrics` returns the exposition and its content type for an `Accept` header. `health` returns the exporter's state,
    `devices` the data of /api/devices. `live` has the page.
    """

    metrics: Callable[[str], tuple[bytes, str]]
    health: Callable[[], Health]
    devices: Callable[[], PageData]
    live: LiveAnswers

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        if request.method not in ("GET", "HEAD"):
            return line(405, f"{request.method} is not allowed here", ("Allow", "GET, HEAD"))
        response = self._route(request)
        unpacked = "Content-Encoding" not in dict(response.headers)
        if request.accepts_gzip and unpacked and len(response.body) >= _COMPRESS_FROM:
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
                body = json.dumps(self.devices(), ensure_ascii=False, allow_nan=False).encode()
                return Response(200, body, _JSON, (("Cache-Control", "no-store"),))
            case path if path in ("/", LIVE):
                return self._live(request)
            case _:
                return line(404, f"not found: try {', '.join(ROUTES[:-1])} or {ROUTES[-1]}")

    def _live(self, request: Request) -> Response:
        page, packed = self.live.page, request.accepts_gzip
        encoding = _PACKED if packed else ()
        if request.path == LIVE:
            body = self.live.answer(cursor(request.query), packed=packed)
            return Response(200, body, _JSON, (("Cache-Control", "no-store"), *encoding))
        if page.is_current(request.headers.get("if-none-match", "")):
            return Response(304, b"", _HTML, page.headers)
        return Response(200, page.packed if packed else page.body, _HTML, (*page.headers, *encoding))


def cursor(query: str) -> str:
    """The cursor in a query of `LIVE`. Empty if there is none, or it is longer than any of ours."""
    after = parse_qs(query[:_LONGEST_QUERY]).get("after", [""])[0]
    return after if len(after) <= _LONGEST_CURSOR else ""


def line(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """A line of text."""
    return Response(status, f"{text}\n".encode(), _TEXT, headers)
