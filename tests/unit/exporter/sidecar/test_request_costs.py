"""Spans of an LLM server's requests wait for their costs; all other spans overtake them."""

from collections.abc import Mapping

import pytest
from support.otlp_traces import request_of, span, spans_of
from unit.exporter.sidecar.test_pipeline import World

from gpu_profile.catalogue import serving as names
from gpu_profile.serving.pricing.cost_sums import RequestCost
from gpu_profile.serving.pricing.sharing import Unallocated
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.serving import CostTicket
from gpu_profile_exporter.sidecar import pipeline
from gpu_profile_exporter.sidecar.pipeline import SpanPipeline
from gpu_profile_exporter.sidecar.request_costs import RequestCosts
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

WAIT_S = 30.0
COST = RequestCost((2.0, 3.0), 0.25, 4.0, 0.5, None)


class Serving:
    """Gives a ticket for every span that is named `llm_request`."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.tickets: list[CostTicket] = []
        self.seen: list[tuple[str, int, Mapping[str, object]]] = []

    def request(
        self, service: str, name: str, start_ns: int, attributes: Mapping[str, object], trace: bytes
    ) -> CostTicket | None:
        self.seen.append((service, start_ns, attributes))
        if name != "llm_request":
            return None
        self.tickets.append(CostTicket(self.clock, int(WAIT_S * 1e9)))
        return self.tickets[-1]


class Costed(World):
    def __init__(self) -> None:
        super().__init__()
        self.serving = Serving(self.clock)
        costs = RequestCosts(self.serving)  # type: ignore[arg-type]
        self.pipeline = SpanPipeline(self.join, self.sender, self.clock, gzip=False, costs=costs)  # type: ignore[arg-type]
        self.bodies: list[bytes] = []
        send = self.next.send

        def kept(batch, timeout_s):  # type: ignore[no-untyped-def]
            self.bodies.append(batch.unpacked())
            return send(batch, timeout_s)

        self.next.send = kept  # type: ignore[method-assign]

    def request(self, *names: str) -> None:
        spans = [span(name, 5, 9, gen_ai__request__id=f"id of {name}", user="u") for name in names]
        assert self.pipeline.take(TraceRequest(request_of(spans, region="eu")))

    def step(self) -> float:
        wait_s = self.pipeline.step()
        self.sender.step()
        return wait_s

    def values(self, name: str) -> dict[str, object]:
        (found,) = [one for body in self.bodies for one in spans_of(body) if one.name == name]
        return {
            pair.key: pair.value.double_value or pair.value.string_value
            for pair in found.attributes
            if pair.key.startswith("gpu_profile.request")
        }


def test_a_request_waits_for_its_cost_and_others_do_not_wait_with_it() -> None:
    world = Costed()
    world.request("llm_request", "inside")
    world.request("other")
    assert world.step() <= 0.25
    assert world.next.got == ["other"]
    assert world.told("receive.waiting") == 2
    service, start_ns, attributes = world.serving.seen[0]
    assert (service, start_ns) == ("svc", 5)
    assert attributes["gen_ai.request.id"] == "id of llm_request"
    assert attributes["region"] == "eu"
    world.serving.tickets[0].cost = COST
    world.serving.tickets[0].saved_j = 1.5
    world.step()
    assert world.next.got == ["other", "llm_request", "inside"]
    assert world.values("llm_request") == {
        names.REQUEST_ENERGY.name: 5.0,
        names.REQUEST_MARGINAL.name: 4.0,
        names.REQUEST_HALF_WIDTH.name: 0.25,
        names.REQUEST_DEVICE_TIME.name: 0.5,
        names.REQUEST_SAVED.name: 1.5,
    }
    assert world.values("inside") == {}
    assert world.told("receive.waiting") == 0


@pytest.mark.parametrize(
    ("cost", "reason", "says"),
    [
        (None, "", "not_settled_in_time"),
        (None, "speculative_decoding", "speculative_decoding"),
        (COST._replace(reason=Unallocated.NOT_YET), "", "not_identifiable_yet"),
    ],
)
def test_a_request_without_a_cost_says_why_and_has_no_number(cost: RequestCost | None, reason: str, says: str) -> None:
    world = Costed()
    world.request("llm_request")
    (ticket,) = world.serving.tickets
    ticket.cost, ticket.reason = cost, reason
    if cost is None and not reason:
        world.step()
        assert world.next.got == []
        world.clock.advance(WAIT_S)
    world.step()
    assert world.values("llm_request") == {names.REQUEST_REASON.name: says}


def test_requests_do_not_wait_for_costs_when_they_fill_the_room_or_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Costed()
    world.request("llm_request")
    world.step()
    monkeypatch.setattr(pipeline, "_MOST_FOR_COSTS", 0.0)
    world.step()
    assert world.next.got == ["llm_request"]
    ended = Costed()
    ended.request("llm_request")
    ended.step()
    ended.pipeline.stop(1.0)
    assert ended.told("receive.waiting") == 0
