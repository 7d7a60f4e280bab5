"""Intervals over a timeline: what a device did during them, and whose work it was. Pure.

Two questions, two answers. `read` sees the device undivided during one interval (*inclusive*). `shares` cuts time into
segments and splits each equally among the innermost activities then running (*exclusive*), so that the shares and the
unattributed rest add up to the device.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.samples import Interval
from gpu_profile.timeline import Column, Floats, Rows
from gpu_profile.units import NS_PER_S

#: A window wider than this share of the interval dilutes it by more than the edges can excuse: the interval's own
#: reading is then not used. At one tenth, a window that hangs half over either edge moves the mean by at most 10 %.
WIDEST_WINDOW: Final = 0.1


class Reading(NamedTuple):
    """What one signal did during an interval, in base units.

    `mean` is time-weighted over the covered part (a counter's: growth per second). `total` is the integral over the
    covered part in unit·s (a counter's: its growth). `n` counts independent readings. `coverage` is the share of the
    interval that rows cover. `resolution` is the width of the widest reading over the length of the interval: above
    `WIDEST_WINDOW`, the reading says more about the neighbourhood than about the interval.
    """

    signal: Signal
    mean: float
    total: float
    maximum: float
    coverage: float
    n: int
    resolution: float


def read(column: Column, interval: Interval) -> Reading | None:
    """What `column` says about `interval`; None where it says nothing (never 0)."""
    a, b = interval.start_ns, interval.end_ns
    if b <= a:
        return None
    rows = column.rows(a, b)
    mass, covered = column.integral(a, b)
    signal = column.signal
    if covered <= 0 or not len(rows.values):
        return None
    counter = signal.kind is Kind.COUNTER
    total = signal.base(mass) if counter else signal.base(mass) / NS_PER_S
    mean = signal.base(mass) * NS_PER_S / covered if counter else signal.base(mass) / covered
    peak = _peak(rows, signal)
    widest = max(signal.window_ns, signal.refresh_ns, int(rows.lengths.max()))
    n = int(np.count_nonzero(rows.weights))
    return Reading(signal, mean, total, peak, covered / (b - a), n, widest / (b - a))


def _peak(rows: Rows, signal: Signal) -> float:
    if signal.kind is Kind.COUNTER:
        return float((rows.values / np.maximum(rows.lengths, 1)).max()) * signal.quantum * NS_PER_S
    return signal.base(int(rows.values.max()))


def quantile(column: Column, interval: Interval, q: float) -> float | None:
    """The time-weighted `q` quantile (0-1) of a window mean or an instant over `interval`, in base units.

    The smallest value that the signal stayed at or below for at least `q` of the covered time.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies in 0-1, not {q}")
    if column.signal.kind is Kind.COUNTER:
        raise ValueError(f"{column.signal.key}: a counter has growth, not quantiles")
    rows = column.rows(interval.start_ns, interval.end_ns)
    keep = rows.weights > 0
    values, weights = rows.values[keep], rows.weights[keep]
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    index = int(np.searchsorted(reached, q * float(reached[-1])))
    return column.signal.base(int(values[order][min(index, len(values) - 1)]))


class Activity(NamedTuple):
    """One execution on one device: when it was active there, whose it is, and inside which execution it ran.

    `end_ns` None: it still runs.
    """

    key: Hashable
    parent: Hashable | None
    region: str
    start_ns: int
    end_ns: int | None


class Segment(NamedTuple):
    """A stretch of time during which the same innermost activities ran; an empty tuple: nobody's."""

    start_ns: int
    end_ns: int
    innermost: tuple[Activity, ...]


def segments(activities: Iterable[Activity], start_ns: int, end_ns: int) -> list[Segment]:
    """Cut `[start, end)` wherever the set of innermost activities changes. Covers all of it, oldest first."""
    edges: list[tuple[int, int, Activity]] = []
    # A key stands for one execution, also where a caller met it twice while it moved from running to ended.
    for activity in {activity.key: activity for activity in activities}.values():
        a = max(activity.start_ns, start_ns)
        b = end_ns if activity.end_ns is None else min(activity.end_ns, end_ns)
        if a < b:
            edges.append((a, 1, activity))
            edges.append((b, 0, activity))
    edges.sort(key=lambda edge: edge[:2])
    result: list[Segment] = []
    active: dict[Hashable, Activity] = {}
    children: dict[Hashable, int] = {}
    at = start_ns
    for t, opens, activity in edges:
        if t > at:
            result.append(_segment(at, t, active, children))
            at = t
        if opens:
            active[activity.key] = activity
        else:
            del active[activity.key]
        if activity.parent is not None:
            children[activity.parent] = children.get(activity.parent, 0) + (1 if opens else -1)
    if at < end_ns:
        result.append(_segment(at, end_ns, active, children))
    return result


def _segment(a: int, b: int, active: dict[Hashable, Activity], children: dict[Hashable, int]) -> Segment:
    return Segment(a, b, tuple(activity for key, activity in active.items() if not children.get(key)))


def exclusive(column: Column, cuts: Sequence[Segment]) -> tuple[dict[Hashable, int], int]:
    """Split a column's mass over `cuts` among their innermost activities, equally; returns (by activity, the rest).

    Masses are whole quanta·ns; what does not divide goes, one by one, to the first activities of the segment, so that
    all shares and the rest add up to the column's own integral exactly.
    """
    result: dict[Hashable, int] = {}
    rest = 0
    for cut in cuts:
        mass = column.integral(cut.start_ns, cut.end_ns).mass
        if not cut.innermost:
            rest += mass
            continue
        each, left = divmod(mass, len(cut.innermost))
        for i, activity in enumerate(cut.innermost):
            result[activity.key] = result.get(activity.key, 0) + each + (i < left)
    return result, rest


class ActiveTime:
    """How long each region was active, exclusively, up to any moment of a stretch of time: piecewise linear."""

    def __init__(self, cuts: Sequence[Segment]) -> None:
        self.origin_ns = cuts[0].start_ns if cuts else 0
        self._times = np.array([0, *(cut.end_ns - self.origin_ns for cut in cuts)], np.float64)
        rates: dict[str, Floats] = {}
        for i, cut in enumerate(cuts):
            for activity in cut.innermost:
                rate = rates.get(activity.region)
                if rate is None:
                    rate = rates[activity.region] = np.zeros(len(cuts))
                rate[i] += 1.0 / len(cut.innermost)
        lengths = np.diff(self._times)
        self._cumulative = {name: np.concatenate(([0.0], np.cumsum(rate * lengths))) for name, rate in rates.items()}

    @property
    def regions(self) -> Iterable[str]:
        """The regions that were active at all."""
        return self._cumulative.keys()

    def total_ns(self, region: str) -> float:
        """Exclusive active time of a region over the whole stretch."""
        return float(self._cumulative[region][-1])

    def during(self, region: str, starts: Floats, ends: Floats) -> Floats:
        """Exclusive active ns of `region` in each window; `starts` and `ends` are ns after `origin_ns`."""
        cumulative = self._cumulative[region]
        low = np.interp(starts, self._times, cumulative)
        high = np.interp(ends, self._times, cumulative)
        return np.asarray(high - low, np.float64)
