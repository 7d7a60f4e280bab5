"""Exemplars of a program's region metrics, as a real Prometheus takes them in."""

import shutil
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id
from support.programs import Prometheus, until

from gpu_profile import configure, region, serve_metrics
from gpu_profile.regions import running
from gpu_profile.regions.session import process
from gpu_profile.regions.telemetry import prometheus as region_metrics

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: service
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.mark.debian
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
def test_prometheus_leads_from_a_bucket_to_the_span_of_an_execution_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_on_start", [])
    monkeypatch.setattr(region_metrics, "_examples", region_metrics._Examples())
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(running, "tracer", provider.get_tracer("gpu_profile"))
    # Keeping exemplars has to be asked for on the command line.
    wrapper = tmp_path / "bin" / "prometheus"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("prometheus")} --enable-feature=exemplar-storage "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    configure(backend="none")
    server = serve_metrics(0, address="127.0.0.1")
    try:
        start_s = time.time()
        with region("step"):
            time.sleep(0.03)
        with Prometheus(tmp_path / "data", config=CONFIG.format(port=server.port)) as prometheus:

            def found() -> list[dict[str, object]]:
                answer = prometheus.api(
                    "query_exemplars",
                    query="gpu_profile_region_duration_seconds_bucket",
                    start=f"{start_s - 60:.3f}",
                    end=f"{time.time() + 60:.3f}",
                )
                return [{**row["seriesLabels"], **one} for row in answer for one in row["exemplars"]]

            (exemplar, *others) = until(found, "Prometheus has taken the exemplar in")
    finally:
        server.close()
        process.stop()
        configure()
        provider.shutdown()
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert others == []
    assert exemplar["region"] == "step"
    assert exemplar["labels"]["span_id"] == format_span_id(span.context.span_id)
    assert 0.03 <= float(exemplar["value"]) <= float(exemplar["le"])
