"""The regions of this process on /metrics: a collector for prometheus_client, and a port when asked for."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from gpu_profile import process
from gpu_profile.catalogue import Metric
from gpu_profile.catalogue import metrics as rows
from gpu_profile.catalogue.metrics import label
from gpu_profile.errors import UsageError
from gpu_profile.session import Session
from gpu_profile.units import NS_PER_S

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import CollectorRegistry

_log = logging.getLogger("gpu_profile")

#: The default port of a service's region metrics.
PORT: Final = 9464


class RegionCollector:
    """Collects the region metrics of this process's session; of none while no region has run."""

    def describe(self) -> Iterable[CounterMetricFamily]:
        """Nothing is known before the first region."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        """The families, in the catalogue's order; a value that is not known has no series."""
        session = process.running()
        if session is not None:
            with session.lock:
                collected = list(families(session))
            yield from collected


def families(session: Session) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
    """The region metrics of one session as prometheus_client's families. The session's lock must be held."""
    from prometheus_client.core import HistogramMetricFamily

    stats = sorted(session.verdicts.durations.items())
    yield _counter(rows.REGION_CALLS, ((key, n) for key, n in sorted(session.verdicts.calls.items())))
    histogram = HistogramMetricFamily(
        rows.REGION_DURATION.prometheus, rows.REGION_DURATION.brief, labels=_labels(rows.REGION_DURATION)
    )
    for region, durations in stats:
        buckets = [("+Inf" if edge == float("inf") else repr(edge), n) for edge, n in durations.cumulative()]
        histogram.add_metric([region], buckets, durations.total_ns / NS_PER_S)
    yield histogram
    shares = [(region, uuid, pool.pooled(region)) for uuid, pool in session.pools.items() for region in pool.regions]
    busy = (((r, u), p.busy_counter_s) for r, u, p in shares)
    energy = (((r, u), p.energy_counter_j) for r, u, p in shares)
    yield _counter(rows.REGION_BUSY, ((key, value) for key, value in busy if value is not None))
    yield _counter(rows.REGION_ENERGY, ((key, value) for key, value in energy if value is not None))
    yield _counter(rows.REGION_ITEMS, (((r,), d.items) for r, d in stats if d.items is not None))
    yield _counter(rows.REGION_ERRORS, (((r,), d.errors) for r, d in stats))


def _labels(metric: Metric) -> list[str]:
    return [label(name) for name in metric.labels]


def _counter(metric: Metric, series: Iterable[tuple[tuple[str, ...], float]]) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(metric.prometheus, metric.brief, labels=_labels(metric))
    for values, value in series:
        family.add_metric(list(values), value)
    return family


class MetricsServer:
    """A running port with this process's region metrics."""

    def __init__(self, registry: CollectorRegistry, port: int, address: str) -> None:
        from prometheus_client import start_http_server

        if not 0 <= port <= 65535:
            raise UsageError(f"port {port} is none: choose one of 0 to 65535 for the region metrics")
        try:
            self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"cannot serve region metrics on {address}:{port}: {error.strerror}") from error
            raise UsageError(f"port {port} is taken: choose another for the region metrics") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)


def serve_metrics(port: int = PORT, *, address: str = "0.0.0.0") -> MetricsServer:  # noqa: S104 - to be scraped
    """Serve this process's region metrics on `port` (0: a free one, see `.port`). UsageError if it is taken."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    registry.register(RegionCollector())
    ProcessCollector(registry=registry)
    server = MetricsServer(registry, port, address)
    _log.info("gpu-profile: region metrics on http://%s:%d/metrics", address, server.port)
    return server
