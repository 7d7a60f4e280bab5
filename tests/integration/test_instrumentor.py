"""A service under `opentelemetry-instrument`, which finds gpu-profile by its entry point, on a simulated GPU."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import SpanKind
from opentelemetry.util._once import Once
from support.nodes import busy, node_of
from support.programs import environment, python, ran
from support.regions import Stage

from gpu_profile import GpuSpanProcessor, region
from gpu_profile.catalogue.metrics import (
    REGION_FLOPS,
    REGION_KERNEL_METRICS,
    REGION_METRICS,
    REGION_SPINNING,
    REGION_TRAFFIC,
)
from gpu_profile.driver import simulated
from gpu_profile.errors import UsageError
from gpu_profile.integrations.opentelemetry import GpuProfileInstrumentor
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import instruments, providers, server_spans

BUSY_GPU = node_of("H200 SXM") + busy(1.0)
SERVICE = """
import time
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from gpu_profile import region

tracer = trace.get_tracer("shop")

@region("decode", items=4)
def decode():
    time.sleep(0.05)

with tracer.start_as_current_span("GET /answer", kind=SpanKind.SERVER):
    with tracer.start_as_current_span("handler"):
        time.sleep(2.2)
        decode()
with tracer.start_as_current_span("plain"):
    pass
"""
ENTRY = "[opentelemetry_instrumentor]\ngpu_profile = gpu_profile.integrations.opentelemetry:GpuProfileInstrumentor\n"


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that the console exporters have written one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        found, at = decoder.raw_decode(text, at)
        yield found
        while at < len(text) and text[at].isspace():
            at += 1


class Ran:
    """What a service that has run exported, and said on standard error."""

    def __init__(self, tmp_path: Path, code: str = SERVICE, **variables: str) -> None:
        node = simulated.create(tmp_path / "node", BUSY_GPU)
        entry = tmp_path / "path" / "gpu_profile_here-0.1.dist-info"
        entry.mkdir(parents=True)
        (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: gpu-profile-here\nVersion: 0.1\n")
        (entry / "entry_points.txt").write_text(ENTRY)
        script = tmp_path / "service.py"
        script.write_text(code)
        variables |= {"GPU_PROFILE_BACKEND": f"simulated:{node}", "OTEL_LOGS_EXPORTER": "none"}
        variables |= {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "console"}
        variables["PYTHONPATH"] = f"{environment()['PYTHONPATH']}:{entry.parent}"
        instrument = Path(sys.executable).parent / "opentelemetry-instrument"
        done = ran([instrument, sys.executable, script], **variables)
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        self.spans: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, Any] = {}
        for found in objects(done.stdout):
            if "resource_metrics" in found:
                scopes = [s for resource in found["resource_metrics"] for s in resource["scope_metrics"]]
                self.metrics |= {metric["name"]: metric for scope in scopes for metric in scope["metrics"]}
            else:
                assert found["name"] not in self.spans
                self.spans[found["name"]] = found

    def joined(self) -> set[str]:
        return {name for name, span in self.spans.items() if "gpu_profile.device.ids" in span["attributes"]}

    def calls(self) -> dict[str, int]:
        points = self.metrics["gpu_profile.region.duration"]["data"]["data_points"]
        return {point["attributes"]["region"]: point["count"] for point in points}


def test_service_gets_gpu_attributes_and_metrics_with_no_change_of_its_code(tmp_path: Path) -> None:
    ran = Ran(tmp_path)
    assert ran.joined() == {"decode", "handler", "GET /answer"}
    assert ran.spans["plain"]["attributes"] == {}
    assert ran.spans["GET /answer"]["attributes"]["gpu_profile.region"] == "GET /answer"
    if ran.spans["GET /answer"]["attributes"]["gpu_profile.scope"] == "span":  # a busy machine may sample too seldom
        assert ran.spans["GET /answer"]["attributes"]["gpu_profile.busy.ratio"] > 0.8
    assert ran.spans["decode"]["parent_id"] == ran.spans["handler"]["context"]["span_id"]
    absent = {REGION_FLOPS, REGION_TRAFFIC, *REGION_KERNEL_METRICS, REGION_SPINNING}  # it profiles nothing, nor spins
    assert set(ran.metrics) >= {row.otel for row in REGION_METRICS if row not in absent}
    assert ran.calls() == {"decode": 1, "handler": 1, "GET /answer": 1}
    assert "Traceback" not in ran.stderr


def test_rule_comes_from_the_environment(tmp_path: Path) -> None:
    ran = Ran(tmp_path, GPU_PROFILE_SPANS="name=pl?in")
    assert ran.joined() == {"decode", "plain"}
    assert ran.calls() == {"decode": 1, "plain": 1}


def test_rule_that_is_none_is_passed_over_with_one_line(tmp_path: Path) -> None:
    ran = Ran(tmp_path, GPU_PROFILE_SPANS="servers")
    assert ran.joined() == {"decode", "handler", "GET /answer"}
    lines = [line for line in ran.stderr.splitlines() if "GPU_PROFILE_SPANS" in line]
    assert len(lines) == 1
    assert "GPU_PROFILE_SPANS is ignored: 'servers' does not select spans for GPU attributes" in lines[0]


def test_opentelemetrys_own_switch_leaves_foreign_spans_alone(tmp_path: Path) -> None:
    ran = Ran(tmp_path, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="gpu_profile")
    assert not ran.joined() & {"GET /answer", "handler", "plain"}


def test_disabled_gpu_profile_leaves_everything_as_it_is(tmp_path: Path) -> None:
    ran = Ran(tmp_path, GPU_PROFILE_DISABLED="1")
    assert set(ran.spans) == {"GET /answer", "handler", "plain"}
    assert ran.joined() == set()
    assert not set(ran.metrics) & {row.otel for row in REGION_METRICS}


def test_disabled_sdk_is_no_trouble(tmp_path: Path) -> None:
    ran = Ran(tmp_path, OTEL_SDK_DISABLED="true")
    assert ran.spans == {}
    assert "Traceback" not in ran.stderr


def test_service_that_forks_workers_sends_each_span_once(tmp_path: Path) -> None:
    code = """
