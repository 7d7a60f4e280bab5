"""Inclusive readings of a device's signals over intervals. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.histogram import Histogram
from gpu_profile.history.timeline import Column
from gpu_profile.units import NS_PER_S

#: A window wider than this share of the interval dilutes it too much: the interval's own reading is not used. At one
#: tenth, a window that lies half outside either edge moves the mean by at most 10 %.
WIDEST_WINDOW: Final = 0.1
#: The longest delay from the renewal of an activity counter to its publication (GPM of an H200 with driver 580: 3 to
#: 103 ms, a little later each time).
LATEST_GPM_NS: Final = 100_000_000


class Reading(NamedTuple):
    """One signal's activity during an interval, in base units.

    `mean` is time-weighted over the covered part (for a counter: growth per second). `total` is the integral over the
    covered part in unit·s (for a counter: its growth). `n` counts independent readings. `coverage` is the share of the
    interval that rows cover.

    `resolution` is how far the reading looks beyond the interval, over the interval's length: the sensor's window, or
    the length of a row that crosses an edge if that is longer. Above `WIDEST_WINDOW`, the reading describes the
    neighbourhood more than the interval. A long row wholly inside, such as a late window, does not count. A counter
    that was not read for a while has one row for all that time, its growth spread evenly: the resolution of an
    interval with an edge in this row shows it.
    """

    signal: Signal
    mean: float
    total: float
    maximum: float
    coverage: float
    n: int
    resolution: float


def read(column: Column, interval: Interval) -> Reading | None:
    """The reading of `column` over `interval`; None (never 0) if no row covers any of it.

    For an interval that begins at an anchor of the timeline, rows that were dropped since count too.
    """
    a, b = interval.start_ns, interval.end_ns
    if b <= a:
        return None
    mass, covered, peak, n, edge = column.extent(a, b)
    signal = column.signal
    if covered <= 0 or peak is None:
        return None
    per_s = NS_PER_S if signal.kind is Kind.COUNTER else 1
    total = signal.base(mass) * per_s / NS_PER_S
    mean = signal.base(mass) * per_s / covered
    widest = max(signal.window_ns, signal.refresh_ns, edge)
    return Reading(signal, mean, total, signal.base(peak) * per_s, covered / (b - a), n, widest / (b - a))


def quantiles(column: Column, interval: Interval, *qs: float) -> list[float | None]:
    """The time-weighted quantiles `qs` (0-1) of a window mean or an instant over `interval`, in base units.

    Each is the smallest value that the signal did not exceed for at least that share of the covered time; None if
    nothing is covered. Exact while the rows are kept. For an interval that begins at an anchor and outlived its rows,
    within 1 % of the range of its values. Raises ValueError for a share outside 0-1, or a counter.
    """
    if wrong := [q for q in qs if not 0 <= q <= 1]:
        raise ValueError(f"a quantile lies in 0-1, not {wrong[0]}")
    if column.signal.kind is Kind.COUNTER:
        raise ValueError(f"{column.signal.key}: a counter has growth, not quantiles")
    histogram, rows = column.distribution(interval.start_ns, interval.end_ns)
    if histogram is not None:
        whole = Histogram()
        whole.merge(histogram)
        whole.add(rows.values, rows.weights)
        results = [whole.quantile(q) for q in qs]
        return [None if value is None else column.signal.base(value) for value in results]
    keep = rows.weights > 0
    values, weights = rows.values[keep], rows.weights[keep]
    if not len(values):
        return [None] * len(qs)
    order = values.argsort(kind="stable")
    reached = weights[order].cumsum()
    most, last = float(reached[-1]), len(values) - 1
    return [column.signal.base(int(values[order[min(int(reached.searchsorted(q * most)), last)]])) for q in qs]
