"""What is used of the SDK that it does not promise, held on every version that is at hand."""

import os
import sys
from pathlib import Path

import pytest
from support.programs import ran

ROOT = Path(__file__).parents[4]
#: This interpreter, and those of other environments: CI gives one with the oldest SDK that is supported.
PYTHONS = [sys.executable, *filter(None, os.environ.get("GPU_PROFILE_SDK_PYTHONS", "").split(":"))]
CONTRACT = """
import importlib.metadata
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from gpu_profile import configure, process, region
from gpu_profile.regions.telemetry.providers import join_spans, leave_spans
from gpu_profile.regions.telemetry.instruments import instrument_regions

configure(backend="none")
assert not join_spans()
reader = InMemoryMetricReader()
instrument_regions(MeterProvider([reader], shutdown_on_exit=False))
early, late = InMemorySpanExporter(), InMemorySpanExporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(early))
trace.set_tracer_provider(provider)
provider.add_span_processor(SimpleSpanProcessor(late))
with region("outer"), region("inner"):
    pass
assert not early.get_finished_spans()
provider.force_flush()
for exporter in (early, late):
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["inner", "outer"]
    assert all("gpu_profile.unjoined" in span.attributes for span in spans)
leave_spans()
with region("left"):
    pass
assert "gpu_profile.unjoined" not in late.get_finished_spans()[-1].attributes
concurrent = TracerProvider(active_span_processor=ConcurrentMultiSpanProcessor(2), shutdown_on_exit=False)
concurrent.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
assert join_spans(concurrent)
process.stop()
scopes = reader.get_metrics_data().resource_metrics[0].scope_metrics
durations = {m.name: m for m in scopes[0].metrics}["gpu_profile.region.duration"].data.data_points
assert sorted((p.attributes["region"], p.count) for p in durations) == [("inner", 1), ("left", 1), ("outer", 1)]
print("holds for", importlib.metadata.version("opentelemetry-sdk"))
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_contract_with_the_sdk_holds(python: str) -> None:
    done = ran([python, "-W", "error", "-c", CONTRACT], PYTHONPATH=str(ROOT / "instrumentation"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("holds for ")
    assert done.stderr == ""
