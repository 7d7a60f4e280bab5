"""The costs of an LLM server's requests as attributes of the requests' spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from gpu_profile_exporter.sidecar.attributes import encoded
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    from gpu_profile_exporter.serving import CostTicket, ServingCosts

_GEN_AI: Final = b"gen_ai."
_SERVICE: Final = "service.name"
_SCALARS: Final = frozenset({"string_value", "int_value", "double_value", "bool_value"})


class SpanTicket(NamedTuple):
    """A span of a request, by its number, and the ticket for its cost."""

    span: int
    ticket: CostTicket


class RequestCosts:
    """Passes the spans of requests to `serving`, and encodes their costs."""

    def __init__(self, serving: ServingCosts) -> None:
        self._serving = serving

    def take(self, request: TraceRequest) -> list[SpanTicket]:
        """Pass the requests among the spans on. Returns their tickets."""
        tickets: list[SpanTicket] = []
        end = 0
        for scope in request.scopes:
            first, end = end, end + len(scope.places)
            if request.data.find(_GEN_AI, *scope.places.extent) < 0:
                continue
            resource = _values(scope.resource.attributes)
            service = str(resource.get(_SERVICE, ""))
            for i, span in enumerate(scope.spans, first):
                values = resource | _values(span.attributes)
                ticket = self._serving.request(service, span.name, span.start_time_unix_nano, values, span.trace_id)
                if ticket is not None:
                    tickets.append(SpanTicket(i, ticket))
        return tickets

    def are_ready(self, tickets: Iterable[SpanTicket]) -> bool:
        """Whether no ticket waits any longer."""
        return all(each.ticket.is_ready for each in tickets)

    def add(self, added: list[bytes], tickets: Iterable[SpanTicket]) -> None:
        """Append the costs to the attributes of their spans: `added`, by span."""
        for span, ticket in tickets:
            ticket.sent = True
            added[span] += encoded(ticket.attributes())


def _values(attributes: Iterable[KeyValue]) -> dict[str, object]:
    """The texts and numbers among attributes."""
    values: dict[str, object] = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        if kind in _SCALARS:
            values[pair.key] = getattr(pair.value, kind)
    return values
