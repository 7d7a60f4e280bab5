"""Readings as OTLP metrics.

Counters are monotonic cumulative sums, updowncounters are non-monotonic sums, all others are gauges. Every value is a
double. A collector translates them to the same Prometheus series as a scrape.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpu_profile.catalogue import Instrument, Kind, Metric
from gpu_profile.protobuf import head, message, number, string
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.naming.semconv import Semconv
from gpu_profile_exporter.push.batch import Batch, Envelope, attribute
from gpu_profile_exporter.readings.readings import MetricReading

#: The most bytes of metrics in a request, far below the 4 MiB that collectors accept over gRPC by default.
MOST_BYTES: Final = 1 << 20
#: A series without a reading for this time is forgotten, with its start time.
FORGET_NS: Final = 3600 * NS_PER_S

#: start_time_unix_nano (2), time_unix_nano (3) and as_double (4), each after its tag.
_SUM_POINT: Final = struct.Struct("<BQBQBd")
_GAUGE_POINT: Final = struct.Struct("<BQBd")
_CUMULATIVE: Final = number(2, 2)
_MONOTONIC: Final = number(3, 1)


class _PushedSeries:
    """One series between two pushes: the encoded attributes of its points, its start time and its last value."""

    __slots__ = ("head", "start_ns", "time_ns", "turn", "value")

    def __init__(self, head: bytes, start_ns: int) -> None:
        self.head, self.start_ns = head, start_ns
        self.time_ns = self.turn = 0
        self.value = -math.inf


class _Family:
    """One metric: its series by their attributes, and the points of this push."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.counter = metric.instrument is Instrument.COUNTER
        self.sum = self.counter or metric.instrument is Instrument.UPDOWNCOUNTER
        self.series: dict[frozenset[tuple[str, str]], _PushedSeries] = {}
        self.points: list[bytes] = []

    def encoded(self, points: list[bytes]) -> bytes:
        """The metric with these points."""
        metric = self.metric
        about = string(1, metric.otel) + string(2, metric.brief) + string(3, metric.unit)
        if self.sum:
            monotonic = _MONOTONIC if self.counter else b""
            return message(2, about, message(7, *points, _CUMULATIVE, monotonic))
        return message(2, about, message(5, *points))


class MetricEncoder:
    """Encodes readings as requests, and keeps the start time of each series.

    `began_ns`: when this process began to count. Its own counters start there. The start of a counter of the driver is
    not available: by OpenTelemetry's data model ("unknown start time") it starts with its first point, so that earlier
    growth does not count as recent. A counter that decreased was reset: its new start is the previous point.
    """

    def __init__(self, envelope: Envelope, *, began_ns: int) -> None:
        self._envelope = envelope
        self._began_ns = self._swept_ns = began_ns
        self._families: dict[str, _Family] = {}
        self._naming = Semconv()
        self._turn = 0

    def batches(self, readings: Iterable[MetricReading], now_ns: int) -> list[Batch]:
        """The requests for readings of the time `now_ns`, usually one.

        Left out as in a scrape: NaN, duplicates, and metrics without a Prometheus name. Histograms are left out too: a
        node has none.
        """
        self._turn += 1
        for family in self._families.values():
            family.points = []
        for metric, attributes, value in readings:
            family = self._families.get(metric.otel) or self._families.setdefault(metric.otel, _Family(metric))
            self._add(family, attributes, float(value), now_ns)
        if not 0 <= now_ns - self._swept_ns < FORGET_NS:
            self._forget(now_ns)
        return list(self._requests())

    def _add(self, family: _Family, attributes: Mapping[str, str], value: float, now_ns: int) -> None:
        # Empty attributes are left out.
        items = attributes.items()
        key = frozenset(items) if all(attributes.values()) else frozenset(pair for pair in items if pair[1])
        series = family.series.get(key)
        if series is None:
            series = family.series[key] = self._new_series(family, key, now_ns)
        if not series.head or series.turn == self._turn or math.isnan(value):
            return
        series.turn = self._turn
        if family.counter and value < series.value:
            series.start_ns = series.time_ns
        series.start_ns = min(series.start_ns, now_ns)  # the clock may have been set back
        series.value, series.time_ns = value, now_ns
        if family.sum:
            family.points.append(series.head + _SUM_POINT.pack(0x11, series.start_ns, 0x19, now_ns, 0x21, value))
        else:
            family.points.append(series.head + _GAUGE_POINT.pack(0x19, now_ns, 0x21, value))

    def _new_series(self, family: _Family, key: frozenset[tuple[str, str]], now_ns: int) -> _PushedSeries:
        """The state of a new series. Its head is empty if it is not published."""
        metric = family.metric
        if metric.instrument is Instrument.HISTOGRAM or not self._naming.series(metric, dict(key)):
            return _PushedSeries(b"", now_ns)
        encoded = b"".join(attribute(7, *pair) for pair in sorted(key))
        size = len(encoded) + (_SUM_POINT if family.sum else _GAUGE_POINT).size
        by_driver = family.counter and any(row.kind is Kind.COUNTER for row in metric.signals)
        return _PushedSeries(head(1, size) + encoded, now_ns if by_driver else self._began_ns)

    def _requests(self) -> Iterator[Batch]:
        waiting: list[bytes] = []
        size = items = 0
        for family in self._families.values():
            for portion in _portions(family.points):
                encoded = family.encoded(portion)
                if waiting and size + len(encoded) > MOST_BYTES:
                    yield Batch.of(self._envelope.around(waiting), items)
                    waiting, size, items = [], 0, 0
                waiting.append(encoded)
                size, items = size + len(encoded), items + len(portion)
        if waiting:
            yield Batch.of(self._envelope.around(waiting), items)

    def _forget(self, now_ns: int) -> None:
        self._swept_ns = now_ns
        for name, family in list(self._families.items()):
            kept = {key: one for key, one in family.series.items() if 0 <= now_ns - one.time_ns < FORGET_NS}
            family.series = kept
            if not kept:
                del self._families[name]


def _portions(points: list[bytes]) -> Iterator[list[bytes]]:
    """The points of a family, in portions of at most `MOST_BYTES`."""
    portion: list[bytes] = []
    size = 0
    for point in points:
        if portion and size + len(point) > MOST_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(point)
        size += len(point)
    if portion:
        yield portion
