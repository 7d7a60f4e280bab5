"""Rates of regions between the scrapes of one endpoint. Takes the scrapes and their times, and reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import isfinite, isinf
from typing import Final, NamedTuple

from gpu_profile.catalogue import Metric, label
from gpu_profile.catalogue import metrics as rows
from gpu_profile.monitor.top.snapshot import RegionLine
from gpu_profile.units import NS_PER_S

#: The length of time over which rates are taken, in ns.
WINDOW_NS: Final = 60 * NS_PER_S
#: The most series of regions in one scrape, and the most that are remembered.
MOST_SERIES: Final = 10_000
_REGION: Final = label("region")
_SERVICE: Final = label("service.name")
_REGIME: Final = label("regime")
#: Region metrics by the name of their samples.
_METRICS: Final[Mapping[str, Metric]] = {
    metric.prometheus: metric
    for metric in (
        rows.REGION_CALLS,
        rows.REGION_ENERGY,
        rows.REGION_ENERGY_UNCERTAIN,
        rows.REGION_BUSY,
        rows.REGION_BUSY_UNCERTAIN,
    )
}

#: One series: the metric, the region and the regime, without devices.
Series = tuple[Metric, str, str]
#: A series of the endpoint, with all labels.
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


class ScrapeError(Exception):
    """A scrape gave no values. The message is the reason."""


class RegionValue(NamedTuple):
    """The value of one of the endpoint's series in a scrape: at least 0, and possibly infinite."""

    series: Series
    value: float


class _LastValue(NamedTuple):
    at_ns: int
    series: Series
    value: float


def region_values(text: str) -> Mapping[SeriesKey, RegionValue]:
    """The values of region metrics in a scrape in Prometheus' text format. NaN and negative values are left out.

    ScrapeError if the text has another format or more than `MOST_SERIES` of these series.
    """
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[SeriesKey, RegionValue] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                metric = _METRICS.get(sample.name)
                region = sample.labels.get(_REGION)
                if metric is None or not region or not sample.value >= 0:
                    continue
                service = sample.labels.get(_SERVICE)
                series = (metric, f"{service}/{region}" if service else region, sample.labels.get(_REGIME, ""))
                values[sample.name, tuple(sorted(sample.labels.items()))] = RegionValue(series, sample.value)
    except Exception as error:  # the parser fails in many ways on text in another format
        reason = f"{type(error).__name__}: {error}"[:100]
        raise ScrapeError(f"not in Prometheus' text format ({reason})") from error
    if len(values) > MOST_SERIES:
        raise ScrapeError(f"it has {len(values)} series of regions, and the view takes {MOST_SERIES} at most")
    return values


class RegionRates:
    """The rates of regions in the last minute, from an endpoint's scrapes.

    Growth is the difference of two values of one series. A series that is new, or was not seen within the window, has
    no growth at first: its value is that of its whole life.
    """

    def __init__(self) -> None:
        #: The growth of each series up to each scrape of the window. That of the first one is before the window.
        self._growth: deque[tuple[int, Mapping[Series, float]]] = deque()
        #: The last values of the series that were seen within the window, those seen last at the end.
        self._last: dict[SeriesKey, _LastValue] = {}

    def take(self, at_ns: int, values: Mapping[SeriesKey, RegionValue]) -> None:
        """Add a scrape. After a time without scrapes that is longer than the window, a new window begins."""
        if self._growth and at_ns - self._growth[-1][0] > WINDOW_NS:
            self._growth.clear()
        self._forget(at_ns)
        growth: dict[Series, float] = {}
        for key, (series, value) in values.items():
            last = self._last.pop(key, None)
            grown = None if last is None else _grown(last.value, value)
            if grown is not None:
                growth[series] = growth.get(series, 0.0) + grown
            self._last[key] = _LastValue(at_ns, series, value)
        self._growth.append((at_ns, growth))
        while len(self._growth) > 1 and at_ns - self._growth[1][0] >= WINDOW_NS:
            self._growth.popleft()
        self._forget(at_ns)

    def _forget(self, at_ns: int) -> None:
        """Drop the series that were not seen within the window, and the oldest ones if there are too many."""
        for key, last in list(self._last.items()):
            if at_ns - last.at_ns <= WINDOW_NS and len(self._last) <= MOST_SERIES:
                break
            del self._last[key]

    @property
    def window_s(self) -> float:
        """The time between the first and the last scrape of the window, in s."""
        return (self._growth[-1][0] - self._growth[0][0]) / NS_PER_S if self._growth else 0.0

    def lines(self) -> tuple[RegionLine, ...]:
        """The regions in order of their names. Without two values of a series in the window, its rate is unknown."""
        regions: dict[str, dict[Series, float]] = {last.series[1]: {} for last in self._last.values()}
        for _, growth in list(self._growth)[1:]:
            for series, value in growth.items():
                if series[1] in regions:
                    region = regions[series[1]]
                    region[series] = region.get(series, 0.0) + value
        return tuple(self._line(name, regions[name]) for name in sorted(regions))

    def _line(self, name: str, growth: Mapping[Series, float]) -> RegionLine:
        def rate(metric: Metric) -> float | None:
            values = [value for series, value in growth.items() if series[0] is metric]
            total = sum(values) / self.window_s if values and self.window_s > 0 else None
            return total if total is not None and isfinite(total) else None

        calls = rate(rows.REGION_CALLS)
        regimes = {series[2]: value for series, value in growth.items() if series[0] is rows.REGION_CALLS and value > 0}
        return RegionLine(
            name,
            calls=calls,
            joules=rate(rows.REGION_ENERGY),
            joules_uncertain=rate(rows.REGION_ENERGY_UNCERTAIN),
            busy=rate(rows.REGION_BUSY),
            busy_uncertain=rate(rows.REGION_BUSY_UNCERTAIN),
            regime="" if calls is None else max(regimes, key=lambda regime: regimes[regime], default=""),
        )


def _grown(last: float, value: float) -> float | None:
    """The growth from `last` to `value`. A counter that was reset began at 0. None from infinity on."""
    if isinf(value):
        return value
    if isinf(last):
        return None
    return value - last if value >= last else value
