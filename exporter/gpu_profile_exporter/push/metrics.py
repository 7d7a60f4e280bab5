"""Readings as OTLP metrics.

Counters are monotonic cumulative sums, updowncounters sums that are not monotonic, all others gauges, and every value
is a double: what a collector makes of them for Prometheus is what a scrape shows.
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

#: Collectors take 4 MiB over gRPC unless told otherwise; a request is closed well before.
MOST_BYTES: Final = 1 << 20
#: A series that has not been seen for this long is forgotten, together with when it began.
FORGET_NS: Final = 3600 * NS_PER_S

#: start_time_unix_nano (2), time_unix_nano (3) and as_double (4), each after its tag.
_SUM_POINT: Final = struct.Struct("<BQBQBd")
_GAUGE_POINT: Final = struct.Struct("<BQBd")
_CUMULATIVE: Final = number(2, 2)
_MONOTONIC: Final = number(3, 1)


class _PushedSeries:
    """One series between two pushes: what its points begin with, since when it counts, and where it stood."""

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
        """The metric with some of its points."""
        metric = self.metric
        about = string(1, metric.otel) + string(2, metric.brief) + string(3, metric.unit)
        if self.sum:
            monotonic = _MONOTONIC if self.counter else b""
            return message(2, about, message(7, *points, _CUMULATIVE, monotonic))
        return message(2, about, message(5, *points))


class MetricEncoder:
    """Turns readings into requests; remembers of each series since when it counts.

    `began_ns` is when this process began to count. A counter of ours starts there. One that the driver keeps began at a
    time that nobody tells: by OpenTelemetry's data model ("unknown start time") it starts with its first point, so that
    nobody takes what was before for something that happened now. A counter that went back was reset: it starts anew
    at the last point before.
    """

    def __init__(self, envelope: Envelope, *, began_ns: int) -> None:
        self._envelope = envelope
        self._began_ns = self._swept_ns = began_ns
        self._families: dict[str, _Family] = {}
        self._naming = Semconv()
        self._turn = 0

    def batches(self, readings: Iterable[MetricReading], now_ns: int) -> list[Batch]:
        """The requests for what was read at `now_ns`; as a rule one.

        Left out is what a scrape leaves out too: what is no number, comes a second time, or has no name there. So are
        histograms, which no reading of a node makes.
        """
        self._turn += 1
        for family in self._families.values():
            family.points = []
        for metric, attributes, value in readings:
            found = self._families.get(metric.otel)
            if found is None:
                found = self._families[metric.otel] = _Family(metric)
            self._add(found, attributes, float(value), now_ns)
        if not 0 <= now_ns - self._swept_ns < FORGET_NS:
            self._forget(now_ns)
        return list(self._requests())

    def _add(self, family: _Family, attributes: Mapping[str, str], value: float, now_ns: int) -> None:
        # An attribute that is empty is not known.
        items = attributes.items()
        key = frozenset(items) if all(attributes.values()) else frozenset(pair for pair in items if pair[1])
        series = family.series.get(key)
        if series is None:
            series = family.series[key] = self._meet(family, key, now_ns)
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

    def _meet(self, family: _Family, key: frozenset[tuple[str, str]], now_ns: int) -> _PushedSeries:
        """A series that is new; without a head if it is not published."""
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
            for some in _portions(family.points):
                encoded = family.encoded(some)
                if waiting and size + len(encoded) > MOST_BYTES:
                    yield Batch.of(self._envelope.around(waiting), items)
                    waiting, size, items = [], 0, 0
                waiting.append(encoded)
                size, items = size + len(encoded), items + len(some)
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
    """A family that alone is more than a request may be, in parts."""
    some: list[bytes] = []
    size = 0
    for point in points:
        if some and size + len(point) > MOST_BYTES:
            yield some
            some, size = [], 0
        some.append(point)
        size += len(point)
    if some:
        yield some
