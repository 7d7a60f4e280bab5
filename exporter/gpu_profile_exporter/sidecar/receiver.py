"""OTLP over HTTP: decodes requests, and accepts or refuses them as specified.

Specification: OpenTelemetry, "OTLP/HTTP Request", "OTLP/HTTP Response" and "OTLP/HTTP Throttling".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu_profile.protobuf import number, string
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.sender import Sender
from gpu_profile_exporter.server.answers import CLOSE, AuthorizedRequest, rejected
from gpu_profile_exporter.server.connection import BrokenBody, Ends
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.routes import Response
from gpu_profile_exporter.server.worker import Worker
from gpu_profile_exporter.sidecar.encodings import MOST_BYTES, unpacked
from gpu_profile_exporter.sidecar.messages import Refused, from_json, items_of
from gpu_profile_exporter.sidecar.trace_request import TooManyError, TraceRequest

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
#: Most spans in a request. Each grows by its attributes, so that the pipeline would never have room for more.
MOST_SPANS: Final = 100_000
#: Most bytes of all bodies that are being received. If there is no room for a part, the largest incomplete body gives
#: way to smaller ones, so that a few clients that send large bodies slowly keep no other from sending.
MOST_ARRIVING: Final = 64 << 20
#: Larger bodies, and bodies to decompress or to convert, are processed by a thread of their own, so that the loop goes
#: on. For smaller ones two changes of threads cost more than they save: this many bytes take 2 to 9 ms, if nothing has
#: to be waited for.
_MOST_AT_ONCE: Final = 1 << 18
#: Larger bodies in JSON, all compressed ones in JSON, and larger ones than `_MOST_AT_ONCE` may take seconds. A second
#: thread processes them, so that no other body waits for them.
_MOST_JSON: Final = 1 << 16
_PLAIN: Final = "identity"
#: A refused body is received up to this size, so that the sender can read the reason. Then the connection ends.
_MOST_DISCARDED: Final = 4 * MOST_BYTES
_RETRY: Final = ("Retry-After", "1")
_FULL: Final = "the queue to the next receiver is full"
#: Values of google.rpc.Code for refusals.
_INVALID, _EXHAUSTED, _UNAVAILABLE = 3, 8, 14
_CODES: Final = {400: _INVALID, 413: _EXHAUSTED, 415: _INVALID, 503: _UNAVAILABLE}

#: Reasons of refusals in addition to the server's reasons. Published from 0 on.
REASONS: Final = ("content_encoding", "content_type", "full", "path", "undecodable")

#: Accepts the content of a request with its content type, and the ends of its connection. Raises Refused.
Take = Callable[[bytes, str, Ends | None], None]


class Receiver:
    """Answers POSTs for each signal in `takes`. These functions run in two more threads, and small requests in the
    loop's thread while `prompt()` says that these functions do not wait."""

    def __init__(
        self,
        takes: Mapping[str, Take],
        _: Limits,
        counts: Counts,
        loop: asyncio.AbstractEventLoop,
        *,
        prompt: Callable[[], bool] = lambda: True,
    ) -> None:
        self._takes = {f"/v1/{signal}": take for signal, take in takes.items()}
        self.routes: Sequence[str] = tuple(self._takes)
        self._counts = counts
        self._prompt = prompt
        self._arriving = 0
        self._incomplete: set[_RequestBody] = set()
        self._worker: Worker[None] = Worker("gpu-profile-receive", loop)
        self._slow_worker: Worker[None] = Worker("gpu-profile-convert", loop)

    def stop(self) -> None:
        """End both threads."""
        self._worker.stop()
        self._slow_worker.stop()

    async def answer(self, request: AuthorizedRequest, ends_s: float) -> Response | None:  # noqa: ARG002 - a body has its own deadline
        """The answer, in the encoding of the request."""
        take = self._takes.get(request.path)
        if take is None:
            text = f"not found: this is an OTLP receiver at {', '.join(self.routes)}"
            return rejected(self._counts, "path", 404, text, CLOSE)
        if request.method != "POST":
            text = f"{request.method} is not allowed here"
            return rejected(self._counts, "method", 405, text, CLOSE, ("Allow", "POST"))
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        body = _RequestBody(self)
        try:
            await request.receive_body(body.add)
            data = body.whole()
            if kind not in (PROTOBUF, JSON):
                raise Refused(415, "content_type", f"the content type is {kind or 'missing'}, not {PROTOBUF} or {JSON}")
            encoding = request.headers.get("content-encoding", _PLAIN).strip().lower()
            quick = len(data) <= (_MOST_AT_ONCE if kind == PROTOBUF else _MOST_JSON if encoding == _PLAIN else 0)
            if quick and kind == PROTOBUF and encoding == _PLAIN and self._prompt():
                take(data, kind, request.ends)
            else:
                worker = self._worker if quick else self._slow_worker
                await worker.do(lambda: take(unpacked(data, encoding), kind, request.ends))
        except BrokenBody as broken:
            return _refusal(kind, self._counted(Refused(400, "bad_request", str(broken))), CLOSE)
        except Refused as refused:
            return _refusal(kind, self._counted(refused), *((CLOSE,) if body.endless else ()))
        finally:
            body.discard()
        return Response(200, b"{}" if kind == JSON else b"", kind)

    def _counted(self, refused: Refused) -> Refused:
        self._counts.rejected[refused.reason] += 1
        return refused

    def arrive(self, body: _RequestBody, n: int) -> bool:
        """Reserve room for `n` more bytes of `body`. False if there is none."""
        while self._arriving + n > MOST_ARRIVING:
            largest = max(self._incomplete, key=lambda one: one.reserved, default=body)
            if largest.reserved <= body.reserved + n:
                return False
            largest.refuse()
        self._incomplete.add(body)
        self._arriving += n
        return True

    def leave(self, body: _RequestBody) -> None:
        """Release the room of a body."""
        self._incomplete.discard(body)
        self._arriving -= body.reserved

    def complete(self, body: _RequestBody) -> None:
        """Keep the room of a body until it leaves."""
        self._incomplete.discard(body)


