"""Takes the readers' samples for the live page as they arrive: the signals of its charts, and where throttling begins.

It runs all the time, so that a new viewer sees the last minutes at once. It costs less than 0.1 % of a core for 8 GPUs
at 10 Hz: readers send samples in batches, and most signals are skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpu_profile.catalogue import SIGNALS, Kind, Signal
from gpu_profile.catalogue.samples import Event
from gpu_profile.report.devices import CHARTS
from gpu_profile.report.live import LiveFeed, ThrottleWatch, mark_of
from gpu_profile.report.live.marks import REASON_OF

_MS: Final = 1e6
#: A lesser source of a chart is used if the better ones had no sample for this long.
_SILENCE_MS: Final = 5_000.0


class ChartSource(NamedTuple):
    """A signal's chart, and its place among the chart's sources, 0 for the best. `chart` is empty for throttling."""

    signal: Signal
    chart: str
    place: int
    quantum: float


_NUMBERS: Final = {signal: number for number, signal in enumerate(SIGNALS)}
#: By the signal's number in the readers' messages. Counters among the sources are only of drivers without samples.
SOURCES: Final[Mapping[int, ChartSource]] = {
    _NUMBERS[signal]: ChartSource(signal, chart.key, place, signal.quantum)
    for chart in CHARTS
    for place, signal in enumerate(chart.sources)
    if signal.kind is not Kind.COUNTER
} | {_NUMBERS[signal]: ChartSource(signal, "", 0, signal.quantum) for signal in REASON_OF}


class RecentSamples:
    """Fills `feed`. `lock` is held meanwhile. Readers' threads call `take` and `event`."""

    def __init__(self, feed: LiveFeed) -> None:
        self.lock = threading.Lock()
        self.throttling = ThrottleWatch()
        self._feed = feed
        #: The newest values of each device's counters of throttle time, by number.
        self._counters: dict[str, dict[int, int]] = {}
        #: By device and chart the latest source: its place, and the end of its newest sample in ms.
        self._used: dict[str, dict[str, tuple[int, float]]] = {}

    def take(self, uuid: str, values: Sequence[int]) -> None:
        """Take a device's samples: number of the signal, start in ns, end in ns and value, for each one in turn."""
        feed = self._feed
        counters, used = self._counters.setdefault(uuid, {}), self._used.setdefault(uuid, {})
        with self.lock:
            numbers = values[::4]
            sources = map(SOURCES.get, numbers)
            for source, number, start, end, value in zip(
                sources, numbers, values[1::4], values[2::4], values[3::4], strict=True
            ):
                if source is None:
                    continue
                signal, chart, place, quantum = source
                end_ms = end / _MS
                if not chart:
                    if counters.get(number) == value:  # nearly always
                        continue
                    counters[number] = value
                    if (mark := self.throttling.read(uuid, signal, end_ms, value)) is not None:
                        feed.mark(mark)
                elif signal.lowest <= value <= signal.limit:
                    latest = used.get(chart)
                    if latest is None or place <= latest[0] or abs(end_ms - latest[1]) >= _SILENCE_MS:
                        used[chart] = place, end_ms
                        feed.add(uuid, chart, end_ms, (end - start) / _MS, value * quantum)

    def event(self, event: Event) -> None:
        """Take an event of a device."""
        with self.lock:
            self._feed.mark(mark_of(event))
