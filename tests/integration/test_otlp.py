"""Region spans on their way through a real collector, as a service on a simulated GPU sends them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import collector as otlp_collector
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from support.programs import until
from support.push import attributes

from gpu_profile import GpuSpanProcessor, configure, region
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.regimes import Regime
from gpu_profile.regions import running
from gpu_profile.regions.session import process


@pytest.fixture
def arrived() -> Iterator[tuple[list[Span], int]]:
    """What came out of the collector, and the port that the sink listens on."""
    spans: list[Span] = []

    def take(body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                spans.extend(scope.spans)

    with otlp_collector.sink(take) as port:
        yield spans, port


@pytest.fixture
def collector(arrived: tuple[list[Span], int], tmp_path: Path) -> Iterator[str]:
    """Where a running collector takes spans over HTTP; it passes them on to the sink."""
    with otlp_collector.collector(arrived[1], tmp_path) as urls:
        yield f"{urls['http/protobuf']}/v1/traces"


def test_region_spans_arrive_once_each_with_what_the_gpu_did(
    collector: str, arrived: tuple[list[Span], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n')
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(GpuSpanProcessor(BatchSpanProcessor(OTLPSpanExporter(collector))))
    tracer = provider.get_tracer("gpu_profile")
    monkeypatch.setattr(running, "tracer", tracer)
    with SimulatedQueue(node) as queue:
        configure(backend=f"simulated:{node}", stream=queue)
        try:
            with region("warm up", strict=True):
                queue.launch(Work(seconds=0.3, flops=1e12))
                queue.synchronize()
            with tracer.start_as_current_span("request"), region("train", items=64):
                for _ in range(30):
                    with region("step"):
                        queue.launch(Work(flops=2e13, bytes=1e9), tag="train")
                        queue.synchronize()
                queue.launch(Work(seconds=2.2, flops=1e15), tag="train")
                queue.synchronize()
            assert provider.force_flush()
        finally:
            process.stop()
            configure()
    provider.shutdown()
    spans, _ = arrived
    until(lambda: len(spans) >= 33, "all spans have come through")
    assert Counter(span.name for span in spans) == {"warm up": 1, "request": 1, "train": 1, "step": 30}
    assert len({span.span_id for span in spans}) == 33
    by_name = {span.name: span for span in spans}
    assert by_name["train"].parent_span_id == by_name["request"].span_id
    assert {span.parent_span_id for span in spans if span.name == "step"} == {by_name["train"].span_id}
    assert {span.trace_id for span in spans if span.name != "warm up"} == {by_name["request"].trace_id}
    assert list(by_name["request"].attributes) == []
    for span in spans:
        if span.name != "request":
            said = attributes(span.attributes)
            assert said["gpu_profile.region"] == span.name
            assert said["gpu_profile.device.ids"] == [queue.device_uuid]
            assert said["gpu_profile.interval.source"] == "device"
    train = attributes(by_name["train"].attributes)
    assert train["gpu_profile.items"] == 64.0
    assert train["gpu_profile.regime"] in {str(regime) for regime in Regime}
    if train["gpu_profile.scope"] == "span":  # a machine under load may sample too seldom for values of its own
        truth = Truth(node).device(0, by_name["train"].start_time_unix_nano, by_name["train"].end_time_unix_nano)
        seconds = train["gpu_profile.interval.duration"]
        assert train["gpu_profile.busy.ratio"] == pytest.approx(truth.busy_s / seconds, abs=0.12)
        assert train["gpu_profile.energy.joules"] == pytest.approx(truth.energy_j, rel=0.15)
