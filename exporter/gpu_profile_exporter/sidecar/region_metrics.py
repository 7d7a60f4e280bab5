"""The metrics of the regions of received spans: the library's region metrics by service, with exemplars."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue.metrics import REGION_CALLS, REGION_DURATION_PARTS
from gpu_profile.join.durations import BUCKETS_S, DurationStats
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.telemetry.counters import COUNTERS
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.readings.readings import MetricReading, ValueWithExemplar

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: Separates service and region in the name of an execution. Names never contain it: `_NOT_TEXT` replaces it.
_SEPARATOR: Final = "\x1f"
#: Most characters of a region's or a service's name.
LONGEST: Final = 200
#: Most regions with published durations. Each has one series per bucket.
MOST_DURATIONS: Final = 200
_EDGES: Final = (*map(repr, BUCKETS_S), "+Inf")
#: Characters that a label's value must not contain. Each is replaced by U+FFFD.
_NOT_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BUCKET, _SUM, _COUNT = REGION_DURATION_PARTS


def _is_id(text: bytes, length: int) -> bool:
    return len(text) == length and any(text)


def region_name(name: str) -> str:
    """The name of the region for spans of this name, at most `LONGEST` characters and an ellipsis."""
    if not name.isprintable():
        name = _NOT_TEXT.sub("\ufffd", name)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"


def service_prefix(resource: Iterable[KeyValue]) -> str:
    """The first part of a region's full name: its service and the separator."""
    keys = "service.namespace", "service.name"
    values = {pair.key: pair.value.string_value for pair in resource if pair.key in keys}
    named = "/".join(values[key] for key in keys if values.get(key))
    return _NOT_TEXT.sub("\ufffd", named[:LONGEST]) + _SEPARATOR


def service_and_region(name: str) -> tuple[str, str]:
    """Service and region of a full name. The name for surplus regions has no service."""
    service, separator, region = name.partition(_SEPARATOR)
    return (service, region) if separator else ("", service)


def shown_region(name: str) -> str:
    """The full name as `service/region`, as `gpu-profile top` shows it."""
    service, region = service_and_region(name)
    return f"{service}/{region}" if service else region


class RegionMetrics:
    """The readings of every region in `joiner`, with the newest span of each bucket of durations as an exemplar.

    `remember` and `readings` may be called by different threads.
    """

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._newest: dict[tuple[str, int], str] = {}

    def remember(self, newest: Mapping[str, tuple[int, int, Span]]) -> None:
        """Keep exemplars: the newest spans of some regions, with their start and end in ns."""
        durations = self._joiner.verdicts.durations
        for name, (start_ns, end_ns, span) in newest.items():
            # No exemplars for surplus regions, which share one name, nor for spans without valid ids.
            if name in durations and _is_id(span.trace_id, 16) and _is_id(span.span_id, 8):
                seconds = max(0, end_ns - start_ns) / NS_PER_S
                ids = f'trace_id="{span.trace_id.hex()}",span_id="{span.span_id.hex()}"'
                text = f"{{{ids}}} {seconds!r} {end_ns / NS_PER_S!r}"
                self._newest[name, bisect_left(BUCKETS_S, seconds)] = text

    def readings(self) -> Iterator[MetricReading]:
        """The library's region metrics, with `service.name`. Only from the thread that joins."""
        for metric, read in COUNTERS:
            for key, value in sorted(read(self._joiner).items()):
                attributes = zip(("service.name", *metric.labels), (*service_and_region(key[0]), *key[1:]), strict=True)
                yield MetricReading(metric, {name: text for name, text in attributes if text}, value)
            if metric is REGION_CALLS:  # the catalogue's order
                for name, durations in islice(self._joiner.verdicts.durations.items(), MOST_DURATIONS):
                    yield from self._durations(name, durations)

    def _durations(self, name: str, durations: DurationStats) -> Iterator[MetricReading]:
        service, region = service_and_region(name)
        about = {"service.name": service} if service else {}
        about["region"] = region
        for i, (edge, (_, count)) in enumerate(zip(_EDGES, durations.cumulative(), strict=True)):
            example = self._newest.get((name, i))
            value = float(count) if example is None else ValueWithExemplar.of(count, example)
            yield MetricReading(_BUCKET, {**about, "le": edge}, value)
        yield MetricReading(_SUM, about, durations.total_ns / NS_PER_S)
        yield MetricReading(_COUNT, about, float(durations.calls))
