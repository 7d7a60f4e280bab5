"""Operations that were profiled within regions, from the program to spans, /metrics, OTLP metrics and a recording."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.exporter import series
from support.programs import printed
from support.regions import PRODUCT

from gpu_profile.analysis import analyse
from gpu_profile.catalogue.attributes import ATTRIBUTES
from gpu_profile.recording import read_recording

#: A service on a machine without a GPU, with the SDK's own provider, batch processor and meter provider.
SERVICE = """
import json, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from gpu_profile import RegionCollector, configure, process, region
from gpu_profile.regimes.operation import RegionOperation

exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
configure(backend="none", record=sys.argv[1])
for _ in range(6):
    with region("matmul") as execution:
        sum(range(20_000))
        execution.operation = RegionOperation(**json.loads(sys.argv[2]))
    with region("load"):
        pass
provider.force_flush()
registry = CollectorRegistry()
registry.register(RegionCollector())
page = generate_latest(registry).decode()
pushed = {
    metric.name: [[dict(point.attributes), point.value] for point in metric.data.data_points]
    for resource in reader.get_metrics_data().resource_metrics
    for scope in resource.scope_metrics
    for metric in scope.metrics
    if metric.name.endswith((".flops", ".traffic"))
}
spans = [[span.name, dict(span.attributes)] for span in exporter.get_finished_spans()]
print(json.dumps({"spans": spans, "page": page, "pushed": pushed}))
process.stop()
"""


def test_operations_reach_spans_metrics_and_a_recording_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    given = {name: getattr(PRODUCT, name) for name in ("flops", "bytes", "precision", "compute", "memory", "overhead")}
    found: dict[str, Any] = json.loads(printed("-c", SERVICE, str(tmp_path / "a"), json.dumps(given)))

    spans = [attributes for name, attributes in found["spans"] if name == "matmul"]
    assert len(spans) == 6
    assert len(found["spans"]) == 12
    for said in spans:
        assert said.items() >= PRODUCT.attributes().items()
        assert (said["gpu_profile.regime"], said["gpu_profile.basis"]) == ("COMPUTE_BOUND", "operation")
        assert said["gpu_profile.unjoined"]
        assert said.keys() <= {row.name for row in ATTRIBUTES}

    page = series(found["page"])
    assert page['gpu_profile_region_calls_total{hw_id="",regime="COMPUTE_BOUND",region="matmul"}'] == 6
    assert page['gpu_profile_region_calls_total{hw_id="",regime="UNKNOWN",region="load"}'] == 6
    assert page['gpu_profile_region_flops_total{region="matmul"}'] == 6 * 2_400_000_000
    assert page['gpu_profile_region_traffic_bytes_total{region="matmul"}'] == 6 * 20_000_000
    assert found["pushed"] == {
        "gpu_profile.region.flops": [[{"region": "matmul"}, 6 * 2_400_000_000]],
        "gpu_profile.region.traffic": [[{"region": "matmul"}, 6 * 20_000_000]],
    }

    recording = read_recording(tmp_path / "a")
    assert recording.problems == ()
    analysis = analyse(recording)
    (use,) = analysis.of("matmul")
    assert (str(use.verdict.regime), use.verdict.basis, use.verdict.n) == ("COMPUTE_BOUND", "operation", 6)
    assert use.operations is not None
    assert (use.operations.flops, use.operations.bytes) == (6 * 2_400_000_000, 6 * 20_000_000)
    assert use.operations.flops_per_s == pytest.approx(6 * 2_400_000_000 / use.summary.durations.total_s)