import os, sys
from opentelemetry import trace
from opentelemetry.trace import SpanKind

tracer = trace.get_tracer("shop")
with tracer.start_as_current_span("parent", kind=SpanKind.SERVER):
    pass
child = os.fork()
with tracer.start_as_current_span("child" if child == 0 else "after", kind=SpanKind.SERVER):
    pass
if child:
    os.waitpid(child, 0)
"""
    ran = Ran(tmp_path, code)
    assert set(ran.spans) == {"parent", "child", "after"}
    assert all(any(k.startswith("gpu_profile.") for k in span["attributes"]) for span in ran.spans.values())


@pytest.mark.parametrize("first", ["provider", "region"])
def test_service_with_a_provider_of_its_own_needs_no_code_beyond_region(tmp_path: Path, first: str) -> None:
    node = simulated.create(tmp_path / "node", BUSY_GPU)
    set_up = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
provider, exporter, reader = TracerProvider(), InMemorySpanExporter(), InMemoryMetricReader()
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([reader]))
"""
    early = """
from gpu_profile import region
with region("early"):
    pass
"""
    late = """
import time
from gpu_profile import process, region
with region("decode"):
    time.sleep(0.5)
provider.force_flush()
process.stop()
(span,) = [span for span in exporter.get_finished_spans() if span.name == "decode"]
assert "gpu_profile.device.ids" in span.attributes, span.attributes
(scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
calls = next(metric for metric in scope.metrics if metric.name == "gpu_profile.region.calls")
print(sorted(point.attributes["region"] for point in calls.data.data_points))
"""
    code = set_up + late if first == "provider" else early + set_up + late
    done = python("-W", "error", "-c", code, GPU_PROFILE_BACKEND=f"simulated:{node}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("['decode']\n" if first == "provider" else "['decode', 'early']\n")


# ------------------------------------------------------------------ from code


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(providers, "_wanted", None)
    monkeypatch.setattr(instruments, "_instrumented", {})
    monkeypatch.setattr(process, "_on_start", [])
    monkeypatch.setattr(server_spans, "current", None)
    with Stage(tmp_path, monkeypatch, on_device=False, joined=False) as stage:
        yield stage
        if GpuProfileInstrumentor().is_instrumented_by_opentelemetry:
            GpuProfileInstrumentor().uninstrument()


def test_program_switches_on_and_off_by_itself(service: Stage) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    service.provider.add_span_processor(service.processor.inner)
    instrumentor = GpuProfileInstrumentor()
    instrumentor.instrument(tracer_provider=service.provider, meter_provider=meters, spans="server")
    tracer = service.provider.get_tracer("shop")

    def request() -> None:
        with tracer.start_as_current_span("GET /", kind=SpanKind.SERVER), region("step"):
            service.run(0.2)
        service.flush()

    request()
    assert service.calls("GET /") == service.calls("step") == 1
    assert "device.ids" in service.attributes("GET /")
    instrumentor.uninstrument()
    service.exporter.clear()
    request()
    assert service.calls("GET /") == 1
    assert service.attributes("GET /") == {}
    assert "device.ids" not in service.attributes("step")
    assert server_spans.current is None
    data = reader.get_metrics_data()
    names = [m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
    assert "gpu_profile.region.calls" not in names


@pytest.mark.parametrize("when", ["before the session", "after"])
def test_regions_without_spans_find_the_span_around_them(service: Stage, when: str) -> None:
    service.provider.add_span_processor(service.processor.inner)
    if when == "before the session":
        process.stop()
        GpuProfileInstrumentor().instrument(tracer_provider=service.provider)
        service.session = process.current = process._make()
        service.session.active = True
        service.session.joiner.on_end.append(service.ended.append)
    else:
        GpuProfileInstrumentor().instrument(tracer_provider=service.provider)
    with service.provider.get_tracer("shop").start_as_current_span("job"), region("quiet", span=False):
        pass
    assert service.parents() == {"job": None, "quiet": "job"}


def test_words_in_code_that_are_no_rule_are_a_usage_error(service: Stage) -> None:
    with pytest.raises(UsageError, match="'servers' does not select spans"):
        GpuProfileInstrumentor().instrument(spans="servers")
    assert server_spans.current is None


def test_it_works_where_opentelemetry_instrumentation_is_not_installed() -> None:
    code = """
import sys
sys.modules["opentelemetry.instrumentation"] = None
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from gpu_profile import GpuSpanProcessor, configure, region
from gpu_profile.integrations.opentelemetry import GpuProfileInstrumentor

configure(backend="none")
provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
GpuProfileInstrumentor().instrument(tracer_provider=provider)
assert all(isinstance(p, GpuSpanProcessor) for p in provider._active_span_processor._span_processors)
with provider.get_tracer("shop").start_as_current_span("GET /", kind=SpanKind.SERVER):
    pass
provider.force_flush()
(span,) = exporter.get_finished_spans()
assert "gpu_profile.unjoined" in span.attributes
GpuProfileInstrumentor().uninstrument()
assert not any(isinstance(p, GpuSpanProcessor) for p in provider._active_span_processor._span_processors)
print("works")
"""
    done = python("-W", "error", "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "works\n", "")


def test_processor_of_the_users_own_joins_foreign_spans_too(service: Stage) -> None:
    service.provider.add_span_processor(service.processor)
    GpuProfileInstrumentor().instrument(tracer_provider=service.provider)
    assert isinstance(service.processor, GpuSpanProcessor)
    span = service.provider.get_tracer("shop").start_span("GET /", kind=SpanKind.SERVER)
    service.run(0.2)
    span.end()
    service.flush()
    assert "device.ids" in service.attributes("GET /")
