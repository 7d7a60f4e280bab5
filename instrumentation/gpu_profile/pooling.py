"""What a device did for each region name, over all of the region's executions so far. Pure.

A pool is fed slices of time in order. In each it finds out which regions were active (exclusively), sets that beside
every sensor window that ended in the slice, and leaves the mixture to `unmix`. What the device used in all is shared
out among regions so that the shares only ever grow and always add up to what was measured: they can be counters.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.join import ActiveTime, Activity, Segment, segments
from gpu_profile.mixture import FAMILIES, SUPERSEDED, ColumnActivity, Mixture, Timing
from gpu_profile.timeline import Timeline
from gpu_profile.units import NS_PER_S
from gpu_profile.unmix import Rate

#: At most this many regions per device have equations of their own; the rest are pooled under `OTHER`.
MOST_REGIONS: Final = 64
OTHER: Final = "other"

#: History of active time that windows reach back into: the longest window (1 s), its lag and a late drain.
_HISTORY_NS: Final = 3 * NS_PER_S
#: Stretches of time that are kept while lags are looked for; with more, the search ends where it stands.
MOST_CUTS: Final = 50_000
#: Windows are taken in by the half second: the equations cost the same for one window as for five.
_STEP_NS: Final = NS_PER_S // 2


@dataclass(frozen=True, slots=True)
class Pooled:
    """What one device did for one region, over all its executions.

    `rates` are by signal, while the region or one inside it is active; a rate that cannot be given has its reason.
    `inclusive_s` is that time, `active_s` the part in which the region itself was the innermost (exclusive).
    `busy_s` and `energy_j` are exclusive shares, the best estimates now; `busy_counter_s` and `energy_counter_j` follow
    them without ever falling, and with the other regions' and the rest they add up to what the device measured.
    `memory_max` is in bytes.
    """

    region: str
    device: str
    executions: int
    active_s: float
    inclusive_s: float
    rates: Mapping[Signal, Rate]
    busy_s: float | None
    energy_j: float | None
    busy_counter_s: float | None
    energy_counter_j: float | None
    memory_max: float | None


class Pool:
    """The regions of one device, from `start_ns` on."""

    def __init__(self, timeline: Timeline, *, start_ns: int) -> None:
        self.timeline = timeline
        self.start_ns = start_ns
        self.frontier_ns = start_ns
        self.overflowed = 0
        self._index: dict[str, int] = {}
        self._mixtures = [
            Mixture(timeline, family, start_ns=start_ns)
            for family in FAMILIES
            if timeline.column(family[0]) is not None
            and (family[0] not in SUPERSEDED or timeline.column(SUPERSEDED[family[0]]) is None)
        ]
        self._cuts: list[Segment] = []
        self._executions: dict[str, int] = {}
        self._active_ns: dict[str, float] = {}
        self._memory_max: dict[str, float] = {}
        self._running: set[str] = set()
        self._stretches: dict[str, int] = {}
        #: For every region, the exclusive ns of itself and of those inside it; and how often it began, with them.
        self._inside: dict[str, dict[str, float]] = {}
        self._around: set[str] = set()
        self._spells: dict[str, int] = {}

    @property
    def joined(self) -> list[Signal]:
        """The signals that this pool takes in."""
        return [signal for mixture in self._mixtures for signal in mixture.signals]

    @property
    def regions(self) -> list[str]:
        """The regions that were ever active here, in order of appearance."""
        return list(self._executions)

    def count(self, region: str) -> None:
        """One execution of `region` has ended on this device."""
        name = self._name(region)
        self.overflowed += name != region
        self._executions[name] = self._executions.get(name, 0) + 1

    def _name(self, region: str) -> str:
        if region in self._index or len(self._index) < MOST_REGIONS:
            self._index.setdefault(region, len(self._index) + 1)
            return region
        self._index.setdefault(OTHER, MOST_REGIONS + 1)
        return OTHER

    def advance(self, activities: Sequence[Activity], until_ns: int, *, final: bool = False) -> None:
        """Take in the slice from the frontier to `until_ns`; `activities` are all that overlap it.

        Slices of less than half a second wait for more, unless it is the `final` one.
        """
        if until_ns <= self.frontier_ns or (until_ns - self.frontier_ns < _STEP_NS and not final):
            return
        named = [a._replace(region=self._name(a.region)) for a in activities]
        fresh = segments(named, self.frontier_ns, until_ns)
        for cut in fresh:
            for activity in cut.innermost:
                share = (cut.end_ns - cut.start_ns) / len(cut.innermost)
                self._active_ns[activity.region] = self._active_ns.get(activity.region, 0.0) + share
        self._nest(fresh, {activity.key: activity for activity in named})
        self._cuts += fresh
        recent = ActiveTime([cut for cut in self._cuts if cut.end_ns > self.frontier_ns - _HISTORY_NS])
        whole = cache(lambda: ActiveTime(self._cuts))
        totals = self._activity(until_ns)
        for mixture in self._mixtures:
            mixture.activity = totals
            mixture.take(recent, whole, self._index, until_ns)
            if len(self._cuts) > MOST_CUTS:
                mixture.lock()
        if all(mixture.locked for mixture in self._mixtures):
            self._cuts = [cut for cut in self._cuts if cut.end_ns > until_ns - _HISTORY_NS]
        self._take_memory(named, until_ns)
        self.frontier_ns = until_ns

    def _nest(self, cuts: Sequence[Segment], by_key: Mapping[Hashable, Activity]) -> None:
        """Note what ran inside what, and how often each began anew, alone and with what is inside it."""
        for cut in cuts:
            running = {activity.region for activity in cut.innermost}
            around: set[str] = set()
            for activity in cut.innermost:
                share = (cut.end_ns - cut.start_ns) / len(cut.innermost)
                for region in _chain(activity, by_key):
                    around.add(region)
                    inside = self._inside.setdefault(region, {})
                    inside[activity.region] = inside.get(activity.region, 0.0) + share
            for now, before, counts in (
                (running, self._running, self._stretches),
                (around, self._around, self._spells),
            ):
                for region in now - before:
                    counts[region] = counts.get(region, 0) + 1
            self._running, self._around = running, around

    def _activity(self, until_ns: int) -> ColumnActivity:
        total, stretch = np.zeros(len(self._index) + 1), np.full(len(self._index) + 1, np.inf)
        for region, active_ns in self._active_ns.items():
            total[self._index[region]] = active_ns / NS_PER_S
            stretch[self._index[region]] = active_ns / self._stretches[region]
        total[0] = max(0.0, (until_ns - self.start_ns) / NS_PER_S - float(total.sum()))
        return ColumnActivity(total, stretch)

    def _take_memory(self, activities: Sequence[Activity], until_ns: int) -> None:
        column = self.timeline.column(rows.MEMORY_USED)
        if column is None or column.last is None:
            return
        for activity in activities:
            start = max(activity.start_ns, self.frontier_ns)
            end = until_ns if activity.end_ns is None else min(activity.end_ns, until_ns)
            held = column.rows(start, end).values if start < end else ()
            if len(held):
                peak = column.signal.base(int(max(held)))
                self._memory_max[activity.region] = max(self._memory_max.get(activity.region, peak), peak)
            else:
                self._memory_max.setdefault(activity.region, column.signal.base(column.last.value))

    # ------------------------------------------------------------------ answers

    def _mixture(self, signal: Signal | None) -> Mixture | None:
        return next((m for m in self._mixtures if signal in m.signals), None)

    def mean(self, signal: Signal) -> float | None:
        """The device's own mean of a signal over all that the pool has seen, in base units (a counter's: per s)."""
        mixture = self._mixture(signal)
        return mixture.mean(signal) if mixture is not None else None

    def timing(self, signal: Signal) -> Timing | None:
        """How the moments that the signal's readings are of were found to follow from their time stamps."""
        mixture = self._mixture(signal)
        return mixture.timing if mixture is not None else None

    def busy_source(self) -> Signal | None:
        """The signal that busy time comes from."""
        column = self.timeline.best(BUSY_SOURCES)
        return column.signal if column is not None else None

    def energy_source(self) -> Signal | None:
        """The signal that energy comes from."""
        column = self.timeline.best(ENERGY_SOURCES)
        return column.signal if column is not None else None

    def pooled(self, region: str) -> Pooled:
        """What this device did for `region`."""
        name = region if region in self._index else OTHER
        index = self._index.get(name, -1)
        inside = self._inside.get(name, {})
        total_ns = sum(inside.values())
        weights = {self._index[part]: active_ns for part, active_ns in inside.items()}
        stretch_ns = total_ns / self._spells.get(name, 1)
        rates = {s: m.rate(s, weights, stretch_ns) for m in self._mixtures for s in m.signals if weights}
        return Pooled(
            region=name,
            device=self.timeline.device.uuid,
            executions=self._executions.get(name, 0),
            active_s=self._active_ns.get(name, 0.0) / NS_PER_S,
            inclusive_s=total_ns / NS_PER_S,
            rates=rates,
            busy_s=self._estimate(self.busy_source(), index),
            energy_j=self._estimate(self.energy_source(), index),
            busy_counter_s=self._counter(self.busy_source(), index),
            energy_counter_j=self._counter(self.energy_source(), index),
            memory_max=self._memory_max.get(name),
        )

    def rest(self, signal: Signal) -> float | None:
        """The counted share of `signal` that no region was active for; None where its total is not shared out."""
        return self._counter(signal, 0)

    def coverage(self, signal: Signal) -> float:
        """Share of the time since the start that the signal's windows cover."""
        mixture, elapsed_ns = self._mixture(signal), self.frontier_ns - self.start_ns
        return min(1.0, mixture.covered_s * NS_PER_S / elapsed_ns) if mixture is not None and elapsed_ns else 0.0

    def _measured(self, signal: Signal | None) -> Mixture | None:
        return next((m for m in self._mixtures if m.lead is signal and m.covered_s), None)

    def _counter(self, signal: Signal | None, index: int) -> float | None:
        mixture = self._measured(signal)
        if mixture is None or index < 0:
            return None
        # A counter starts at 0, before its region is met by the first window.
        shared = mixture.shares.shared
        return float(shared[index]) if index < len(shared) else 0.0

    def _estimate(self, signal: Signal | None, index: int) -> float | None:
        mixture = self._measured(signal)
        if mixture is None or not 0 <= index < mixture.columns:
            return None
        return float(mixture.targets()[index])


def _chain(activity: Activity, by_key: Mapping[Hashable, Activity]) -> Iterator[str]:
    """The regions that an activity is part of, from itself outwards, each name once."""
    names = set()
    at: Activity | None = activity
    while at is not None:
        if at.region not in names:
            names.add(at.region)
            yield at.region
        at = by_key.get(at.parent) if at.parent is not None else None
