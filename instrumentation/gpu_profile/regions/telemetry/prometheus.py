"""The region metrics of this process on /metrics: a collector for prometheus_client, and an optional port."""

from __future__ import annotations

import errno
import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry.trace import format_span_id, format_trace_id

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue import metrics as rows
from gpu_profile.catalogue.metric import label
from gpu_profile.errors import UsageError
from gpu_profile.join.durations import BUCKETS_S, DurationStats
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry.counters import COUNTERS
from gpu_profile.regions.telemetry.live_server import with_live_page
from gpu_profile.units import NS_PER_S

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import CollectorRegistry
    from prometheus_client.samples import Exemplar

_log = logging.getLogger("gpu_profile")

#: The default port of a service's region metrics.
PORT: Final = 9464


class _Example(NamedTuple):
    trace_id: int
    span_id: int
    seconds: float
    ended_s: float


class _Examples:
    """Exemplars: the newest execution with a sampled span in each bucket of a region's durations."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], _Example] = {}
        self._wanted = False

    def want(self) -> None:
        """Remember executions from now on."""
        if not self._wanted:
            self._wanted = True
            process.on_start(self._attach)

    def _attach(self, session: Session) -> None:
        self._newest = {}  # the buckets of a new session start empty
        session.joiner.on_end.append(partial(self._remember, session))

    def _remember(self, session: Session, execution: Execution) -> None:
        # A name beyond the limit counts as `other`, which mixes regions and has no exemplars.
        if execution.sampled and execution.name in session.joiner.verdicts.durations:
            seconds = execution.length_ns / NS_PER_S
            self._newest[execution.name, bisect_left(BUCKETS_S, seconds)] = _Example(
                execution.trace_id, execution.span_id, seconds, execution.end_ns / NS_PER_S
            )

    def of(self, region: str, bucket: int) -> Exemplar | None:
        """The exemplar of one bucket; None if no execution in it has a sampled span."""
        from prometheus_client.samples import Exemplar

        newest = self._newest.get((region, bucket))
        if newest is None:
            return None
        labels = {"trace_id": format_trace_id(newest.trace_id), "span_id": format_span_id(newest.span_id)}
        return Exemplar(labels, newest.seconds, newest.ended_s)


_examples: Final = _Examples()


class RegionCollector:
    """Collects the region metrics of this process's session. Empty before the first region.

    Durations have exemplars in the OpenMetrics format: the newest execution with a sampled span in each bucket.
    """

    def __init__(self) -> None:
        _examples.want()

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Empty, as there are no families before the first region."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        """The families, in the catalogue's order. An unknown value has no series."""
        session = process.running()
        if session is not None:
            with session.joiner.lock:
                collected = list(families(session.joiner))
            yield from collected


def families(joiner: Joiner) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
    """The region metrics of one session as prometheus_client's families. The caller must hold the joiner's lock."""
    from prometheus_client.core import HistogramMetricFamily

    for row, read in COUNTERS:
        yield _counter(row, sorted(read(joiner).items()))
        if row is rows.REGION_CALLS:  # durations come next in the catalogue
            length = rows.REGION_DURATION
            histogram = HistogramMetricFamily(length.prometheus, length.brief, labels=_labels(length))
            for region, durations in sorted(joiner.verdicts.durations.items()):
                histogram.add_metric([region], list(_buckets(region, durations)), durations.total_ns / NS_PER_S)
            yield histogram


def _buckets(region: str, durations: DurationStats) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
    for i, (edge, count) in enumerate(durations.cumulative()):
        name = "+Inf" if edge == float("inf") else repr(edge)
        example = _examples.of(region, i)
        yield (name, count) if example is None else (name, count, example)


def _labels(metric: Metric) -> list[str]:
    return [label(name) for name in metric.labels]


def _counter(metric: Metric, series: Iterable[tuple[tuple[str, ...], float]]) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(metric.prometheus, metric.brief, labels=_labels(metric))
    for values, value in series:
        family.add_metric(list(values), value)
    return family


class MetricsServer:
    """An HTTP server with this process's region metrics and live page. Raises UsageError for a port it cannot use."""

    def __init__(self, registry: CollectorRegistry, port: int, address: str) -> None:
        from prometheus_client import make_wsgi_app, start_http_server

        if not 0 <= port <= 65535:
            raise UsageError(f"port {port} does not exist: choose one of 0 to 65535 for the region metrics")
        try:
            self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"cannot serve region metrics on {address}:{port}: {error.strerror}") from error
            raise UsageError(f"port {port} is taken: choose another for the region metrics") from error
        # The server's application answers every path with metrics: the live page takes two of them.
        self._server.set_app(with_live_page(make_wsgi_app(registry)))
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


def serve_metrics(port: int = PORT, *, address: str = "0.0.0.0") -> MetricsServer:  # noqa: S104 - to be scraped
    """Serve this process's region metrics on `port` (0: a free one, see `.port`). Raises UsageError if it is taken.

    Browsers get the live page at `/`, with the last minutes of the process's GPUs and regions.
    """
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(RegionCollector())
    ProcessCollector(registry=registry)
    server = MetricsServer(registry, port, address)
    _log.info("gpu-profile: region metrics on http://%s:%d/metrics", address, server.port)
    return server
