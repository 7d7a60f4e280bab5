"""Region metrics on their way through a real collector, as a service on a simulated GPU sends them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import collector as otlp_collector
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint, Metric
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from support.programs import until
from support.push import attributes
from support.regions import HUNGRY

from gpu_profile import configure, region
from gpu_profile.catalogue import Instrument
from gpu_profile.catalogue.metrics import REGION_METRICS, REGION_SPINNING
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.join.durations import BUCKETS_S
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions import running
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import instruments


@pytest.fixture
def arrived() -> Iterator[tuple[dict[str, Metric], int]]:
    """What came out of the collector, the newest of each name, and the port that the sink listens on."""
    metrics: dict[str, Metric] = {}

    def take(body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                metrics.update({metric.name: metric for metric in scope.metrics})

    with otlp_collector.sink(take) as port:
        yield metrics, port


@pytest.fixture
def collector(arrived: tuple[dict[str, Metric], int], tmp_path: Path) -> Iterator[str]:
    """Where a running collector takes metrics over HTTP; it passes them on to the sink."""
    with otlp_collector.collector(arrived[1], tmp_path) as urls:
        yield f"{urls['http/protobuf']}/v1/metrics"


def test_region_metrics_arrive_with_every_execution_at_1_per_cent_of_traces(
    collector: str, arrived: tuple[dict[str, Metric], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n')
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(collector), export_interval_millis=3_600_000)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    traces = TracerProvider(sampler=TraceIdRatioBased(0.01), shutdown_on_exit=False)
    monkeypatch.setattr(running, "tracer", traces.get_tracer("gpu_profile"))
    monkeypatch.setattr(process, "_on_start", [])
    monkeypatch.setattr(instruments, "_instrumented", {})
    with SimulatedQueue(node) as queue:
        configure(backend=f"simulated:{node}", stream=queue)
        instruments.instrument_regions(meters)
        try:
            with region("warm up", strict=True):
                queue.launch(Work(seconds=0.3, flops=1e12))
                queue.synchronize()
            for _ in range(40):
                with region("step", items=8) as execution:
                    queue.launch(Work(flops=4e13, bytes=1e9), tag="step")
                    queue.synchronize()
                    execution.operation = RegionOperation(flops=10**18, bytes=10**9)
            session = process.session()

            def certain() -> bool:
                """Whether the steps' energy is certain; the windows of another execution tell more of it."""
                with region("beside"):
                    queue.launch(Work(seconds=0.07, flops=1e12))
                    queue.synchronize()
                return any(
                    each.summary.energy_half_width for each in session.regions() if each.summary.region == "step"
                )

            until(certain, "the energy of the steps is certain", timeout_s=120)
            with session.joiner.lock:
                session.joiner.verdicts.take_kernels("step", HUNGRY)
        finally:
            process.stop()
            configure()
        assert meters.force_flush()
    metrics, _ = arrived
    sent = [row for row in REGION_METRICS if row is not REGION_SPINNING]  # the queue never spins
    until(lambda: len(metrics) >= len(sent), "all metrics have come through")
    for row in sent:
        metric = metrics[row.otel]
        assert (metric.unit, metric.description) == (row.unit, row.brief)
        if row.instrument is Instrument.COUNTER:
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    points = {
        attributes(point.attributes)["region"]: point
        for point in metrics["gpu_profile.region.duration"].histogram.data_points
    }
    step: HistogramDataPoint = points["step"]
    assert (points["warm up"].count, step.count) == (1, 40)
    assert list(step.explicit_bounds) == list(BUCKETS_S)
    calls = [
        p for p in metrics["gpu_profile.region.calls"].sum.data_points if attributes(p.attributes)["region"] == "step"
    ]
    assert sum(p.as_int or p.as_double for p in calls) == 40
    assert {attributes(p.attributes)["hw.id"] for p in calls} == {queue.device_uuid}
    (items,) = metrics["gpu_profile.region.items"].sum.data_points
    assert (attributes(items.attributes), items.as_double) == ({"region": "step"}, 320.0)
    # More than a whole number of 64 bits holds.
    (flops,), (traffic,) = (metrics[f"gpu_profile.region.{what}"].sum.data_points for what in ("flops", "traffic"))
    assert (attributes(flops.attributes), flops.as_double, traffic.as_double) == ({"region": "step"}, 4e19, 4e10)
    (waited,) = metrics["gpu_profile.region.host_wait"].sum.data_points
    assert (attributes(waited.attributes), waited.as_double) == ({"region": "step"}, 0.006)
    energy = sum(p.as_double for p in metrics["gpu_profile.region.energy"].sum.data_points)
    assert 0 < energy < Truth(node).device(0, 0, 2**62).energy_j
    meters.shutdown()
    traces.shutdown()
