"""What /metrics says of the regions of received spans: the library's region metrics by service, with exemplars."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from gpu_profile.catalogue.metrics import REGION_CALLS, REGION_DURATION_PARTS
from gpu_profile.join.durations import BUCKETS_S, DurationStats
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.joiner import Joiner
from gpu_profile.regions.telemetry.counters import COUNTERS
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.readings.readings import Exemplified, MetricReading

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: What stands between a service and a region in the name that both are joined by: no text of an attribute has it.
_BETWEEN: Final = "\x1f"
#: Letters of a region's or a service's name.
LONGEST: Final = 200
#: Regions whose durations are published: each has a series for every bucket.
MOST_DURATIONS: Final = 200
_EDGES: Final = (*map(repr, BUCKETS_S), "+Inf")
#: What a label's value cannot hold: two names that differ in it alone would be one series.
_NOT_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BUCKET, _SUM, _COUNT = REGION_DURATION_PARTS


def _is_id(text: bytes, length: int) -> bool:
    return len(text) == length and any(text)


def region_name(name: str) -> str:
    """The region that spans of this name are executions of."""
    if not name.isprintable():
        name = _NOT_TEXT.sub("\ufffd", name)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"


def service_prefix(resource: Iterable[KeyValue]) -> str:
    """What a region's name begins with: the service that it is of."""
    told = {pair.key: pair.value.string_value for pair in resource if pair.key in ("service.namespace", "service.name")}
    named = "/".join(told[key] for key in ("service.namespace", "service.name") if told.get(key))
    return _NOT_TEXT.sub("\ufffd", named[:LONGEST]) + _BETWEEN


def service_and_region(name: str) -> tuple[str, str]:
    """Service and region of the name that they are joined by. What was one name too many is of no service."""
    service, between, region = name.partition(_BETWEEN)
    return (service, region) if between else ("", service)


class RegionMetrics:
    """The readings of every region that `joiner` has, and the newest span of each bucket of its durations.

    `remember` may be called by another thread than `readings`.
    """

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner
        self._newest: dict[tuple[str, int], str] = {}

    def remember(self, newest: Mapping[str, tuple[Execution, Span]]) -> None:
        """The newest executions of some regions, with their spans."""
        known = self._joiner.verdicts.durations
        for name, (execution, span) in newest.items():
            # One of a name too many is counted as others are, and one whose ids are none leads nowhere.
            if name in known and _is_id(span.trace_id, 16) and _is_id(span.span_id, 8):
                seconds = max(0, execution.end_ns - execution.start_ns) / NS_PER_S
                ids = f'trace_id="{span.trace_id.hex()}",span_id="{span.span_id.hex()}"'
                text = f"{{{ids}}} {seconds!r} {execution.end_ns / NS_PER_S!r}"
                self._newest[name, bisect_left(BUCKETS_S, seconds)] = text

    def readings(self) -> Iterator[MetricReading]:
        """The library's region metrics, with `service.name`. To be called by the thread that joins."""
        for metric, read in COUNTERS:
            for key, value in sorted(read(self._joiner).items()):
                attributes = zip(("service.name", *metric.labels), (*service_and_region(key[0]), *key[1:]), strict=True)
                yield MetricReading(metric, {name: told for name, told in attributes if told}, value)
            if metric is REGION_CALLS:  # durations come next in the catalogue
                for name, durations in islice(self._joiner.verdicts.durations.items(), MOST_DURATIONS):
                    yield from self._durations(name, durations)

    def _durations(self, name: str, durations: DurationStats) -> Iterator[MetricReading]:
        service, region = service_and_region(name)
        about = {"service.name": service} if service else {}
        about["region"] = region
        for i, (edge, (_, count)) in enumerate(zip(_EDGES, durations.cumulative(), strict=True)):
            example = self._newest.get((name, i))
            value = float(count) if example is None else Exemplified.of(count, example)
            yield MetricReading(_BUCKET, {**about, "le": edge}, value)
        yield MetricReading(_SUM, about, durations.total_ns / NS_PER_S)
        yield MetricReading(_COUNT, about, float(durations.calls))
