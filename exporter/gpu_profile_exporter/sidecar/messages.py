"""OTLP's requests of each signal as the protobuf library has them: read from JSON, and their items counted; and why one
is refused."""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any, Final

#: By signal: the module's and the request's part of a name, and the fields that lead to its items.
_REQUESTS: Final = {
    "traces": ("trace", "Trace", ("resource_spans", "scope_spans", "spans")),
    "metrics": ("metrics", "Metrics", ("resource_metrics", "scope_metrics", "metrics")),
    "logs": ("logs", "Logs", ("resource_logs", "scope_logs", "log_records")),
}
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
    module, name, _ = _REQUESTS[signal]
    found = import_module(f"opentelemetry.proto.collector.{module}.v1.{module}_service_pb2")
    return getattr(found, f"Export{name}ServiceRequest")


def from_json(content: bytes, signal: str) -> bytes:
    """The same request in protobuf; ValueError if it is none. OTLP's JSON has ids in hexadecimal where protobuf's has
    them in base64."""
    from google.protobuf.json_format import Parse, ParseError

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
    """The data points of a request with metrics, or the records of one with logs; ValueError if it is none."""
    from google.protobuf.message import DecodeError

    try:
        found = [request_class(signal).FromString(content)]
    except DecodeError as error:
        raise ValueError(str(error)) from error
    for field in _REQUESTS[signal][2]:
        found = [each for one in found for each in getattr(one, field)]
    return sum(map(_points, found)) if signal == "metrics" else len(found)


def _points(metric: Any) -> int:
    kind = metric.WhichOneof("data")
    return 0 if kind is None else len(getattr(metric, kind).data_points)
