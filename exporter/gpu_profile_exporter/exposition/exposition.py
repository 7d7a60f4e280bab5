"""Renders readings as the text of /metrics, in the requested format and scheme of names."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isnan, nan
from typing import Final

from gpu_profile.catalogue import Metric
from gpu_profile.catalogue import self_metrics as m
from gpu_profile_exporter.exposition.budget import SERIES_BUDGET
from gpu_profile_exporter.exposition.format import Format, negotiate
from gpu_profile_exporter.exposition.layout import Attributes, Layout, Line, Lines
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.naming.series import Naming
from gpu_profile_exporter.reader.usage import PROCESS, process_values
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: Reasons to leave out a series. Their counters are published from 0, so that increase() sees the first one.
REASONS: Final = ("duplicate", "not_a_number", "over_budget")

_NO_ATTRIBUTES: Final[Attributes] = {}
_OWN: Final = ((m.SERIES, _NO_ATTRIBUTES), *((m.SERIES_DROPPED, {"reason": reason}) for reason in REASONS))
_PROCESS_LINES: Final = tuple(map(Line.of, PROCESS))


class Exposition:
    """Renders /metrics: the readings that `read` returns at each scrape, and metrics of the exposition itself.

    At most `budget` series are published, except core series; `budget.py` ranks them. `process`: also publish this
    process's CPU time, memory and open files. Thread-safe: scrapes are rendered one after the other.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[MetricReading]],
        naming: Naming | None = None,
        *,
        budget: int = SERIES_BUDGET,
        process: bool = True,
    ) -> None:
        self._read = read
        self._lines = Lines(naming if naming is not None else choose("semconv"))
        self._budget = budget
        self._process = process
        #: Series left out so far, by reason.
        self.left_out: Counter[str] = Counter()
        self._layout = Layout((), budget=budget)
        self._key: tuple[Sequence[Metric], Sequence[Attributes], int] = ((), (), 0)
        self._rendering = threading.Lock()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, by the `Accept` header."""
        style = negotiate(accept)
        with self._rendering:
            return self._render(style), style.value

    def _render(self, style: Format) -> bytes:
        metrics, attributes, values, given = self._readable(list(self._read()))
        process = process_values() if self._process else ()
        layout = self._layout_of(
            [*metrics, *(metric for metric, _ in _OWN)], [*attributes, *(about for _, about in _OWN)], len(process)
        )
        self.left_out.update(layout.left_out)
        values += [len(layout), *(self.left_out[reason] for reason in REASONS)]
        return layout.fill([*values, *process], style, given)

    def _readable(
        self, readings: list[MetricReading]
    ) -> tuple[Sequence[Metric], Sequence[Attributes], list[float], Sequence[float]]:
        """Metrics, attributes, values as floats and values as given, of all readings with a value other than NaN."""
        if not readings:
            return (), (), [], ()
        metrics, attributes, values = zip(*readings, strict=True)
        try:
            numbers = list(map(float, values))
        except (TypeError, ValueError, OverflowError):
            numbers = list(map(_number, values))
        # The sum is also NaN for infinities of both signs.
        if isnan(sum(numbers)) and any(map(isnan, numbers)):
            kept = [reading for reading, value in zip(readings, numbers, strict=True) if not isnan(value)]
            self.left_out["not_a_number"] += len(readings) - len(kept)
            return self._readable(kept)
        return metrics, attributes, numbers, values

    def _layout_of(self, metrics: Sequence[Metric], attributes: Sequence[Attributes], fixed: int) -> Layout:
        key = (metrics, attributes, fixed)
        if key != self._key:
            over = self._layout.left_out["over_budget"]
            self._layout = Layout(self._lines.of(metrics, attributes), _PROCESS_LINES[:fixed], budget=self._budget)
            self._key = key
            gone = self._layout.left_out["over_budget"]
            if gone and not over:
                advice = "collect fewer groups, or raise --series-budget"
                _log.warning("%d series are left out: there are more than %d; %s", gone, self._budget, advice)
        return self._layout


def _number(value: float) -> float:
    """The value as a float. NaN if it cannot be converted."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return nan
