"""A device's only holder as labels on its own series: for who asks for it, as series then change with holders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from gpu_profile_exporter.readings.readings import MetricReading

#: Series whose labels are kept: who keeps something about a series knows it by them.
_KEPT: Final = 1 << 14

_Items = tuple[tuple[str, str], ...]


@lru_cache(maxsize=_KEPT)
def _merged(attributes: _Items, labels: _Items) -> Mapping[str, str]:
    # What a series says of itself stays: a process has a container of its own.
    return {**dict(labels), **dict(attributes)}


def labelled(
    readings: Iterable[MetricReading], labels_for: Callable[[str], Mapping[str, str]]
) -> Iterator[MetricReading]:
    """`readings`, those of a device with what `labels_for` says of it (by its UUID)."""
    held: dict[str, _Items] = {}
    for reading in readings:
        uuid = reading.attributes.get("hw.id")
        if uuid is None:
            yield reading
            continue
        labels = held.get(uuid)
        if labels is None:
            labels = held[uuid] = tuple(labels_for(uuid).items())
        yield reading._replace(attributes=_merged(tuple(reading.attributes.items()), labels)) if labels else reading
