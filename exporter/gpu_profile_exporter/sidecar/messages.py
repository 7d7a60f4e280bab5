"""OTLP's requests of each signal: conversion from JSON, the number of items, and the exception of a refusal."""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any, Final

from gpu_profile_exporter.sidecar.trace_request import MOST_MESSAGES, FieldPosition, TooManyError, places

#: Parts of the module's and of the class's name, by signal.
_REQUESTS: Final = {"traces": ("trace", "Trace"), "metrics": ("metrics", "Metrics"), "logs": ("logs", "Logs")}
#: Most objects and arrays of a request in JSON, and most values, by their separators. Parsing takes tens to hundreds of
#: bytes for each, and no other thread runs meanwhile.
_MOST_OBJECTS: Final = 1_000_000
_MOST_VALUES: Final = 3_000_000
#: The fields of a metric with data points: gauge, sum, histogram, exponential histogram and summary.
_POINTS_OF: Final = (5, 7, 9, 10, 11)
_IDS: Final = frozenset({"trace_id", "span_id", "parent_span_id"})
#: Fields without ids inside, which may be large.
_WITHOUT_IDS: Final = frozenset({"attributes", "body", "filtered_attributes", "resource", "scope"})


class Refused(Exception):  # noqa: N818 - an answer to the sender, not an error for users
    """A request is refused: the HTTP status, the reason for the counter, and the text for the sender."""

    def __init__(self, status: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.status, self.reason = status, reason


def request_class(signal: str) -> Any:
    """The class of a signal's requests."""
    module, name = _REQUESTS[signal]
    service = import_module(f"opentelemetry.proto.collector.{module}.v1.{module}_service_pb2")
    return getattr(service, f"Export{name}ServiceRequest")


def from_json(content: bytes, signal: str) -> bytes:
    """The request in protobuf. Raises ValueError if it is invalid.

    Ids are hexadecimal in OTLP's JSON, base64 in protobuf's.
    """
    from google.protobuf.json_format import Parse, ParseError

    if content.count(b"{") + content.count(b"[") > _MOST_OBJECTS or content.count(b",") > _MOST_VALUES:
        raise TooManyError(f"more than {_MOST_OBJECTS} objects and arrays, or {_MOST_VALUES} values")
    if not content.lstrip().startswith(b"{"):
        raise ValueError("no JSON object")  # of a string or an array, the parser would ignore the content
    try:
        request = Parse(content, request_class(signal)(), ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(str(error)) from error
    _decode_ids(request)
    whole: bytes = request.SerializeToString()
    return whole


def _decode_ids(holder: Any) -> None:
    for field, value in holder.ListFields():
        if field.name in _IDS:
            setattr(holder, field.name, bytes.fromhex(base64.b64encode(value).decode()))
        elif field.message_type is not None and field.name not in _WITHOUT_IDS:
            for each in [value] if hasattr(value, "ListFields") else value:
                _decode_ids(each)


def items_of(content: bytes, signal: str) -> int:
    """The number of a request's data points (metrics), records (logs) or spans. Raises ValueError if it is malformed.

    The items themselves are not parsed: they are forwarded unchanged, and parsing could take much memory.
    """
    nested = [FieldPosition(0, 0, len(content))]
    for field in (1, 2, 2):
        nested = _inside(content, nested, field)
    if signal != "metrics":
        return len(nested)
    kinds = [kind for field in _POINTS_OF for kind in _inside(content, nested, field)]
    return len(_inside(content, kinds, 1))


def _inside(content: bytes, around: list[FieldPosition], field: int) -> list[FieldPosition]:
    nested = list[FieldPosition]()
    for place in around:
        nested += places(content, place.content, place.end, field, MOST_MESSAGES - len(nested))
    return nested


def halved(content: bytes, signal: str) -> tuple[bytes, bytes, int] | None:
    """Divide concatenated requests between two resources, and count the items of the first half.

    None for one resource, or if it is malformed. A resource is part of one request, so it is not divided.
    """
    try:
        resources = places(content, 0, len(content), 1, len(content))
        half = len(resources) // 2
        if not half:
            return None
        ends = zip(resources.keys[:half], resources.ends[:half], strict=True)
        items = sum(items_of(content[start:end], signal) for start, end in ends)
    except ValueError:
        return None
    middle = resources.keys[half]
    return content[:middle], content[middle:], items