class _RequestBody:
    """A body as it arrives. A body that is too large is received and discarded, so that the sender gets its answer."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._parts: list[bytes] = []
        self._size = 0
        #: The bytes that it has room for.
        self.reserved = 0
        self._refused: Refused | None = None
        self.endless = False

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > _MOST_DISCARDED:
            self.endless = True
            raise self._refused or Refused(413, "body", "too large")
        if self._refused is None:
            if self._size > MOST_BYTES:
                self._refused = Refused(413, "body", f"a request has at most {MOST_BYTES} bytes")
                self.discard()
            elif self._receiver.arrive(self, len(part)):
                self.reserved += len(part)
                self._parts.append(part)
            else:
                self.refuse()

    def refuse(self) -> None:
        """Refuse it for want of room. The rest is received and discarded."""
        self._refused = Refused(503, "busy", "too much is being received")
        self.discard()

    def whole(self) -> bytes:
        """The complete body. Raises Refused if it was too large."""
        if self._refused is not None:
            raise self._refused
        self._receiver.complete(self)
        return b"".join(self._parts)

    def discard(self) -> None:
        self._receiver.leave(self)
        self.reserved = 0
        self._parts.clear()


def spans_to(take: Callable[[TraceRequest], bool]) -> Take:
    """A `Take` that passes decoded spans to `take`, which returns False if there is no room."""

    def taken(content: bytes, kind: str, ends: Ends | None) -> None:
        request = decoded(content, kind, ends)
        if len(request) > MOST_SPANS:
            raise Refused(413, "body", f"a request has at most {MOST_SPANS} spans")
        if len(request) and not take(request):
            raise Refused(503, "full", _FULL)

    return taken


def passed_to(sender: Sender, signal: str, *, gzip: bool) -> Take:
    """A `Take` that passes the requests of another signal to `sender`, unchanged."""

    def taken(content: bytes, kind: str, _: Ends | None) -> None:
        try:
            request = from_json(content, signal) if kind == JSON else content
            items = items_of(request, signal)
        except TooManyError as error:
            raise Refused(413, "body", str(error)) from error
        except (ValueError, RecursionError) as error:
            raise Refused(400, "undecodable", f"no request with {signal}: {error}") from error
        batch = Batch.of(request, items) if gzip else Batch(request, items, plain=True)
        if request and not sender.offer(batch):
            raise Refused(503, "full", _FULL)

    return taken


def decoded(content: bytes, kind: str, ends: Ends | None = None) -> TraceRequest:
    """The spans of a request. Raises Refused if it is malformed or too large."""
    try:
        return TraceRequest(from_json(content, "traces") if kind == JSON else content, ends)
    except TooManyError as error:
        raise Refused(413, "body", str(error)) from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, "undecodable", f"not an ExportTraceServiceRequest: {error}") from error


def _refusal(kind: str, refused: Refused, *headers: tuple[str, str]) -> Response:
    """A refusal as a google.rpc.Status, as OTLP specifies, in the encoding of the request."""
    code, text = _CODES[refused.status], str(refused)
    headers = (*headers, *((_RETRY,) if refused.status == 503 else ()))
    if kind == JSON:
        return Response(refused.status, json.dumps({"code": code, "message": text}).encode(), JSON, headers)
    return Response(refused.status, number(1, code) + string(2, text), PROTOBUF, headers)
