"""Rates of regions between the scrapes of one endpoint. Takes the scrapes and their times, and reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Final

from gpu_profile.catalogue import Metric, label
from gpu_profile.catalogue import metrics as rows
from gpu_profile.monitor.top.snapshot import RegionLine
from gpu_profile.units import NS_PER_S

#: The length of time over which rates are taken, in ns.
WINDOW_NS: Final = 60 * NS_PER_S
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
_Scraped = tuple[str, tuple[tuple[str, str], ...]]


class RegionRates:
    """The regions of an endpoint's scrapes. `problem`: why the newest scrape failed, or empty."""

    def __init__(self) -> None:
        self.problem = ""
        #: The growth of each series since the first scrape, at each scrape of the window.
        self._grown: deque[tuple[int, Mapping[Series, float]]] = deque()
        self._total: dict[Series, float] = {}
        self._last: dict[_Scraped, float] | None = None

    def take(self, at_ns: int, text: str) -> None:
        """Add a scrape in Prometheus' text format. ValueError if it is not in this format."""
        values: dict[_Scraped, float] = {}
        for key, series, value in _scraped(text):
            # A counter that was reset, or is new, began at 0. The first scrape has no earlier one to compare with.
            last = value if self._last is None else self._last.get(key, 0.0)
            self._total[series] = self._total.get(series, 0.0) + (value - last if value >= last else value)
            values[key] = value
        self._last = values
        self._grown.append((at_ns, dict(self._total)))
        while len(self._grown) > 1 and at_ns - self._grown[1][0] >= WINDOW_NS:
            self._grown.popleft()
        self.problem = ""

    @property
    def window_s(self) -> float:
        """The time between the first and the last scrape of the window, in s."""
        return (self._grown[-1][0] - self._grown[0][0]) / NS_PER_S if self._grown else 0.0

    def lines(self) -> tuple[RegionLine, ...]:
        """The regions in order of their names. Without a second scrape, no rate is known."""
        if not self._grown:
            return ()
        (_, first), (_, last) = self._grown[0], self._grown[-1]
        growth = {series: value - first.get(series, 0.0) for series, value in last.items()}
        regions: dict[str, dict[Series, float]] = {}
        for series, value in growth.items():
            regions.setdefault(series[1], {})[series] = value
        return tuple(self._line(name, regions[name]) for name in sorted(regions))

    def _line(self, name: str, growth: Mapping[Series, float]) -> RegionLine:
        def rate(metric: Metric) -> float | None:
            values = [value for series, value in growth.items() if series[0] is metric]
            return sum(values) / self.window_s if values and self.window_s > 0 else None

        regimes = {series[2]: value for series, value in growth.items() if series[0] is rows.REGION_CALLS and value > 0}
        return RegionLine(
            name,
            calls=rate(rows.REGION_CALLS),
            joules=rate(rows.REGION_ENERGY),
            joules_uncertain=rate(rows.REGION_ENERGY_UNCERTAIN),
            busy=rate(rows.REGION_BUSY),
            busy_uncertain=rate(rows.REGION_BUSY_UNCERTAIN),
            regime=max(regimes, key=lambda regime: regimes[regime], default=""),
        )


def _scraped(text: str) -> Iterator[tuple[_Scraped, Series, float]]:
    """The samples of region metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metric = _METRICS.get(sample.name)
            region = sample.labels.get(_REGION)
            if metric is None or not region or not isfinite(sample.value) or sample.value < 0:
                continue
            service = sample.labels.get(_SERVICE)
            name = f"{service}/{region}" if service else region
            key = sample.name, tuple(sorted(sample.labels.items()))
            yield key, (metric, name, sample.labels.get(_REGIME, "")), sample.value
