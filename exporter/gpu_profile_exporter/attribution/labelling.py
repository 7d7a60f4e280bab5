"""Adds a device's only holder as labels to the device's series. Optional: each new holder starts new series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from gpu_profile_exporter.readings.readings import MetricReading

#: Series whose merged labels are cached, so that callers with state per series get the same mapping each time.
_KEPT: Final = 1 << 14

_Items = tuple[tuple[str, str], ...]


@lru_cache(maxsize=_KEPT)
def _merged(attributes: _Items, labels: _Items) -> Mapping[str, str]:
    # A series' own attributes win: a process has a container of its own.
    return {**dict(labels), **dict(attributes)}


def labelled(
    readings: Iterable[MetricReading], labels_for: Callable[[str], Mapping[str, str]]
) -> Iterator[MetricReading]:
    """`readings`. A reading of a device also gets the labels that `labels_for` returns for its UUID."""
    by_uuid: dict[str, _Items] = {}
    for reading in readings:
        uuid = reading.attributes.get("hw.id")
        if uuid is None:
            yield reading
            continue
        labels = by_uuid.get(uuid)
        if labels is None:
            labels = by_uuid[uuid] = tuple(labels_for(uuid).items())
        yield reading._replace(attributes=_merged(tuple(reading.attributes.items()), labels)) if labels else reading
