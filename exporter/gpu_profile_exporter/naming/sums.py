"""Readings of dcgm-exporter that the catalogue lacks, because they are sums of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from gpu_profile.catalogue import Instrument, Metric
from gpu_profile_exporter.naming.dcgm_fields import NVLINK_PARTS, NVLINK_TOTAL
from gpu_profile_exporter.readings.readings import MetricReading

_DIRECTION: Final = "network.io.direction"
_DIRECTIONS: Final = ("receive", "transmit")
_TOTAL: Final = Metric(NVLINK_TOTAL, "By", Instrument.COUNTER, "Payload bytes over all NVLinks, both directions")


def totals(readings: Iterable[MetricReading]) -> Iterator[MetricReading]:
    """The readings, then the sum of both directions of NVLink bytes for each device that has both."""
    parts: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for reading in readings:
        if reading.metric.otel == NVLINK_PARTS:
            device = tuple((name, value) for name, value in reading.attributes.items() if name != _DIRECTION)
            parts.setdefault(device, []).append(reading.value)
        yield reading
    for device, values in parts.items():
        if len(values) == len(_DIRECTIONS):
            yield MetricReading(_TOTAL, _attributes(device), sum(values))


@lru_cache(maxsize=1024)
def _attributes(device: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    # The same object for a device at each scrape: the exposition caches lines by the identity of their attributes.
    return dict(device)
