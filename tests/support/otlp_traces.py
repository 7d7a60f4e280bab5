"""Requests with spans, encoded by OpenTelemetry's own classes."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gpu_profile_exporter.sidecar.trace_request import TraceRequest

SERVER, INTERNAL = 2, 1


def add_attributes(to: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        pair = to.attributes.add()
        pair.key = key
        if isinstance(value, str):
            pair.value.string_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        else:
            for one in value:
                pair.value.array_value.values.add().string_value = one


def span(
    name: str,
    start_ns: int,
    end_ns: int,
    *,
    kind: int = SERVER,
    span_id: bytes = b"",
    parent: bytes = b"",
    state: str = "",
    **attributes: Any,
) -> Span:
    made = Span(
        trace_id=os.urandom(16),
        span_id=span_id or os.urandom(8),
        parent_span_id=parent,
        trace_state=state,
        name=name,
        kind=kind,  # type: ignore[arg-type]  # an enumeration's number
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
    )
    add_attributes(made, {key.replace("__", "."): value for key, value in attributes.items()})
    return made


def request_of(spans: Sequence[Span], *, scope: str = "app", **resource: Any) -> bytes:
    made = ExportTraceServiceRequest()
    of_resource = made.resource_spans.add()
    attributes = {key.replace("__", "."): value for key, value in resource.items()}
    add_attributes(of_resource.resource, {"service.name": "svc", **attributes})
    of_scope = of_resource.scope_spans.add()
    of_scope.scope.name = scope
    of_scope.spans.extend(spans)
    whole: bytes = made.SerializeToString()
    return whole


def spans_of(request: bytes) -> list[Span]:
    parsed = ExportTraceServiceRequest.FromString(request)
    return [one for r in parsed.resource_spans for s in r.scope_spans for one in s.spans]


def with_attributes(request: TraceRequest, added: Sequence[Sequence[bytes]]) -> bytes:
    """The request with these attributes, in one part."""
    (part,) = request.parts(added, sys.maxsize)
    return b"".join(part.pieces)
