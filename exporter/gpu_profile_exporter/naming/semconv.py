"""OpenTelemetry's names, translated for Prometheus as the Collector does: a scrape and a push land on one series."""

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
    """One series for each reading, with the catalogue's names. Values are in base units already."""

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        """The row's labels in its order, then what else the reading carries; what is not known is left out."""
        if metric.otel == NVLINK_TOTAL:
            return ()  # both directions are there already
        if metric.otel == XID_LAST and not attributes.get(_XID):
            return ()  # there was no error: the code 0 is dcgm-exporter's way to say so
        order = (*metric.labels, *(name for name in attributes if name not in metric.labels))
        labels = tuple((label(name), attributes[name]) for name in order if attributes.get(name))
        return (Series(family(metric), labels, 1.0, f"_{metric.part}" if metric.part else ""),)

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        """Nothing: a device's identity is in a series of its own, to be joined on `hw_id`."""
