"""OpenTelemetry's names, translated to Prometheus as the Collector does: a scrape and a push give the same series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_profile.catalogue import Instrument, Metric, label
from gpu_profile.units import PROMETHEUS_SUFFIX
from gpu_profile_exporter.naming.dcgm_fields import NVLINK_TOTAL, XID_LAST
from gpu_profile_exporter.naming.series import Series, TextFamily

_XID: Final = "nvidia.gpu.xid"
_KIND: Final = {
    Instrument.COUNTER: "counter",
    Instrument.UPDOWNCOUNTER: "gauge",
    Instrument.GAUGE: "gauge",
    Instrument.HISTOGRAM: "histogram",
}


def family(metric: Metric) -> TextFamily:
    """The family of a catalogue row."""
    name = metric.prometheus
    if name.endswith("_info"):
        return TextFamily(name, "info", metric.brief, "")
    unit = "ratio" if name.endswith("_ratio") else PROMETHEUS_SUFFIX.get(metric.unit, "")
    return TextFamily(name, _KIND[metric.instrument], metric.brief, unit)


class Semconv:
    """One series for each reading, with the catalogue's names. Values already are in base units."""

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """The metric's labels in their order, then the reading's other attributes. Empty attributes are left out."""
        if metric.otel == NVLINK_TOTAL:
            return ()  # the two directions are published already
        if metric.otel == XID_LAST and not attributes.get(_XID):
            return ()  # no error so far: only dcgm-exporter publishes the code 0 for that
        order = (*metric.labels, *(name for name in attributes if name not in metric.labels))
        labels = tuple((label(name), attributes[name]) for name in order if attributes.get(name))
        return (Series(family(metric), labels, 1.0, f"_{metric.part}" if metric.part else ""),)

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Does nothing: a device's identity is a series of its own, which queries join on `hw_id`."""
