"""Exemplars: from a bucket of a region's durations to a trace with an execution in it."""

from urllib.request import Request, urlopen

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.trace import format_span_id, format_trace_id
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.samples import Exemplar
from support.regions import Stage, Staged

from gpu_profile import RegionCollector, region, serve_metrics
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import prometheus
from gpu_profile.units import NS_PER_S


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No execution has been remembered yet, and nobody has asked for that."""
    monkeypatch.setattr(prometheus, "_examples", prometheus._Examples())
    monkeypatch.setattr(process, "_on_start", [])


@pytest.fixture
def registry(on_host: Stage) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(RegionCollector())
    return registry


def page(registry: CollectorRegistry) -> str:
    """As a scraper gets it that asks for OpenMetrics."""
    encoded: bytes = exposition.generate_latest(registry)  # type: ignore[no-untyped-call]
    return encoded.decode()


def examples(text: str) -> dict[tuple[str, str], Exemplar]:
    """The exemplars of a page by region and bucket, as a scraper's parser finds them."""
    return {
        (sample.labels["region"], sample.labels["le"]): sample.exemplar
        for family in parser.text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }


def lasting(on_host: Stage, name: str, seconds: float) -> None:
    with region(name):
        on_host.run(seconds)


def test_bucket_has_the_newest_execution_in_it(on_host: Stage, registry: CollectorRegistry) -> None:
    for seconds in (0.07, 0.3, 0.06):
        lasting(on_host, "step", seconds)
    lasting(on_host, "load", 0.03)
    on_host.flush()
    found = examples(page(registry))
    assert set(found) == {("step", "0.1"), ("step", "0.5"), ("load", "0.05")}
    newest = found["step", "0.1"]
    span = [span for span in on_host.spans if span.name == "step"][-1]
    assert span.context is not None
    assert span.end_time is not None
    assert newest.labels == {
        "trace_id": format_trace_id(span.context.trace_id), "span_id": format_span_id(span.context.span_id)
    }  # fmt: skip
    assert newest.value == pytest.approx(0.06)
    assert float(newest.timestamp or 0) == pytest.approx(span.end_time / NS_PER_S)


def test_exemplar_lies_in_its_bucket_also_at_the_edge(on_host: Stage, registry: CollectorRegistry) -> None:
    for seconds in (0.1, 0.25, 700.0):
        with region("step"):
            on_host.clock.advance(seconds)
    on_host.flush()
    found = examples(page(registry))
    assert {bucket: example.value for (_, bucket), example in found.items()} == {
        "0.1": 0.1,
        "0.25": 0.25,
        "+Inf": 700.0,
    }


def test_execution_without_a_sampled_span_is_no_example(staged: Staged) -> None:
    on_host = staged(on_device=False, sampler=ALWAYS_OFF)
    registry = CollectorRegistry()
    registry.register(RegionCollector())
    lasting(on_host, "step", 0.1)
    with region("quiet", span=False):
        pass
    on_host.flush()
    assert examples(page(registry)) == {}


def test_every_example_is_an_exported_span_at_1_per_cent(staged: Staged) -> None:
    on_host = staged(on_device=False, sampler=TraceIdRatioBased(0.01))
    registry = CollectorRegistry()
    registry.register(RegionCollector())
    for i in range(2_000):
        with region("step"):
            on_host.clock.advance(0.0001 * (i % 40))
    on_host.flush()
    found = examples(page(registry))
    exported = {format_span_id(span.context.span_id) for span in on_host.spans if span.context is not None}
    assert 0 < len(exported) < 100
    assert len(found) > 0
    assert {example.labels["span_id"] for example in found.values()} <= exported


def test_names_that_are_counted_together_have_no_example(on_host: Stage, registry: CollectorRegistry) -> None:
    for i in range(1_010):
        with region(f"step {i}"):
            on_host.clock.advance(0.001)
    on_host.flush()
    found = examples(page(registry))
    assert len(found) == 1_000
    assert not any(name == "other" for name, _ in found)


def test_new_session_starts_without_examples(on_host: Stage, registry: CollectorRegistry) -> None:
    lasting(on_host, "step", 0.07)
    on_host.restart()
    lasting(on_host, "step", 0.3)
    on_host.flush()
    assert set(examples(page(registry))) == {("step", "0.5")}


def test_only_a_scraper_that_asks_for_openmetrics_gets_them(on_host: Stage, registry: CollectorRegistry) -> None:
    lasting(on_host, "step", 0.07)
    on_host.flush()
    server = serve_metrics(0, address="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        asking = Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urlopen(asking, timeout=10) as answer:
            assert set(examples(answer.read().decode())) == {("step", "0.1")}
        with urlopen(url, timeout=10) as answer:
            assert b"trace_id" not in answer.read()
    finally:
        server.close()
    assert b"trace_id" not in generate_latest(registry)
