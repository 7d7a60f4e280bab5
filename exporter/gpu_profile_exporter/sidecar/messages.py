"""OTLP's requests of each signal as the protobuf library has them: read from JSON, and their items counted; and why one
is refused."""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any, Final

from gpu_profile_exporter.sidecar.trace_request import MOST_MESSAGES, FieldPosition, TooManyError, places

#: By signal: the module's and the request's part of a name.
_REQUESTS: Final = {"traces": ("trace", "Trace"), "metrics": ("metrics", "Metrics"), "logs": ("logs", "Logs")}
#: Objects of a request in JSON, each of which takes hundreds of bytes while it is read.
_MOST_OBJECTS: Final = 1_000_000
#: The fields of a metric that are its data points' kinds: gauge, sum, histogram, exponential histogram and summary.
_POINTS_OF: Final = (5, 7, 9, 10, 11)
_IDS: Final = frozenset({"trace_id", "span_id", "parent_span_id"})
#: What has no ids in it, and may be large.
_WITHOUT_IDS: Final = frozenset({"attributes", "body", "filtered_attributes", "resource", "scope"})


class Refused(Exception):  # noqa: N818 - what happened, not a kind of error that a user meets
    """A request is not taken: the HTTP status, the reason that is counted, and what its sender is told."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


def request_class(signal: str) -> Any:
    """The class of a signal's requests."""
    module, name = _REQUESTS[signal]
    found = import_module(f"opentelemetry.proto.collector.{module}.v1.{module}_service_pb2")
    return getattr(found, f"Export{name}ServiceRequest")


def from_json(content: bytes, signal: str) -> bytes:
    """The same request in protobuf; ValueError if it is none. OTLP's JSON has ids in hexadecimal where protobuf's has
    them in base64."""
    from google.protobuf.json_format import Parse, ParseError

    if content.count(b"{") > _MOST_OBJECTS:
        raise TooManyError(f"more than {_MOST_OBJECTS} objects")
    try:
        request = Parse(content, request_class(signal)(), ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(str(error)) from error
    _mend_ids(request)
    whole: bytes = request.SerializeToString()
    return whole


def _mend_ids(holder: Any) -> None:
    for field, value in holder.ListFields():
        if field.name in _IDS:
            setattr(holder, field.name, bytes.fromhex(base64.b64encode(value).decode()))
        elif field.message_type is not None and field.name not in _WITHOUT_IDS:
            for each in [value] if hasattr(value, "ListFields") else value:
                _mend_ids(each)


def items_of(content: bytes, signal: str) -> int:
    """The data points of a request with metrics, or the records of one with logs; ValueError if it is none.

    What is inside the items is not looked at: it goes on as it is, and reading it could take much memory.
    """
    found = [FieldPosition(0, 0, len(content))]
    for field in (1, 2, 2):
        found = _inside(content, found, field)
    if signal != "metrics":
        return len(found)
    kinds = [kind for field in _POINTS_OF for kind in _inside(content, found, field)]
    return len(_inside(content, kinds, 1))


def _inside(content: bytes, around: list[FieldPosition], field: int) -> list[FieldPosition]:
    found = list[FieldPosition]()
    for place in around:
        found += places(content, place.content, place.end, field, MOST_MESSAGES - len(found))
    return found
