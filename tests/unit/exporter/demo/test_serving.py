"""The demonstration of an LLM server: its table and sentences from true and received costs."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpu_profile.catalogue.serving import REQUEST_ENERGY, REQUEST_HALF_WIDTH, REQUEST_REASON
from gpu_profile.errors import UsageError
from gpu_profile_exporter.demo.engine import EndedRequest
from gpu_profile_exporter.demo.screen import Screen
from gpu_profile_exporter.demo.serving import (
    ReceivedRequests,
    RequestLedger,
    requests_table,
    result_text,
    show_requests,
)

ENDED = [
    EndedRequest("0-1", "rag", 4000, 30.0),
    EndedRequest("0-2", "chat", 1000, 30.0),
    EndedRequest("0-3", "chat", 1000, 40.0),
    EndedRequest("0-4", "agent", 500, 5.0),
]
COSTS: Mapping[str, Mapping[str, float | str]] = {
    "0-1": {REQUEST_ENERGY.name: 30.3, REQUEST_HALF_WIDTH.name: 0.2},
    "0-2": {REQUEST_ENERGY.name: 29.0, REQUEST_HALF_WIDTH.name: 2.0},
    "0-3": {REQUEST_ENERGY.name: 41.0, REQUEST_HALF_WIDTH.name: 2.0},
    "0-4": {REQUEST_REASON.name: "not_identifiable_yet"},
}


def ledger(costs: Mapping[str, Mapping[str, float | str]] = COSTS) -> RequestLedger:
    """A ledger after the engine's messages and the forwarded spans."""
    received = ReceivedRequests()
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number, values in costs.items():
        span = spans.add()
        span.attributes.add(key="gen_ai.request.id").value.string_value = number
        for key, value in values.items():
            kind = "string_value" if isinstance(value, str) else "double_value"
            setattr(span.attributes.add(key=key).value, kind, value)
    received.take(request.SerializeToString())
    return RequestLedger(received, [EndedRequest(*each) for each in json.loads(json.dumps(ENDED))])


def test_tenants_are_compared_over_their_requests_with_a_cost() -> None:
    rows = requests_table(ledger().tenants(), None).splitlines()[2:]
    assert [" ".join(row.split()) for row in rows] == [
        "agent 1 0 – – – – – –",
        "chat 2 2 35.0 J 35.0 J 70.0 J 70.0 J +0.0 % −52.4 %",
        "rag 1 1 30.3 J 7.58 J 30.3 J 30.0 J +1.0 % +122.2 %",
    ]


def test_the_result_has_three_sentences_and_a_span() -> None:
    text = result_text(ledger(), None)
    assert "gpu_profile.request.energy = 41.0" in text
    assert text.splitlines()[-3:] == [
        "70 % of their energy is chat's, 35.0 J a request.",
        "No tenant's energy is off by more than 1.0 %; by tokens, rag's is by 122 %.",
        "67 % of the requests have their true energy within their 95 % interval.",
    ]
    assert max(map(len, result_text(ledger(), 80).splitlines())) <= 80


@pytest.mark.parametrize(("costs", "reason"), [({"0-4": COSTS["0-4"]}, "not_identifiable_yet"), ({}, "no request")])
def test_without_a_cost_the_result_says_why(costs: Mapping[str, Mapping[str, float | str]], reason: str) -> None:
    assert reason in result_text(ledger(costs), None)


def test_missing_packages_have_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpu_profile_exporter.demo.serving.find_spec", lambda name: None if name == "zmq" else object())
    folder: Any = SimpleNamespace(path=tmp_path, fd=0)
    with pytest.raises(UsageError, match=r"pip install 'gpu-profile\[serving,sidecar\]'"):
        show_requests(Screen(), folder, 9400, None, 0.0)


def test_a_long_demonstration_keeps_the_newest_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_profile_exporter.demo.serving.MOST_REQUESTS", 2)
    found = ledger()
    assert list(found.received.by_id) == ["0-3", "0-4"]
    found.add([])
    assert [each.id for each in found.ended] == ["0-3", "0-4"]
