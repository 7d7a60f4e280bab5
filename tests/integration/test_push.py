"""What an exporter pushes on its way through a real collector: after translation, the series of a scrape."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import collector as otlp_collector
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from support.exporter import IDENTITY, series
from support.programs import free_port, until
from support.push import attributes, points_of

from gpu_profile.catalogue import METRICS
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.self_metrics import SELF_METRICS
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.sampling.sampler import Sampler
from gpu_profile_exporter.config import Otlp
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.push import Endpoint, Pusher, resource_attributes
from gpu_profile_exporter.readings.readings import MetricReading, readings

#: The series that the exposition adds about itself.
OF_THE_SCRAPE = "gpu_profile_series"
ROWS = {row.otel: row for row in (*METRICS, *SELF_METRICS, *PUSH_METRICS)}


@pytest.fixture
def arrived() -> Iterator[tuple[list[ExportMetricsServiceRequest], int]]:
    """What came out of the collector, and the port that the sink listens on."""
    requests: list[ExportMetricsServiceRequest] = []
    with otlp_collector.sink(lambda body: requests.append(ExportMetricsServiceRequest.FromString(body))) as port:
        yield requests, port


@pytest.fixture
def collector(arrived: tuple[list[ExportMetricsServiceRequest], int], tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where a running collector listens, by protocol; it passes on to the sink."""
    with otlp_collector.collector(arrived[1], tmp_path) as urls:
        yield urls


def translated(requests: list[ExportMetricsServiceRequest]) -> dict[str, float]:
    """Series as Prometheus writes them, by the catalogue's names."""
    found = {}
    for request in requests:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    row = ROWS[metric.name]
                    for point in points_of(metric):
                        told = attributes(point.attributes)
                        order = [name for name in row.labels if name in told]
                        labels = ",".join(f'{name.replace(".", "_")}="{told[name]}"' for name in order)
                        found[f"{row.prometheus}{{{labels}}}" if labels else row.prometheus] = point.as_double
    return found


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_series_of_a_scrape_come_out_of_a_collector(
    protocol: str, collector: dict[str, str], arrived: tuple[list[ExportMetricsServiceRequest], int], tmp_path: Path
) -> None:
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n[[device]]\nmodel = "A100 80 SXM"\n')
    sampler = Sampler(lambda: open_driver(f"simulated:{node}", clock=SYSTEM_CLOCK))
    for _ in range(3):
        sampler.step(force=True)
    endpoints = Otlp(endpoint=collector[protocol], protocol=protocol).endpoints
    assert endpoints is not None
    own: list[MetricReading] = []
    pusher = Pusher(
        lambda: [*readings(sampler, IDENTITY, now_ns), *own],
        metrics=endpoints.metrics,
        resource=resource_attributes({}, version="1.2.3", host="node-1"),
        version="1.2.3",
        interval_s=3600,
    )
    now_ns = SYSTEM_CLOCK.now_ns()
    own += pusher.readings(now_ns)
    exposition = Exposition(lambda: [*readings(sampler, IDENTITY, now_ns), *own], process=False)
    text = exposition.render()[0].decode()
    pusher.start()
    pusher.stop(10.0)
    assert pusher.senders["metrics"].stats.sent == 1
    until(lambda: arrived[0], "the batch has come through")
    sampler.stop()
    scraped = {name: value for name, value in series(text).items() if not name.startswith(OF_THE_SCRAPE)}
    assert translated(arrived[0]) == scraped
    assert len(scraped) > 100
    (about,) = [attributes(part.resource.attributes) for request in arrived[0] for part in request.resource_metrics]
    assert about["service.name"] == "gpu-profile-exporter"
    assert about["service.instance.id"] == "node-1"


def test_a_collector_that_comes_up_late_gets_what_waited(
    collector: dict[str, str], arrived: tuple[list[ExportMetricsServiceRequest], int]
) -> None:
    # A port that nobody listens on, and then the collector's: what waited goes out unchanged.
    from gpu_profile.catalogue import metrics as m
    from gpu_profile_exporter.push.http_client import HttpClient

    away = Endpoint(url=f"http://127.0.0.1:{free_port()}/v1/metrics")
    there = Endpoint(url=f"{collector['http/protobuf']}/v1/metrics")
    pusher = Pusher(lambda: [MetricReading(m.BUSY, {"hw.id": "GPU-a"}, 4.0)], metrics=away, interval_s=0.001)
    sender = pusher.senders["metrics"]
    until(lambda: pusher.step() is not None and sender.waiting()[0] >= 3, "three batches wait")
    sender.step()
    assert sender.stats.failures["unreachable"] == 1
    waiting = sender.waiting()[0]
    sender._client = HttpClient(there, user_agent="test")
    until(lambda: sender.step() is not None and not sender.waiting()[0], "all are sent")
    until(lambda: len(_times(arrived[0])) == waiting, "all have come through")
    assert _times(arrived[0]) == sorted(set(_times(arrived[0])))


def _times(requests: list[ExportMetricsServiceRequest]) -> list[int]:
    return [
        point.time_unix_nano
        for request in requests
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in points_of(metric)
    ]
