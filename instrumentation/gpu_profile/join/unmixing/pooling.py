"""What a device did for each region name, over all of the region's executions so far. Pure.

A pool is fed slices of time in order. In each it finds out which regions were active (exclusively), sets that beside
every sensor window that ended in the slice, and leaves the mixture to `unmix`. What the device used in all is shared
out among regions so that the shares only ever grow and always add up to what was measured: they can be counters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, POWER_SOURCES, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Floats, Timeline
from gpu_profile.join.unmixing.activities import Activities, DeviceExecution, Named
from gpu_profile.join.unmixing.expected import CONTRADICTED, GIVEN, DevicePrior
from gpu_profile.join.unmixing.family import FAMILIES, SUPERSEDED
from gpu_profile.join.unmixing.meter import Meter
from gpu_profile.join.unmixing.mixture import PATIENCE_NS, Mixture
from gpu_profile.join.unmixing.pooled import Pooled
from gpu_profile.join.unmixing.region_columns import OTHER, RegionColumns
from gpu_profile.join.unmixing.sensor import Sensor
from gpu_profile.join.unmixing.shares import CountedShare, Share
from gpu_profile.join.unmixing.throttling import Throttling
from gpu_profile.join.unmixing.unmix import Rate
from gpu_profile.units import NS_PER_S

#: Pieces of active time that are kept while timings are looked for; with more, the oldest windows are let go.
MOST_PIECES: Final = 20_000
#: Slices of active time that wait for a window to be set beside.
_MOST_FRESH: Final = 64
#: Time is taken in by the second: the equations cost the same for one window as for ten.
_STEP_NS: Final = NS_PER_S
_MOST_STEPS: Final = 5000
#: A source of busy time takes the place of another one if it covers this share of what that one does.
_WHOLE: Final = 0.97
#: The gains of one board's sensors differ by less than this many times.
_WIDEST_GAIN: Final = 1.5
#: Over less time than this, two sensors' means differ by what is in one and not yet in the other.
_GAIN_NS: Final = 5 * NS_PER_S
#: Samples are waited for no longer than this.
_LATEST_NS: Final = NS_PER_S
#: The clock was set back if time is this far behind what was taken in already.
_SET_BACK_NS: Final = 5 * NS_PER_S


class Pool:
    """The regions of one device, from `start_ns` on. `known` is what was known of its sensors before."""

    def __init__(self, timeline: Timeline, *, start_ns: int, known: DevicePrior | None = None) -> None:
        self.timeline = timeline
        self.start_ns = self.frontier_ns = start_ns
        #: How often the clock was set back by more than a moment.
        self.set_back = 0
        self.attribution = RegionColumns()
        known = known or DevicePrior()
        told = self.attribution
        made = partial(Mixture, timeline, start_ns=start_ns, active_s=self._active_s, stamps=told.stamps, known=known)
        self._mixtures = [
            made(family, regions=told.regions, joint=told.joint)
            for family in FAMILIES
            if timeline.column(family[0]) is not None and (family[0] not in GIVEN or family[0] in known.sensors)
        ]
        sampled = next((mixture for mixture in self._mixtures if mixture.lead is rows.POWER), None)
        for mixture in self._mixtures:
            if sampled is not None and mixture.lead in ENERGY_SOURCES:
                mixture.clearest, mixture.beside = partial(self._power, mixture.lead), sampled
        self._executions: dict[str, int] = {}
        self._counted_ns = start_ns
        self._memory_max: dict[int, float] = {}
        self._meter = Meter(timeline)
        self._throttling = Throttling(timeline)

    @property
    def _live(self) -> list[Mixture]:
        """The mixtures that are needed: a device may list a better source, and never give a reading of it."""
        better = self._measured_leads
        return [m for m in self._mixtures if not self._superseded(m.lead, better.get(SUPERSEDED.get(m.lead, m.lead)))]

    @property
    def _measured_leads(self) -> dict[Signal, Mixture]:
        return {mixture.lead: mixture for mixture in self._mixtures if mixture.family.covered_s}

    def _superseded(self, signal: Signal, better: Mixture | None) -> bool:
        """Whether another family says all that this one could.

        Not so utilisation that the driver stamps itself, until the timing of GPM is beyond doubt: the moments that its
        readings are of may never be found. Power that the driver stamps itself says more of short regions than any.
        """
        column = self.timeline.column(signal)
        stamped = column is not None and column.stamped
        if signal in GIVEN:
            return not stamped
        if better is None or better.lead is signal:
            return False
        settled = better.locked and not better.others and not better.drifts
        return settled or signal is not rows.UTILIZATION or not stamped

    @property
    def joined(self) -> list[Signal]:
        """The signals that this pool takes in."""
        return [signal for mixture in self._live for signal in mixture.signals]

    @property
    def searches(self) -> int:
        """How often a sensor's timing was looked for."""
        return sum(mixture.searches for mixture in self._mixtures)

    @property
    def whole(self) -> bool:
        """Whether the time of all executions that were counted has been taken in."""
        return self.frontier_ns >= self._counted_ns

    def known_ns(self, now_ns: int) -> int:
        """Up to when samples have come of all that this pool takes in; none is waited for for more than a second."""
        measured = self._measured_leads
        # Utilisation comes late: beside a better source it is not waited for.
        needed = [s for mixture in self._live if SUPERSEDED.get(mixture.lead) not in measured for s in mixture.signals]
        mark = self.timeline.watermark_ns(needed)
        return max(now_ns if mark is None else mark, now_ns - _LATEST_NS)

    @property
    def regions(self) -> list[str]:
        """The regions that have executions of their own here, in order of appearance."""
        return list(self._executions)

    @property
    def overflowed(self) -> int:
        """Executions that were pooled under `OTHER`."""
        return self._executions.get(OTHER, 0)

    def count(self, region: str, times: int = 1, *, until_ns: int = 0, marked: int = 0) -> None:
        """Executions of `region` have ended on this device, the last one by `until_ns`; the device itself stamped so
        many of them (`marked`)."""
        self.attribution.stamps.counted += times
        self.attribution.stamps.marked += marked
        self.attribution.column(region)
        name = self.attribution.name(region)
        self._executions[name] = self._executions.get(name, 0) + times
        self._counted_ns = max(self._counted_ns, until_ns)

    def due(self, until_ns: int) -> bool:
        """Whether `advance` would take anything in."""
        return until_ns - until_ns % _STEP_NS > self.frontier_ns or until_ns < self.frontier_ns - _SET_BACK_NS

    def advance(self, activities: Named | Sequence[DeviceExecution], until_ns: int, *, final: bool = False) -> None:
        """Take in the time from the frontier to `until_ns`; `activities` are all that overlap it.

        Time is taken in by the second of the clock, so that it does not matter when this is called: what is left
        of the last one waits for more, unless it is `final`.
        """
        until_ns = self._due(until_ns, final=final)
        if until_ns > self.frontier_ns or final:
            named = activities if isinstance(activities, Named) else Named.of(activities, until_ns)
            self.attribution.watch(named, self.frontier_ns, until_ns)
            numbered = named.numbered(self.attribution.column)
            # What still runs ends at `until_ns` here.
            self._meter.note(numbered, self.frontier_ns, until_ns - 1)
            self._take(numbered, until_ns, final=final)

    def take(self, activities: Activities, until_ns: int, *, final: bool = False) -> None:
        """The same as `advance`, for activities whose columns are numbered by `attribution.column`."""
        until_ns = self._due(until_ns, final=final)
        if until_ns > self.frontier_ns or final:
            self._meter.note(activities, self.frontier_ns, until_ns)
            self._take(activities, until_ns, final=final)

    def _due(self, until_ns: int, *, final: bool) -> int:
        """How far time can be taken in."""
        if until_ns < self.frontier_ns - _SET_BACK_NS:
            self._set_back(until_ns)
        return max(self.frontier_ns, until_ns if final else until_ns - until_ns % _STEP_NS)

    def _set_back(self, until_ns: int) -> None:
        """Go on from an earlier moment: totals and equations stand, the active time before it does not."""
        self.set_back += 1
        self.attribution.restart(until_ns)
        self._throttling.restart()
        for mixture in self._mixtures:
            mixture.restart(until_ns)
        self.start_ns -= self.frontier_ns - until_ns
        self.frontier_ns = until_ns

    def _take(self, activities: Activities, until_ns: int, *, final: bool) -> None:
        # A stamp that is far in the future must not mean a step for every second until then.
        step_ns = _STEP_NS * (1 + max(0, until_ns - self.frontier_ns) // (_MOST_STEPS * _STEP_NS))
        first = self.frontier_ns - self.frontier_ns % step_ns + step_ns
        edges = [self.frontier_ns, *range(first, until_ns, step_ns), until_ns]
        for step, present in zip(edges[1:], activities.slices(edges), strict=True):
            self.attribution.take(present, (self.frontier_ns, step))
            self._take_memory(present)
            self._throttling.note(present)
            self.frontier_ns = step
            self._take_windows(final=False)
        # Not before: the activities are numbered for all of the slice.
        swapped = self.attribution.swap()
        if swapped is not None:
            self._give_up(*swapped)
        if final:
            self._take_windows(final=True)
        self._meter.read(self.frontier_ns, final=final)
        self._throttling.read(self.frontier_ns, final=final)

    def _take_windows(self, *, final: bool) -> None:
        """Set the windows that ended by the frontier beside the active time that is known by now."""
        since_ns, live = self.attribution.since_ns, self._live
        due = [mixture for mixture in live if mixture.fetch(since_ns, self.frontier_ns, final=final)]
        if not due and self.attribution.fresh <= _MOST_FRESH:
            return
        needed = min((mixture.needs_ns for mixture in live), default=self.frontier_ns)
        active = self.attribution.recent(needed, MOST_PIECES)
        if self.attribution.since_ns > needed:
            for mixture in live:
                mixture.forget(self.attribution.since_ns)
        for mixture in due:
            mixture.take(active, self.attribution.columns, final=final)

    def _active_s(self) -> Floats:
        return self.attribution.active(self.frontier_ns - self.start_ns)

    def _give_up(self, region: str, busier: str, columns: Sequence[tuple[int, int]]) -> None:
        """`busier` takes the place of `region`, whose columns become part of others."""
        for column, into in columns:
            for mixture in self._mixtures:
                mixture.merge(column, into)
            self._meter.merge(column, into)
            self._throttling.merge(column, into)
            if column in self._memory_max:
                peak = self._memory_max.pop(column)
                self._memory_max[into] = max(self._memory_max.get(into, peak), peak)
        self._executions[OTHER] = self._executions.get(OTHER, 0) + self._executions.pop(region, 0)
        self._executions.setdefault(busier, 0)

    def _take_memory(self, activities: Activities) -> None:
        column = self.timeline.column(rows.MEMORY_USED)
        if column is None or column.last is None or not len(activities.starts):
            return
        peaks, known = column.maxima(activities.starts, activities.ends)
        # Memory is read about once a second: between two readings, what was in use last must do.
        peaks = np.where(known, peaks, -np.inf)
        now = column.signal.base(column.last.value)
        for region in np.unique(activities.columns).tolist():
            peak = float(peaks[activities.columns == region].max())
            if np.isfinite(peak):
                self._memory_max[region] = max(self._memory_max.get(region, peak), peak)
            else:
                self._memory_max.setdefault(region, now)

    # ------------------------------------------------------------------ answers

    def _mixture(self, signal: Signal | None) -> Mixture | None:
        return next((m for m in self._live if signal in m.signals), None)

    def mean(self, signal: Signal) -> float | None:
        """The device's own mean of a signal over all that the pool has seen, in base units (a counter's: per s)."""
        mixture = self._mixture(signal)
        return mixture.family.mean(signal) if mixture is not None else None

    @property
    def unexpected(self) -> list[Signal]:
        """The signals whose readings contradict what was known of their sensors before."""
        return [mixture.lead for mixture in self._live if mixture.unexpected]

    def sensor(self, signal: Signal) -> Sensor | None:
        """What the signal's readings were found to be of."""
        mixture = self._mixture(signal)
        return mixture.sensor if mixture is not None else None

    def busy_source(self) -> Signal | None:
        """The signal that counted busy time comes from, and a region's where none has an answer."""
        column, measured = self.timeline.best(BUSY_SOURCES), self._measured_leads
        # One that stopped is not left for another, whose total is less.
        first = next((signal for signal in BUSY_SOURCES if signal in measured), None)
        return first or (column.signal if column is not None else None)

    def energy_source(self) -> Signal | None:
        """The signal that energy comes from."""
        column = self.timeline.best(ENERGY_SOURCES)
        return column.signal if column is not None else None

    def pooled(self, region: str) -> Pooled:
        """What this device did for `region`."""
        known = self.attribution
        name = known.name(region, new=False)
        inside, own = known.inside(name), known.own(name)
        alone = np.where(known.is_shared(len(inside)), 0.0, inside)
        rates = self._rates(inside) if inside.any() else {}
        apart = alone.any() and not np.array_equal(alone, inside)
        solo = self._rates(alone) if apart else {}
        source = self._clearest(rates, BUSY_SOURCES) or self.busy_source()
        meter = self._clearest(rates, POWER_SOURCES) or self.energy_source()
        busy, energy = self._measured(source), self._measured(self.energy_source())
        column = known.column(name, new=False)
        return Pooled(
            region=name,
            device=self.timeline.device.uuid,
            executions=self._executions.get(name, 0),
            active_s=known.active_s(name),
            inclusive_s=float(inside.sum()) / NS_PER_S,
            rates=rates,
            alone=solo,
            busy=None if busy is None else busy.share(own),
            energy=None if energy is None else energy.share(own),
            memory_max=self._memory_max.get(column),
            metered=self._meter.metered.get(column),
            throttled=self._throttling.shares(column),
            busy_source=source,
            energy_source=meter,
        )

    def _rates(self, weights: Floats, sources: Sequence[Signal] | None = None) -> dict[Signal, Rate]:
        """The rates of every signal, or of some, while columns are active, by their active times: power by the driver's
        samples in the joules of the energy counter, and none that contradicts the counter's own."""
        rates = {s: m.rate(s, weights) for m in self._live for s in m.signals if sources is None or s in sources}
        told, counted, gain = rates.get(rows.POWER), rates.get(rows.ENERGY), self._gain()
        if told is not None and not 1 / _WIDEST_GAIN <= gain <= _WIDEST_GAIN:
            rates[rows.POWER] = told._replace(half_width=math.inf, reason=CONTRADICTED)
        elif told is not None:
            told = told._replace(value=told.value * gain, half_width=told.half_width * gain)
            if counted is not None and not (counted.reason or told.reason):
                apart = abs(told.value - counted.value) > told.half_width + counted.half_width
                told = told._replace(half_width=math.inf, reason=CONTRADICTED) if apart else told
            rates[rows.POWER] = told
        return rates

    def _gain(self) -> float:
        """What the energy counter counts for a joule of the driver's power samples, over the time that both cover."""
        measured = self._measured_leads
        counter, sampled = measured.get(rows.ENERGY), measured.get(rows.POWER)
        if counter is None or sampled is None:
            return 1.0
        columns = [self.timeline.columns[rows.ENERGY], self.timeline.columns[rows.POWER]]
        since_ns = max(self.start_ns, *(column.oldest_ns or 0 for column in columns))
        until_ns = min(counter.family.seen_ns, sampled.family.seen_ns)
        if until_ns - since_ns < _GAIN_NS:
            return 1.0
        edges = np.array([since_ns]), np.array([until_ns])
        (counted, _), (told, _) = (column.means(*edges) for column in columns)
        return float(counted[0] / told[0]) if told[0] > 0 else math.inf

    def _power(self, lead: Signal, weights: Floats) -> Rate:
        """The clearest rate of power while columns are active, by their active times."""
        rates = self._rates(weights, POWER_SOURCES)
        return rates[self._clearest(rates, POWER_SOURCES) or lead]

    def _clearest(self, rates: Mapping[Signal, Rate], sources: Sequence[Signal]) -> Signal | None:
        """The one of some sources with the narrowest answer, among those that cover nearly all that is covered up to
        now; None if none has an answer."""
        families = {m.lead: m.family for m in self._live if m.lead in sources}
        covered = {s: f.covered_s / max(1, f.seen_ns - self.start_ns) for s, f in families.items()}
        whole = max(covered.values(), default=0.0) * _WHOLE
        since_ns = max((f.seen_ns for f in families.values()), default=0) - PATIENCE_NS - _LATEST_NS
        told = {
            signal: rates[signal].half_width
            for signal, family in families.items()
            if signal in rates and not rates[signal].reason and covered[signal] >= whole and family.seen_ns >= since_ns
        }
        return min(told, key=lambda signal: told[signal], default=None)

    def counted(self, region: str, signal: Signal | None) -> CountedShare | None:
        """The counted share of `signal` (base unit, times s for a mean) of `region`; None where it is not shared out.

        Both parts follow the best estimate without ever falling. All regions' and the rest add up to what was measured.
        """
        known, mixture = self.attribution, self._measured(signal)
        own = known.own(known.name(region, new=False))
        # A counter starts at 0, before its region is met by the first window.
        return mixture.counted(own) if mixture is not None and own else None

    def rest(self, signal: Signal | None) -> CountedShare | None:
        """The counted share of `signal` that no region was active for; None where its total is not shared out."""
        mixture = self._measured(signal)
        return None if mixture is None else mixture.counted([0])

    def outside(self, signal: Signal | None) -> Share | None:
        """The part (a ratio) of what was measured of `signal` that no region was active for, as is known now; None
        where it is not shared out, or nothing was measured."""
        mixture = self._measured(signal)
        found = mixture.share([0]) if mixture is not None else None
        total = float(mixture.family.measured[0]) if mixture is not None else 0.0
        if found is None or total <= 0:
            return None
        return Share(found.value / total, None if found.half_width is None else found.half_width / total)

    def coverage(self, signal: Signal) -> float:
        """Share of the time since the start that the signal's windows cover."""
        mixture = self._mixture(signal)
        if mixture is None:
            return 0.0
        # Windows that are still to be fetched are not missing.
        elapsed_ns = max(mixture.family.seen_ns, self.frontier_ns - PATIENCE_NS) - self.start_ns
        return min(1.0, mixture.family.covered_s * NS_PER_S / elapsed_ns) if elapsed_ns > 0 else 0.0

    def _measured(self, signal: Signal | None) -> Mixture | None:
        return next((m for m in self._live if m.lead is signal and m.family.covered_s), None)
