"""What a real Prometheus makes of either format, hostile labels included."""

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from support.programs import Prometheus, until
from support.servers import answering

from gpu_profile.catalogue import Instrument, Metric
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.readings.readings import MetricReading

pytestmark = pytest.mark.debian

COUNTER = Metric("gpu_profile.test", "J", Instrument.COUNTER, 'A "counter" with \\ and\nlines', ("hw.id", "pod"))
GAUGE = Metric("gpu_profile.test.load", "1", Instrument.GAUGE, "A gauge", ("hw.id", "pod"))
INFO = Metric("gpu_profile.test.info", "", Instrument.GAUGE, "An info", ("hw.id", "pod"))
HOSTILE = ('"', "\\", "a\nb", "nul\0", "\ud83d", "\r", '"} 1\nx{a="', "# EOF", "\u2028", "%s %(a)s", "x" * 10_000, "ü")
OPENMETRICS = "application/openmetrics-text"
CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: exposition
    static_configs:
      - targets: ["{address}"]
"""


def readings() -> list[MetricReading]:
    return [
        MetricReading(metric, {"hw.id": str(i), "pod": pod}, 1 if metric is INFO else value)
        for metric in (COUNTER, GAUGE, INFO)
        for i, (pod, value) in enumerate(zip(HOSTILE, [0, 0.1, 1e-9, 1e22, *range(8)], strict=True))
    ]


def published(found: Sequence[MetricReading], accept: str, tmp_path: Path) -> dict[tuple[str, str], tuple[str, float]]:
    """What Prometheus stored: label and value by name and hw_id."""
    exposition = Exposition(lambda: found)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        body, content_type = exposition.render(accept)
        handler.send_response(200)
        handler.send_header("Content-Type", content_type)
        handler.end_headers()
        handler.wfile.write(body)

    with answering(answer) as url:
        config = CONFIG.format(address=url.removeprefix("http://"))
        with Prometheus(tmp_path / "data", config=config) as prometheus:
            until(lambda: [r for r in prometheus.query("up") if r["value"][1] == "1"], "the scrape succeeds")
            rows = until(lambda: prometheus.query('{__name__=~"gpu_profile_test.*"}'), "there are series")
    return {
        (row["metric"]["__name__"], row["metric"]["hw_id"]): (row["metric"]["pod"], float(row["value"][1]))
        for row in rows
    }


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_prometheus_takes_every_series_whatever_its_labels_hold(accept: str, tmp_path: Path) -> None:
    found = published(readings(), accept, tmp_path)
    assert len(found) == 3 * len(HOSTILE)
    for name in ("gpu_profile_test_joules_total", "gpu_profile_test_load_ratio"):
        values = [found[name, str(i)] for i in range(len(HOSTILE))]
        assert [pod for pod, _ in values[:3]] == ['"', "\\", "a\nb"]
        assert values[-1][0] == "ü"
        assert [value for _, value in values] == [0, 0.1, 1e-9, 1e22, *range(8)]
