"""Running totals of a device's activity: exact integrals up to any moment, from a work log or a script."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from gpu_profile.driver.simulated.models import DeviceModel
from gpu_profile.driver.simulated.physics import WIDTH, Floats, Ints, limited, rates
from gpu_profile.driver.simulated.worklog import Records
from gpu_profile.units import NS_PER_S

#: The age up to which a device with logged work keeps its totals: more than any sensor needs.
KEPT_NS: Final = 30 * NS_PER_S
_OPEN_NS: Final = NS_PER_S
_CHUNK: Final = 1 << 15


class SimulatedActivity(Protocol):
    """The activity of a device as integrals over time."""

    def totals(self, t_ns: int) -> Floats:
        """The integral of every `SimulatedQuantity` up to `t_ns`: shape (WIDTH,)."""
        ...

    def many(self, t_ns: Ints) -> Floats:
        """The same at many moments: shape (len(t_ns), WIDTH)."""
        ...


class RunningTotals:
    """Running totals at ascending moments, linear in between and flat outside."""

    def __init__(self, t_ns: Ints, values: Floats) -> None:
        self.t_ns, self.values = t_ns, values

    def totals(self, t_ns: int) -> Floats:
        """The totals at `t_ns`."""
        t = self.t_ns
        i = int(t.searchsorted(t_ns, "right"))
        if i == 0:
            return np.asarray(self.values[0])
        if i == len(t):
            return np.asarray(self.values[-1])
        before = self.values[i - 1]
        start = int(t[i - 1])
        between: Floats = before + (self.values[i] - before) * ((t_ns - start) / (int(t[i]) - start))
        return between

    def many(self, t_ns: Ints) -> Floats:
        """The totals at many moments."""
        t = self.t_ns
        if len(t) == 1:
            return np.repeat(self.values, len(t_ns), axis=0)
        i = np.clip(t.searchsorted(t_ns, "right"), 1, len(t) - 1)
        share = np.clip((t_ns - t[i - 1]) / (t[i] - t[i - 1]), 0.0, 1.0)
        before = self.values[i - 1]
        between: Floats = before + (self.values[i] - before) * share[:, None]
        return between


def integrated(edges: Ints, per_second: Floats) -> RunningTotals:
    """The totals of rates per second between edges: shape (len(edges) - 1, any width)."""
    growth = per_second * (np.diff(edges) / NS_PER_S)[:, None]
    return RunningTotals(edges, np.cumsum(np.vstack([np.zeros((1, growth.shape[1])), growth]), axis=0))


def pieces(model: DeviceModel, records: Records, from_ns: int) -> tuple[Ints, Floats, Ints]:
    """Split the time from `from_ns` on wherever a record starts or ends.

    Returns the edges (n+1), and between them the limited rates (n, WIDTH) and the number of running records (n).
    """
    start = np.maximum(records["start"], from_ns)
    end = records["end"]
    edges = np.unique(np.concatenate([np.array([from_ns], np.int64), start, end]))
    edges = edges[edges >= from_ns]
    each = rates(model, records)
    running = np.zeros(len(edges), np.int64)
    together = np.zeros((len(edges), WIDTH))
    alive = end > start
    first, last = edges.searchsorted(start[alive]), edges.searchsorted(end[alive])
    np.add.at(running, first, 1)
    np.subtract.at(running, last, 1)
    running = np.cumsum(running)
    if running.max(initial=0) <= 1:
        together[first] = each[alive]
    else:
        np.add.at(together, first, each[alive])
        np.subtract.at(together, last, each[alive])
        together = np.cumsum(together, axis=0)
    together[running == 0] = 0.0  # the rounding error of a long sum is no work
    return edges, limited(model, together)[:-1], running[:-1]


class LoggedActivity:
    """The activity of a device with logged work. `extend` adds new records.

    Totals are kept for `KEPT_NS`, and without limit at the moments `anchors`.
    """

    def __init__(self, model: DeviceModel, anchors: Sequence[int] = ()) -> None:
        self._model = model
        self._anchors = list(anchors)
        self._anchored: dict[int, Floats] = {}
        #: Batches that later work may overlap, each with its latest end.
        self._recent: list[tuple[int, Records]] = []
        self._t, self._values = np.zeros(64, np.int64), np.zeros((64, WIDTH))
        self._first, self._end = 0, 1
        self._history = RunningTotals(self._t[:1], self._values[:1])
        self._floor_ns = 0

    def extend(self, records: Records, now_ns: int) -> bool:
        """Add records, sorted by start. False if one starts too early: add all records to a new object in that case."""
        return all(self._extend(records[i : i + _CHUNK], now_ns) for i in range(0, len(records), _CHUNK))

    def _extend(self, fresh: Records, now_ns: int) -> bool:
        cut = int(fresh["start"][0])
        if cut < self._floor_ns:
            return False
        overlapped = [batch[batch["end"] > cut] for end, batch in self._recent if end > cut]
        edges, together, _ = pieces(self._model, np.concatenate([*overlapped, fresh]) if overlapped else fresh, cut)
        steps = np.vstack([self._history.totals(cut), together * (np.diff(edges) / NS_PER_S)[:, None]])
        # Later work may start before the work here ends, so keep the batches that it may overlap.
        self._floor_ns = max(self._floor_ns, min(cut, now_ns) - _OPEN_NS)
        for anchor in self._anchors:
            if anchor < self._floor_ns and anchor not in self._anchored:
                self._anchored[anchor] = self._history.totals(anchor).copy()
        self._store(edges, np.cumsum(steps, axis=0), min(cut, now_ns) - KEPT_NS)
        self._recent.append((int(fresh["end"].max()), fresh))
        self._recent = [batch for batch in self._recent if batch[0] > self._floor_ns]
        return True

    def _store(self, edges: Ints, values: Floats, kept_ns: int) -> None:
        stored_t = self._history.t_ns
        end = self._first + int(stored_t.searchsorted(edges[0]))
        first = min(self._first + max(0, int(stored_t.searchsorted(kept_ns)) - 1), max(self._first, end - 1))
        if end + len(edges) > len(self._t):
            room = 2 * (end - first + len(edges))
            t, stored = np.zeros(room, np.int64), np.zeros((room, WIDTH))
            t[: end - first], stored[: end - first] = self._t[first:end], self._values[first:end]
            self._t, self._values, first, end = t, stored, 0, end - first
        self._first, self._end = first, end + len(edges)
        self._t[end : self._end], self._values[end : self._end] = edges, values
        self._history = RunningTotals(self._t[first : self._end], self._values[first : self._end])

    def totals(self, t_ns: int) -> Floats:
        """The totals at `t_ns`, which is an anchor or at most `KEPT_NS` before the newest record."""
        anchored = self._anchored.get(t_ns)
        return self._history.totals(t_ns) if anchored is None else anchored

    def many(self, t_ns: Ints) -> Floats:
        """The totals at many moments."""
        return self._history.many(t_ns)


class Cycle:
    """A pattern of totals that repeats: `pattern` covers [0, period_ns]."""

    def __init__(self, pattern: SimulatedActivity, period_ns: int) -> None:
        self._pattern, self._period_ns = pattern, period_ns
        self._whole = pattern.totals(period_ns)

    def totals(self, t_ns: int) -> Floats:
        """The totals at `t_ns` >= 0."""
        turns, rest = divmod(t_ns, self._period_ns)
        within: Floats = turns * self._whole + self._pattern.totals(rest)
        return within

    def many(self, t_ns: Ints) -> Floats:
        """The totals at many moments."""
        turns, rest = np.divmod(t_ns, self._period_ns)
        within: Floats = turns[:, None] * self._whole + self._pattern.many(rest)
        return within


class Chain:
    """Consecutive activities as (activity, length in ns). The totals are constant after the last."""

    def __init__(self, parts: Sequence[tuple[SimulatedActivity, int]]) -> None:
        self._parts = [part for part, _ in parts]
        self._starts = [0, *accumulate(length for _, length in parts)]
        ends = [part.totals(length) for part, length in parts]
        self._before = np.cumsum(np.vstack([np.zeros(WIDTH), *ends]), axis=0)

    def totals(self, t_ns: int) -> Floats:
        """The totals at `t_ns`."""
        i = bisect_right(self._starts, t_ns) - 1
        if i < 0 or i >= len(self._parts):
            return np.asarray(self._before[max(0, i)])
        within: Floats = self._before[i] + self._parts[i].totals(t_ns - self._starts[i])
        return within

    def many(self, t_ns: Ints) -> Floats:
        """The totals at many moments."""
        place = np.searchsorted(self._starts, t_ns, side="right") - 1
        totals: Floats = self._before[np.clip(place, 0, len(self._parts))]
        for i in np.unique(place).tolist():
            if 0 <= i < len(self._parts):
                within = place == i
                totals[within] += self._parts[i].many(t_ns[within] - self._starts[i])
        return totals


class Shifted:
    """An activity that begins at `epoch_ns`. Its totals are constant before."""

    def __init__(self, inner: SimulatedActivity, epoch_ns: int) -> None:
        self._inner, self._epoch_ns = inner, epoch_ns

    def totals(self, t_ns: int) -> Floats:
        """The totals at `t_ns`."""
        return self._inner.totals(max(0, t_ns - self._epoch_ns))

    def many(self, t_ns: Ints) -> Floats:
        """The totals at many moments."""
        return self._inner.many(np.maximum(t_ns - self._epoch_ns, 0))


class Sum:
    """The weighted sum of activities: a GPU in MIG mode. `weights` has shape (parts, WIDTH)."""

    def __init__(self, parts: Sequence[SimulatedActivity], weights: Floats) -> None:
        self._parts, self._weights = parts, weights

    def totals(self, t_ns: int) -> Floats:
        """The totals at `t_ns`."""
        whole: Floats = np.sum(
            [part.totals(t_ns) * w for part, w in zip(self._parts, self._weights, strict=True)], axis=0
        )
        return whole

    def many(self, t_ns: Ints) -> Floats:
        """The totals at many moments."""
        whole: Floats = np.sum(
            [part.many(t_ns) * w for part, w in zip(self._parts, self._weights, strict=True)], axis=0
        )
        return whole
