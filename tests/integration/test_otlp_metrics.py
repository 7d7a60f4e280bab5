"""Region metrics on their way through a real collector, as a service on a simulated GPU sends them."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import rotel  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, HistogramDataPoint, Metric
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from prometheus_support import free_port, until

from gpu_profile import configure, process, region, region_instruments, running
from gpu_profile.catalogue import Instrument
from gpu_profile.catalogue.metrics import REGION_METRICS
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.durations import BUCKETS_S

AGENT = Path(rotel.__file__).parent / "rotel-agent"


class Sink(BaseHTTPRequestHandler):
    """Takes in metrics over OTLP/HTTP; keeps the newest of each name."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        arrived: dict[str, Metric] = self.server.arrived  # type: ignore[attr-defined]
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                arrived |= {metric.name: metric for metric in scope.metrics}
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def arrived() -> Iterator[tuple[dict[str, Metric], int]]:
    """What came out of the collector, and the port that the sink listens on."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        server.arrived = {}  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.arrived, server.server_port  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


@pytest.fixture
def collector(arrived: tuple[dict[str, Metric], int], tmp_path: Path) -> Iterator[str]:
    """Where a running collector takes metrics over HTTP; it passes them on to the sink."""
    port, log = free_port(), tmp_path / "collector.log"
    command = [str(AGENT), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--batch-timeout", "100ms"]
    command += ["--exporter", "otlp", "--otlp-exporter-endpoint", f"http://127.0.0.1:{arrived[1]}"]
    command += ["--otlp-exporter-protocol", "http"]
    # The wheel's program is linked against the interpreter's library, which need not be on the loader's path.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}
    if subprocess.run([AGENT, "--version"], capture_output=True, check=False, env=environment).returncode == 127:
        pytest.skip("the collector's program lacks a shared library of this Python")
    with log.open("w") as out:
        agent = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)

    def listens() -> bool:
        assert agent.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "the collector listens")
        yield f"http://127.0.0.1:{port}/v1/metrics"
    finally:
        agent.terminate()
        agent.wait(10)


def labels(attributes: Any) -> dict[str, str]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: pair.value.string_value for pair in pairs}


def test_region_metrics_arrive_with_every_execution_at_1_per_cent_of_traces(
    collector: str, arrived: tuple[dict[str, Metric], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n')
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(collector), export_interval_millis=3_600_000)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    traces = TracerProvider(sampler=TraceIdRatioBased(0.01), shutdown_on_exit=False)
    monkeypatch.setattr(running, "tracer", traces.get_tracer("gpu_profile"))
    monkeypatch.setattr(process, "_on_start", [])
    monkeypatch.setattr(region_instruments, "_instrumented", {})
    with SimulatedQueue(node) as queue:
        configure(backend=f"simulated:{node}", stream=queue)
        region_instruments.instrument_regions(meters)
        try:
            with region("warm up", strict=True):
                queue.launch(Work(seconds=0.3, flops=1e12))
                queue.synchronize()
            for _ in range(40):
                with region("step", items=8):
                    queue.launch(Work(flops=4e13, bytes=1e9), tag="step")
                    queue.synchronize()
        finally:
            process.stop()
            configure()
        assert meters.force_flush()
    metrics, _ = arrived
    until(lambda: len(metrics) >= len(REGION_METRICS), "all metrics have come through")
    for row in REGION_METRICS:
        metric = metrics[row.otel]
        assert (metric.unit, metric.description) == (row.unit, row.brief)
        if row.instrument is Instrument.COUNTER:
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    points = {
        labels(point.attributes)["region"]: point
        for point in metrics["gpu_profile.region.duration"].histogram.data_points
    }
    step: HistogramDataPoint = points["step"]
    assert (points["warm up"].count, step.count) == (1, 40)
    assert list(step.explicit_bounds) == list(BUCKETS_S)
    calls = [p for p in metrics["gpu_profile.region.calls"].sum.data_points if labels(p.attributes)["region"] == "step"]
    assert sum(p.as_int or p.as_double for p in calls) == 40
    assert {labels(p.attributes)["hw.id"] for p in calls} == {queue.device_uuid}
    (items,) = metrics["gpu_profile.region.items"].sum.data_points
    assert (labels(items.attributes), items.as_double) == ({"region": "step"}, 320.0)
    energy = sum(p.as_double for p in metrics["gpu_profile.region.energy"].sum.data_points)
    assert 0 < energy < Truth(node).device(0, 0, 2**62).energy_j
    meters.shutdown()
    traces.shutdown()
