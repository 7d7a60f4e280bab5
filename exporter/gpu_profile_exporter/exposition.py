"""Readings as a Prometheus exposition: families in the catalogue's order, names and labels by the catalogue's rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gpu_profile.catalogue import METRICS, Instrument, Metric
from gpu_profile.catalogue.metric import label
from gpu_profile.units import PROMETHEUS_SUFFIX
from gpu_profile_exporter.readings import Reading

_TYPE: Final = {
    Instrument.COUNTER: "counter",
    Instrument.UPDOWNCOUNTER: "gauge",
    Instrument.GAUGE: "gauge",
    Instrument.HISTOGRAM: "histogram",
}


def families(readings: Iterable[Reading]) -> Iterator[Family]:
    """The families that have a value, in the catalogue's order. None of the samples carries a timestamp."""
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.metric.otel, []).append(reading)
    for metric in METRICS:
        if metric.otel in groups:
            family = _family(metric)
            for reading in groups[metric.otel]:
                labels = {label(name): value for name, value in reading.attributes.items()}
                family.add_sample(metric.prometheus, labels, reading.value)
            yield family


def _family(metric: Metric) -> Family:
    name, kind = metric.prometheus, _TYPE[metric.instrument]
    if name.endswith("_info"):
        return Family(name.removesuffix("_info"), metric.brief, "info")
    name = name.removesuffix("_total") if metric.instrument is Instrument.COUNTER else name
    unit = "ratio" if name.endswith("_ratio") else PROMETHEUS_SUFFIX.get(metric.unit, "")
    return Family(name, metric.brief, kind, unit)


class _Readings(Collector):
    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        return families(self._read())


class Exposition:
    """What /metrics says: the readings that `read` gives at each scrape, and this process's own CPU and memory."""

    def __init__(self, read: Callable[[], Iterable[Reading]], *, process: bool = True) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Readings(read))
        if process:
            ProcessCollector(registry=self._registry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics if the `Accept` header asks for it, else Prometheus' own."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type
