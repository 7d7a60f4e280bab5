"""A row of the table of metrics, and the translation of its names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gpu_profile.catalogue.signal import Signal
from gpu_profile.units import PROMETHEUS_SUFFIX


class Instrument(StrEnum):
    """The OpenTelemetry instruments in use."""

    COUNTER = "counter"
    UPDOWNCOUNTER = "updowncounter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One published metric. `labels` are the OpenTelemetry attributes that vary between its series.

    `part` names one of the series of a histogram on /metrics: `bucket`, `sum` or `count`. Empty for other metrics.
    """

    otel: str
    unit: str
    instrument: Instrument
    brief: str
    labels: tuple[str, ...] = ("hw.id",)
    signals: tuple[Signal, ...] = ()
    part: str = ""

    def parts(self) -> tuple[Metric, Metric, Metric]:
        """The buckets of a histogram, with the label `le`, its sum and its count."""
        bucket, total, count = (replace(self, part=part) for part in ("bucket", "sum", "count"))
        return replace(bucket, labels=(*self.labels, "le")), total, count

    @property
    def prometheus(self) -> str:
        """The name on /metrics."""
        name = self.otel.replace(".", "_")
        suffix = PROMETHEUS_SUFFIX.get(self.unit, "")
        if self.unit == "1" and self.instrument is Instrument.GAUGE:
            suffix = "ratio"
        if suffix and not name.endswith("_" + suffix):
            name = f"{name}_{suffix}"
        return f"{name}_total" if self.instrument is Instrument.COUNTER else name


class Family(list[Metric]):
    """Metrics that are published together and share `labels`. Each method adds the next row."""

    def __init__(self, *labels: str) -> None:
        super().__init__()
        self._labels = labels

    def counter(self, otel: str, unit: str, brief: str, *labels: str, signals: tuple[Signal, ...] = ()) -> Metric:
        """A sum that only grows."""
        return self._row(Metric(otel, unit, Instrument.COUNTER, brief, (*self._labels, *labels), signals))

    def updowncounter(self, otel: str, unit: str, brief: str, *labels: str) -> Metric:
        """A sum that grows and shrinks."""
        return self._row(Metric(otel, unit, Instrument.UPDOWNCOUNTER, brief, (*self._labels, *labels)))

    def gauge(self, otel: str, unit: str, brief: str, *labels: str, signals: tuple[Signal, ...] = ()) -> Metric:
        """A value at the moment of the scrape or push."""
        return self._row(Metric(otel, unit, Instrument.GAUGE, brief, (*self._labels, *labels), signals))

    def histogram(self, otel: str, unit: str, brief: str, *labels: str) -> Metric:
        """A distribution of values."""
        return self._row(Metric(otel, unit, Instrument.HISTOGRAM, brief, (*self._labels, *labels)))

    def _row(self, metric: Metric) -> Metric:
        self.append(metric)
        return metric


def label(attribute: str) -> str:
    """An OpenTelemetry attribute's name as a Prometheus label."""
    return attribute.replace(".", "_")
