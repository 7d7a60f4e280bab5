"""Readings that dcgm-exporter has and the catalogue does not, because they are sums of others."""

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
    """The readings as they come, then each device's NVLink bytes of both directions as one, if both are known."""
    parts: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for reading in readings:
        if reading.metric.otel == NVLINK_PARTS:
            whose = tuple((name, value) for name, value in reading.attributes.items() if name != _DIRECTION)
            parts.setdefault(whose, []).append(reading.value)
        yield reading
    for whose, values in parts.items():
        if len(values) == len(_DIRECTIONS):
            yield MetricReading(_TOTAL, _attributes(whose), sum(values))


@lru_cache(maxsize=1024)
def _attributes(whose: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    # One object for each device, so that a scrape finds the line that it made of it before.
    return dict(whose)
