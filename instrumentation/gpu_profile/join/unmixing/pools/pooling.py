"""What a device did for each region name, over all of the region's executions so far. Pure.

A pool receives slices of time in order. In each it determines the exclusive active time of the regions, matches it with
every sensor window that ended in the slice, and passes both to `mixture`. The device's measured totals are shared out
among regions. The shares only grow and always add up to the measured total, so they can be counters.
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
from gpu_profile.join.unmixing.pools.family import FAMILIES, SUPERSEDED
from gpu_profile.join.unmixing.pools.meter import Meter
from gpu_profile.join.unmixing.pools.mixture import PATIENCE_NS, Mixture
from gpu_profile.join.unmixing.pools.periods import Periods
from gpu_profile.join.unmixing.pools.pooled import Pooled
from gpu_profile.join.unmixing.pools.shares import CountedShare, Share
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.region_columns import OTHER, RegionColumns
from gpu_profile.join.unmixing.timing.expected import CONTRADICTED, GIVEN, DevicePrior
from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution, NamedActivities
from gpu_profile.join.unmixing.windows.sensor import Sensor
from gpu_profile.join.unmixing.windows.throttling import Throttling
from gpu_profile.units import NS_PER_S

#: Pieces of active time that are kept during a search for the timing. Above that, the oldest windows are dropped.
MOST_PIECES: Final = 20_000
#: Slices of active time that may wait for a window.
_MOST_FRESH: Final = 64
#: Time is processed in whole seconds: the equations cost the same for one window as for ten.
_STEP_NS: Final = NS_PER_S
_MOST_STEPS: Final = 5000
#: A source of busy time or power may be chosen if its coverage is at least this share of the best source's.
_WHOLE: Final = 0.97
#: The gains of one board's sensors differ by less than this factor.
_WIDEST_GAIN: Final = 1.5
#: Over less time than this, the means of two sensors are not comparable: their windows end at different times.
_GAIN_NS: Final = 5 * NS_PER_S
#: The pool waits for samples for at most this time.
_LATEST_NS: Final = NS_PER_S
#: The clock was set back if the new time is this far before the frontier.
_SET_BACK_NS: Final = 5 * NS_PER_S


class Pool:
    """The regions of one device, from `start_ns` on. `prior`: the prior of its sensors."""

    def __init__(self, timeline: Timeline, *, start_ns: int, prior: DevicePrior | None = None) -> None:
        self.timeline = timeline
        self.start_ns = self.frontier_ns = self._counted_ns = start_ns
        #: How often the clock was set back, by more than `_SET_BACK_NS`.
        self.set_back = 0
        self.attribution = RegionColumns()
        prior = prior or DevicePrior()
        index = self.attribution
        made = partial(Mixture, timeline, start_ns=start_ns, active_s=self._active_s, stamps=index.stamps, prior=prior)
        self._mixtures = [
            made(family, regions=index.regions, joint=index.joint, shared=index.is_shared, centres=index.centres)
            for family in FAMILIES
            if timeline.column(family[0]) is not None and (family[0] not in GIVEN or family[0] in prior.sensors)
        ]
        sampled = next((mixture for mixture in self._mixtures if mixture.lead is rows.POWER), None)
        for mixture in self._mixtures:
            if sampled is not None and mixture.lead in ENERGY_SOURCES:
                mixture.best_rate, mixture.beside = partial(self._power, mixture), sampled
        self._executions, self._memory_max = dict[str, int](), dict[int, float]()
        self._meter, self._throttling = Meter(timeline), Throttling(timeline)
        self.periods = Periods(index, start_ns)

    @property
    def _live(self) -> list[Mixture]:
        """The mixtures in use. A device may list a better source without ever giving a reading of it."""
        better = self._measured_leads
        return [m for m in self._mixtures if not self._superseded(m.lead, better.get(SUPERSEDED.get(m.lead, m.lead)))]

    @property
    def _measured_leads(self) -> dict[Signal, Mixture]:
        return {mixture.lead: mixture for mixture in self._mixtures if mixture.family.covered_s}

    def _superseded(self, signal: Signal, better: Mixture | None) -> bool:
        """Whether another family makes this one redundant.

        Utilisation that the driver stamps remains in use until GPM's timing is beyond doubt: the search for GPM's
        timing may never succeed. Power that the driver stamps resolves short regions better than any other signal.
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
        """The signals that this pool uses."""
        return [signal for mixture in self._live for signal in mixture.signals]

    @property
    def searches(self) -> int:
        """How often a sensor's timing was searched."""
        return sum(mixture.searches for mixture in self._mixtures)

    @property
    def whole(self) -> bool:
        """Whether the frontier has reached the ends of all counted executions."""
        return self.frontier_ns >= self._counted_ns

    def watermark_ns(self, now_ns: int) -> int:
        """The time up to which the samples of all used signals have arrived, never more than 1 s before `now_ns`."""
        measured = self._measured_leads
        # Utilisation arrives late. If there is a better source, the pool does not wait for it.
        needed = [s for mixture in self._live if SUPERSEDED.get(mixture.lead) not in measured for s in mixture.signals]
        mark = self.timeline.watermark_ns(needed)
        return max(now_ns if mark is None else mark, now_ns - _LATEST_NS)

    @property
    def regions(self) -> list[str]:
        """The regions with executions of their own on this device, in order of appearance."""
        return list(self._executions)

    @property
    def overflowed(self) -> int:
        """Executions that were pooled under `OTHER`."""
        return self._executions.get(OTHER, 0)

    def count(self, region: str, times: int = 1, *, until_ns: int = 0, marked: int = 0) -> None:
        """Count executions of `region` that ended on this device, the last one by `until_ns`. `marked` of them have
        stamps of the device."""
        self.attribution.stamps.counted += times
        self.attribution.stamps.marked += marked
        self.attribution.column(region)
        name = self.attribution.name(region)
        self._executions[name] = self._executions.get(name, 0) + times
        self._counted_ns = max(self._counted_ns, until_ns)

    def due(self, until_ns: int) -> bool:
        """Whether `advance` would process any time."""
        return until_ns - until_ns % _STEP_NS > self.frontier_ns or until_ns < self.frontier_ns - _SET_BACK_NS

    def advance(
        self, activities: NamedActivities | Sequence[DeviceExecution], until_ns: int, *, final: bool = False
    ) -> None:
        """Process the time from the frontier to `until_ns`; `activities` are all that overlap it.

        Whole seconds only, so that results do not depend on the times of the calls. `final`: the rest as well."""
        until_ns = self._due(until_ns, final=final)
        if until_ns > self.frontier_ns or final:
            named = activities if isinstance(activities, NamedActivities) else NamedActivities.of(activities, until_ns)
            self.attribution.watch(named, self.frontier_ns, until_ns)
            numbered = named.numbered(self.attribution.column)
            # Activities that still run end at `until_ns` here.
            self._meter.note(numbered, self.frontier_ns, until_ns - 1)
            self._take(numbered, until_ns, final=final)

    def take(self, activities: Activities, until_ns: int, *, final: bool = False) -> None:
        """Like `advance`, for activities whose columns are numbered by `attribution.column`."""
        until_ns = self._due(until_ns, final=final)
        if until_ns > self.frontier_ns or final:
            self._meter.note(activities, self.frontier_ns, until_ns)
            self._take(activities, until_ns, final=final)

    def _due(self, until_ns: int, *, final: bool) -> int:
        """The time up to which `advance` can go."""
        if until_ns < self.frontier_ns - _SET_BACK_NS:
            self.set_back += 1
            self.skip(until_ns - self.frontier_ns)
        return max(self.frontier_ns, until_ns if final else until_ns - until_ns % _STEP_NS)

    def skip(self, ahead_ns: int) -> None:
        """Continue this much later, or earlier if negative: the clock was set. No region has the time in between."""
        self._meter.read(self.frontier_ns, final=True)
        self._throttling.read(self.frontier_ns, final=True)
        self.start_ns, self.frontier_ns = self.start_ns + ahead_ns, self.frontier_ns + ahead_ns
        self.attribution.skip(ahead_ns)
        for mixture in self._mixtures:
            mixture.skip(ahead_ns)

    def _take(self, activities: Activities, until_ns: int, *, final: bool) -> None:
        # A stamp that is far in the future must not cause a step for every second until then.
        step_ns = _STEP_NS * (1 + max(0, until_ns - self.frontier_ns) // (_MOST_STEPS * _STEP_NS))
        first = self.frontier_ns - self.frontier_ns % step_ns + step_ns
        edges = [self.frontier_ns, *range(first, until_ns, step_ns), until_ns]
        for step, present in zip(edges[1:], activities.slices(edges), strict=True):
            self.attribution.take(present, (self.frontier_ns, step))
            self._take_memory(present)
            self._throttling.note(present)
            self.frontier_ns = step
            self._take_windows(final=False)
            self.periods.reach(self.frontier_ns, self._mixtures)
        # Not before: the activities are numbered for the whole slice.
        if (swapped := self.attribution.swap()) is not None:
            self._replace_region(*swapped)
        if final:
            self._take_windows(final=True)
        self._meter.read(self.frontier_ns, final=final)
        self._throttling.read(self.frontier_ns, final=final)

    def _take_windows(self, *, final: bool) -> None:
        """Match the windows that ended by the frontier with the active time so far."""
        since_ns, live = self.attribution.since_ns, self._live
        due = [mixture for mixture in live if mixture.fetch(since_ns, self.frontier_ns, final=final)]
        if not due and self.attribution.fresh <= _MOST_FRESH:
            return
        needed = min((mixture.needs_ns for mixture in live), default=self.frontier_ns)
        active = self.attribution.recent(needed, MOST_PIECES)
        for mixture in live if self.attribution.since_ns > needed else ():
            mixture.forget(self.attribution.since_ns)
        for mixture in due:
            mixture.take(active, self.attribution.columns, final=final)
        self.attribution.forget(min((mixture.needs_ns for mixture in live), default=self.frontier_ns))

    def _active_s(self) -> Floats:
        return self.attribution.active(self.frontier_ns - self.start_ns)

    def _replace_region(self, region: str, busier: str, columns: Sequence[tuple[int, int]]) -> None:
        """Pool `region` under `OTHER`: merge its columns into others. `busier` gets columns of its own."""
        for mixture in self._mixtures:
            mixture.counted([])
        for column, into in columns:
            for mixture in self._mixtures:
                mixture.merge(column, into)
            self._meter.merge(column, into)
            self._throttling.merge(column, into)
            if (peak := self._memory_max.pop(column, None)) is not None:
                self._memory_max[into] = max(self._memory_max.get(into, peak), peak)
        self._executions[OTHER] = self._executions.get(OTHER, 0) + self._executions.pop(region, 0)
        self._executions.setdefault(busier, 0)

    def _take_memory(self, activities: Activities) -> None:
        column = self.timeline.column(rows.MEMORY_USED)
        if column is None or column.last is None or not len(activities.starts):
            return
        peaks, covered = column.maxima(activities.starts, activities.ends)
        # Memory is read about once a second. Between two readings, the latest value counts.
        peaks = np.where(covered, peaks, -np.inf)
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
        """The device's own mean of a signal over the pool's time, in base units (for a counter: per s)."""
        mixture = self._mixture(signal)
        return mixture.family.mean(signal) if mixture is not None else None

    @property
    def unexpected(self) -> list[Signal]:
        """The signals whose readings contradict the priors of their sensors."""
        return [mixture.lead for mixture in self._live if mixture.unexpected]

    def sensor(self, signal: Signal) -> Sensor | None:
        """The timing that was determined for the signal's sensor; None if the signal is not used."""
        mixture = self._mixture(signal)
        return mixture.sensor if mixture is not None else None

    def busy_source(self) -> Signal | None:
        """The signal of counted busy time, and of a region's busy time if no signal has a rate for it."""
        column, measured = self.timeline.best(BUSY_SOURCES), self._measured_leads
        # A source that stopped is not replaced by one with a smaller total.
        first = next((signal for signal in BUSY_SOURCES if signal in measured), None)
        return first or (column.signal if column is not None else None)

    def energy_source(self) -> Signal | None:
        """The signal from which energy is taken; None if the device has none."""
        column = self.timeline.best(ENERGY_SOURCES)
        return column.signal if column is not None else None

    def pooled(self, region: str) -> Pooled:
        """What this device did for `region`."""
        columns = self.attribution
        name = columns.name(region, new=False)
        inside, own = columns.inside(name), columns.own(name)
        alone = np.where(columns.is_shared(len(inside)), 0.0, inside)
        rates = self._rates(inside) if inside.any() else {}
        apart = alone.any() and not np.array_equal(alone, inside)
        solo = self._rates(alone) if apart else {}
        source = self._clearest(rates, BUSY_SOURCES) or self.busy_source()
        meter = self._clearest(rates, POWER_SOURCES) or self.energy_source()
        busy, energy = self._measured(source), self._measured(self.energy_source())
        column = columns.column(name, new=False)
        return Pooled(
            region=name,
            device=self.timeline.device.uuid,
            executions=self._executions.get(name, 0),
            active_s=columns.active_s(name),
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
        """The rates of every signal, or of `sources`, while columns are active, weighted by active times. Power from
        the driver's samples is scaled to the energy counter, and refused if it contradicts the counter's own rate."""
        rates = {s: m.rate(s, weights) for m in self._live for s in m.signals if sources is None or s in sources}
        power, counter, gain = rates.get(rows.POWER), rates.get(rows.ENERGY), self._gain()
        if power is not None and not 1 / _WIDEST_GAIN <= gain <= _WIDEST_GAIN:
            rates[rows.POWER] = power._replace(half_width=math.inf, reason=CONTRADICTED)
        elif power is not None:
            power = power._replace(value=power.value * gain, half_width=power.half_width * gain)
            if counter is not None and not (counter.reason or power.reason):
                apart = abs(power.value - counter.value) > power.half_width + counter.half_width
                power = power._replace(half_width=math.inf, reason=CONTRADICTED) if apart else power
            rates[rows.POWER] = power
        return rates

    def _gain(self) -> float:
        """The ratio of the energy counter's energy to that of the driver's power samples, while both cover the time."""
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
        (counted_mean, _), (sampled_mean, _) = (column.means(*edges) for column in columns)
        return float(counted_mean[0] / sampled_mean[0]) if sampled_mean[0] > 0 else math.inf

    def _power(self, mixture: Mixture, weights: Floats) -> Rate:
        """The narrowest rate of power while columns are active, weighted by active times; else the one of `mixture`."""
        source = self._clearest(rates := self._rates(weights, POWER_SOURCES), POWER_SOURCES)
        return mixture.rate(mixture.lead, weights) if source is None else rates[source]

    def _clearest(self, rates: Mapping[Signal, Rate], sources: Sequence[Signal]) -> Signal | None:
        """The source with the narrowest rate, among the sources with nearly the best coverage up to now; None if none
        has a rate."""
        families = {m.lead: m.family for m in self._live if m.lead in sources}
        covered = {s: f.covered_s / max(1, f.seen_ns - self.start_ns) for s, f in families.items()}
        whole = max(covered.values(), default=0.0) * _WHOLE
        since_ns = max((f.seen_ns for f in families.values()), default=0) - PATIENCE_NS - _LATEST_NS
        half_widths = {
            signal: rates[signal].half_width
            for signal, family in families.items()
            if signal in rates and not rates[signal].reason and covered[signal] >= whole and family.seen_ns >= since_ns
        }
        return min(half_widths, key=lambda signal: half_widths[signal], default=None)

    def counted(self, region: str, signal: Signal | None) -> CountedShare | None:
        """The counted share of `signal` (base unit, times s for a mean) of `region`; None if it is not shared out.

        Both parts follow the best estimate and never fall. All regions and the rest add up to the measured total.
        """
        columns, mixture = self.attribution, self._measured(signal)
        own = columns.own(columns.name(region, new=False))
        # A counter starts at 0, before the first window of its region.
        return mixture.counted(own) if mixture is not None and own else None

    def rest(self, signal: Signal | None) -> CountedShare | None:
        """The counted share of `signal` outside all regions; None if its total is not shared out."""
        mixture = self._measured(signal)
        return None if mixture is None else mixture.counted([0])

    def outside(self, signal: Signal | None) -> Share | None:
        """The current share (a ratio) of `signal`'s measured total that lies outside regions; None if the total is not
        shared out or is 0."""
        mixture = self._measured(signal)
        share = mixture.share([0]) if mixture is not None else None
        total = float(mixture.family.measured[0]) if mixture is not None else 0.0
        if share is None or total <= 0:
            return None
        return Share(share.value / total, None if share.half_width is None else share.half_width / total)

    def coverage(self, signal: Signal) -> float:
        """The share of the time since the start that the signal's windows cover."""
        mixture = self._mixture(signal)
        if mixture is None:
            return 0.0
        # Windows that have not been fetched yet are not missing.
        elapsed_ns = max(mixture.family.seen_ns, self.frontier_ns - PATIENCE_NS) - self.start_ns
        return min(1.0, mixture.family.covered_s * NS_PER_S / elapsed_ns) if elapsed_ns > 0 else 0.0

    def _measured(self, signal: Signal | None) -> Mixture | None:
        return next((m for m in self._live if m.lead is signal and m.family.covered_s), None)
