"""The windows of one signal family matched with the regions that were active in them. Pure.

The sensor's timing is the one with the least residual on a grid of lags, phases, windows and stamp errors. Windows are
kept during the search. Then the timing is locked, and only equations remain. If residuals grow, the search begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from gpu_profile.catalogue import POWER_SOURCES, Kind, Signal
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.unmixing.pools.family import IMMEDIATE, SignalFamily
from gpu_profile.join.unmixing.pools.period_sums import PeriodSums
from gpu_profile.join.unmixing.pools.schedule import SearchSchedule
from gpu_profile.join.unmixing.pools.shares import CountedShare, Share, Shares, Targets, drawn, targets
from gpu_profile.join.unmixing.pools.steadying import Steadying
from gpu_profile.join.unmixing.pools.unmeasured import beside_left_out
from gpu_profile.join.unmixing.pools.watch import ResidualWatch
from gpu_profile.join.unmixing.solving.common_factor import restored
from gpu_profile.join.unmixing.solving.design import Design, Rows, Windows
from gpu_profile.join.unmixing.solving.equations import Equations, sized
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.stamps import StampErrors, Stamps
from gpu_profile.join.unmixing.solving.unmix import TIMING, Fit
from gpu_profile.join.unmixing.solving.unseen import UnseenParts
from gpu_profile.join.unmixing.timing.correction import Corrected, corrected
from gpu_profile.join.unmixing.timing.expected import DevicePrior
from gpu_profile.join.unmixing.timing.timing_search import Search
from gpu_profile.join.unmixing.timing.timings import LONGEST_LAG_NS, shapes
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.probes import Bools, Probe, ProbeKind, choose, slots_of
from gpu_profile.join.unmixing.windows.sensor import Sensor
from gpu_profile.units import NS_PER_S

#: A timing is sure if readings are in step with the sensor, no rivals fit, and its lag has at most this standard
#: deviation.
_SURE_LAG_MS: Final = 0.2
#: Once the timing is locked, windows of this much time are added together: the cost is hardly more than for one.
PATIENCE_NS: Final = 5 * NS_PER_S
#: While stamps may be early, readings wait this long, until the activity after them has been recorded.
_AHEAD_NS: Final = 60_000_000
#: How far back any lag on the grid may look: renewals and stamp errors are added to the grid's longest lag.
_LONGEST_LOOK_NS: Final = 2 * LONGEST_LAG_NS


class Mixture:
    """One family of signals of one device. The pool numbers the columns; column 0 is the time outside regions.

    `active_s` returns the exclusive active time of every column. `regions`, `joint`, `shared` and `centres` are methods
    of `RegionColumns`. `prior` has the assumptions about the device's sensors before any reading.
    """

    def __init__(
        self, timeline: Timeline, family: tuple[Signal, ...], *, start_ns: int,
        active_s: Callable[[], Floats], regions: Callable[[], Iterable[Sequence[int]]], joint: Callable[..., Floats],
        shared: Callable[[int], Bools], centres: Callable[[Ints], Floats], stamps: Stamps, prior: DevicePrior,
    ) -> None:  # fmt: skip
        self.family = SignalFamily(timeline, family, start_ns)
        self.lead = family[0]
        self._reference: Floats = np.zeros(1)  # the rates that weight the probes of the timing
        self.sensor, self.locked = Sensor(), self.lead in IMMEDIATE
        #: Why rates of this device are not trusted (empty if they are), and the prior of the sensor's timing, if any.
        self.untrusted, self._expected = prior.untrusted, prior.sensors.get(self.lead)
        #: Whether the readings contradict the prior, and whether windows that were dropped since did.
        self.unexpected = self._contradicted = False
        self._prior = self._expected and self._expected.prior
        #: The function with the best rates of the lead signal, and another mixture whose windows it also uses, if any.
        self.best_rate: Callable[[Floats], Rate] = partial(self.rate, self.lead)
        self.beside: Mixture | None = None
        self._active_s, self._regions, self._joint, self._shared = active_s, regions, joint, shared
        self._centres_of, self._centres = centres, np.zeros((1, 0), np.float32)  # the means of the probes `CENTRED`
        self._targeted: Targets | None = None  # cached: every region requests it
        self._stamps, self._origin_ns = stamps, start_ns
        self._whole = prior.whole  # whether the counter measures all of the time
        self._unseen = UnseenParts(whole=self._whole, expected=self._expected is not None)
        self._shares, self._equations, self._steadying = Shares(), Equations(), Steadying(self.lead)
        self._settled = Equations()  # as of the last time the timing was beyond doubt; they survive a new search
        self._watch, self._waiting, self._kept = ResidualWatch(), list[Windows](), list[Windows]()
        self._schedule, self.searches, self._effect = SearchSchedule(), 0, 1.0  # windows that equal one independent one
        #: The timings that the latest search could not rule out, and by column each signal's rates under its rivals.
        self._candidates: tuple[Sensor, ...] = ()
        self.others: list[list[Floats]] = []
        self._fits, self.period = dict[int, Fit](), PeriodSums()  # the windows of the pool's present period

    @property
    def n(self) -> int:
        """Windows taken in."""
        return self._equations.n

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals of the family that have readings."""
        return self.family.signals

    @property
    def drifts(self) -> int:
        """How often the search was repeated because the residual had grown."""
        return self._watch.drifts

    @property
    def timed(self) -> bool:
        """Whether the timing is more than a guess."""
        return self.locked or bool(self._candidates)

    @property
    def columns(self) -> int:
        """Columns that occurred in a window, the one outside regions included."""
        return self._equations.columns

    @property
    def needs_ns(self) -> int:
        """The time from which this mixture still needs active time."""
        oldest, needs_ns = self._kept or self._waiting, self.family.needs_ns
        return (min(int(oldest[0].starts[0]), needs_ns) if oldest else needs_ns) - self._reach_ns

    @property
    def _reach_ns(self) -> int:
        """How far before its row a reading may extend."""
        return self.sensor.reach_ns if self.locked else max(s.reach_ns for s in shapes(self.lead)) + _LONGEST_LOOK_NS

    # ------------------------------------------------------------------ taking in

    def fetch(self, since_ns: int, until_ns: int, *, final: bool = False) -> bool:
        """Fetch the windows that ended by `until_ns`; active time begins at `since_ns`. True if `take` is due."""
        if self.locked and not final and until_ns - self.family.seen_ns < PATIENCE_NS:
            return False
        ahead = 0 if final else self.sensor.ahead_ns if self.locked else _AHEAD_NS
        windows, absent = self.family.fetch(until_ns - ahead)
        if absent:
            self._leave(absent)
        # Timings under trial count the time before the first execution as outside regions.
        usable_ns = max(since_ns, self.family.start_ns) if self.locked else since_ns
        windows = windows.where(windows.starts - self._reach_ns >= usable_ns)
        if len(windows.ends):
            self._waiting.append(windows)
        return final or bool(self._waiting) or self.family.needs_ns < self.family.seen_ns

    def take(self, active: ActiveTime, columns: int, *, final: bool = False) -> None:
        """Add the fetched windows. `active` reaches back to `needs_ns`, and has `columns` columns."""
        self.family.count(active, columns, self.sensor.length_ns)
        fresh, self._waiting = self._waiting, []
        if self.locked and fresh and self.sensor.refuted(self.lead, np.concatenate([w.ends for w in fresh])):
            # A higher read rate than before reveals more of the sensor's timing.
            self._settle(self._solved(start=self._watch.variances))
            self._unlock()
        if not self.locked:
            self._kept += fresh
            self._schedule.add(sum(len(windows.ends) for windows in fresh))
        if not self._search(active, columns, final=final) and fresh:
            self._add(Windows.joined(fresh), active, columns)
        if self.timed and self.lead not in IMMEDIATE:
            self._stamps.bound_by(self.lead, self._equations, 1 / self._length_ns(self.sensor))
            others = [rates[0][1] for rates in self.others]
            self._stamps.unmarked.bound_by(self.lead, self._equations, others, self.family.cut_off)

    def _leave(self, outputs: list[int]) -> None:
        """Drop some of the signals."""
        self._kept, self._waiting = (
            [w._replace(masses=np.delete(w.masses, outputs, axis=1)) for w in kept]
            for kept in (self._kept, self._waiting)
        )
        self._equations.leave(outputs)
        self._settled.leave(outputs)
        self.others = [[each for i, each in enumerate(rates) if i not in outputs] for rates in self.others]
        self._fits.clear()

    def _add(self, windows: Windows, active: ActiveTime, columns: int) -> None:
        self._fits.clear()  # each takes as much memory as all equations
        self._unseen.add(windows, active, columns)
        rows = self._rows(windows, active, columns, self._equations.probes, self.sensor, self._reference)
        watched = self.locked and self.lead not in IMMEDIATE
        for shares, values, probes, times in rows:
            self.period.add(shares, values, times)
            steady, factors = self._steadying.divided(shares, values, self.family.length_ns)
            # The value of a long window hardly depends on the moments of its ends.
            some = self._near(probes, shares, steady[:, 0]) if watched else (times > 0, times > 0)
            near, predicted = (each | (times > 1) for each in some)
            self._equations.add(shares, steady, probes, times, near, predicted)
            self._equations.taking(self._steadying.taken_by(factors[near], (shares * times[:, None])[near]))

    def _rows(
        self, windows: Windows, active: ActiveTime, columns: int, probes: Sequence[Probe], sensor: Sensor,
        reference: Floats,
    ) -> Iterator[Rows]:  # fmt: skip
        """The equations of windows, in chunks. The probes of the timing are weighted by the rates `reference`."""
        usual_ns, counts = self.family.usual_of(sensor), self.lead.kind is Kind.COUNTER
        for part in windows.parts():
            design = Design(part, sensor, counts=counts, usual_ns=usual_ns)
            shares = design.shares(active, columns)
            if len(shares):
                effects = design.probes(active, probes, shares, reference, self._origin_ns, self._centres)
                yield shares, design.values, effects, design.times(active, columns, usual_ns)

    # ------------------------------------------------------------------ the timing

    def _search(self, active: ActiveTime, columns: int, *, final: bool) -> bool:
        """Search for the timing if enough windows were added. True if the equations were built anew."""
        if self.locked or not self._schedule.due(sum(len(w.ends) for w in self._kept), columns, final=final):
            return False
        self._schedule.searched()
        self.searches += 1
        windows, active = Windows.joined(self._kept), active.tabled(columns)
        self._expected = self._expected and self._expected.beside(exact=self._stamps.exact)
        self._prior = self._expected and self._expected.prior
        most, errors = self.family.most, None if self.lead in IMMEDIATE else self._stamps.errors(columns, 1, 1.0)
        search, best, windows = self._steadying.searched(lambda each: Search(
            self.lead, each, active, columns, most, candidates=self._candidates, expected=self._expected,
            errors=errors, whole=self._whole, step=self.family.step(self.lead),
        ), windows, active, columns, most, self._length_ns)  # fmt: skip
        self._candidates, self._effect = (best.sensor, *best.alternatives), best.effect
        self._watch.set_baseline(best.residual)
        self._equations = self._renewed(active, columns, best.sensor)
        slots = slots_of(self._equations.probes, columns)
        centres = active.tail_means(slots), self._centres_of(np.flatnonzero(slots >= 0))
        self._centres = np.hstack(centres).astype(np.float32)
        self._fits.clear()
        sound = windows.where(windows.starts - best.sensor.reach_ns >= self.family.start_ns)
        windows = sound if len(sound.ends) >= columns else windows

        def fitted(sensor: Sensor, rates: Floats, active: ActiveTime) -> Corrected:
            return corrected(
                sensor, rates, self._equations, partial(self._rows, windows, active, columns, self._equations.probes),
                fit_of=self._solved, given=self._prior is not None, length_ns=self._length_ns(best.sensor),
                lead=self.lead, now_ns=int(windows.ends[len(windows.ends) // 2]), origin_ns=self._origin_ns,
            )  # fmt: skip

        right = fitted(best.sensor, search.rates(best.sensor), active).without_outliers(self._equations, self._solved)
        self.sensor, self._reference, rows, first, fit, near = right
        self._equations.refer(self._solutions(first, fit), first.seen)
        if not self._stamps.exact:
            self._stamps.lateness.compare(self.lead, self._effect, active, lambda other: fitted(
                self.sensor, self._reference, other.tabled(columns)).fit.posterior.evidence)  # fmt: skip
        for each in rows:
            self._equations.add(*each, near)
        self._unseen.renew(self.lead, (self.sensor, *self._candidates), windows, active, columns)
        self.others = [r for r in (self._rates(rival, windows, active, columns) for rival in best.alternatives) if r]
        if self._expected is not None:
            evidence = windows, self._fit(self.lead), self._effect
            self.unexpected = self._expected.contradicted(self._candidates, *evidence, before=self._contradicted)
        sure = best.sensor.in_step and not best.alternatives and fit.uncertainty(ProbeKind.LAG) <= _SURE_LAG_MS
        if self._schedule.locks(sure=sure):
            self.lock()
        return True

    def _renewed(self, active: ActiveTime, columns: int, sensor: Sensor) -> Equations:
        """The settled equations with probes, to which the windows under another timing are added."""
        lengths, shared = active.typical_ns(columns) / self._length_ns(sensor), self._shared(columns)
        probes = choose(sized(self._active_s(), columns), lengths, window=sensor.window_ns > 0, shared=shared)
        return self._settled.with_probes(probes).taking(self._steadying.taken)

    def _rates(self, sensor: Sensor, windows: Windows, active: ActiveTime, columns: int) -> list[Floats]:
        """Every signal's rates `if_unmarked` and steady rates by column under another timing; empty without windows."""
        equations = self._renewed(active, columns, sensor)
        for each in self._rows(windows, active, columns, equations.probes, sensor, self._reference):
            equations.add(*each)
        if not equations.n:
            return []
        errors = self._stamps.errors(equations.columns, equations.distinct, 1 / self._length_ns(sensor)).by_unmarked
        fits = [self._solved(equations, i, effect=self._effect, errors=errors) for i in range(len(self.signals))]
        return [np.array([fit.if_unmarked, np.clip(fit.steady, 0.0, self.family.most)]) for fit in fits]

    def lock(self) -> None:
        """Keep the timing from now on, and drop the windows."""
        self.locked, self._kept = True, []
        self._watch.begin(self.n)

    def _unlock(self) -> None:
        """Search for the timing again, in future windows."""
        self.locked, self._contradicted = False, self.unexpected
        self._schedule.restart()

    def _settle(self, fit: Fit) -> None:
        """Keep the current equations, also if the next search finds another timing."""
        self._settled = self._equations.without_probes(fit.precision)
        self._unseen.settle()

    def forget(self, before_ns: int) -> None:
        """Drop windows from before this time while the timing is searched: their active time takes too much memory."""
        since_ns, before = before_ns + self._reach_ns, [len(w.ends) for w in self._kept]
        self._kept, self._waiting = (
            [w for w in (w.where(w.starts >= since_ns) for w in windows) if len(w.ends)]
            for windows in (self._kept, self._waiting)
        )
        if before != [len(w.ends) for w in self._kept]:
            self._contradicted = self.unexpected

    def skip(self, ahead_ns: int) -> None:
        """Move all times this much later. The search begins anew: in a suspension, the sensor may stand still."""
        self.family.skip(ahead_ns)
        self._origin_ns += ahead_ns
        self._waiting = [w._replace(starts=w.starts + ahead_ns, ends=w.ends + ahead_ns) for w in self._waiting]
        self.sensor, *rivals = (each.shifted(ahead_ns) for each in (self.sensor, *self._candidates))
        self._candidates, self._kept = tuple(rivals), []
        self._unseen.skip(ahead_ns)
        self._schedule.restart()
        self._contradicted = self.unexpected
        self._settle(self._solved(start=self._watch.variances))

    def _near(self, probes: Floats, shares: Floats, values: Floats) -> tuple[Bools, Bools]:
        """Which windows `ResidualWatch` finds near. If too few, the search for the timing begins again."""
        if self._watch.due(self.n):
            fit = self._solved(start=self._watch.variances)
            self._reference = fit.rates
            self._equations.refer(self._solutions(self._equations, fit), self._equations.seen)
            if self._watch.expect(fit, self._equations.reference[:, 0]):
                self._settle(fit)
        near = self._watch.near(probes, shares, values)
        if self._watch.drifted:
            self._watch.drifts += 1
            self._unlock()
        return near

    def _solved(self, equations: Equations | None = None, output: int = 0, **options: Any) -> Fit:
        return Fit(restored(equations or self._equations), output, most=self.family.most, prior=self._prior, **options)

    # ------------------------------------------------------------------ answers

    def rate(self, signal: Signal, weights: Floats) -> Rate:
        """The device's rate while columns are active, weighted by active times, in base units (counters: per s)."""
        fit, used = self._fit(signal), np.flatnonzero(weights)
        weights = sized(weights[used] @ self._joint(used), self.columns)
        if not weights.any():
            return Rate(0.0, np.inf, 0, "no samples yet")
        weights = weights / weights.sum()
        rate = self.family.unmeasured.widened(self._unseen.widened(fit, weights), fit, weights, self._active_s())
        doubt = self._expected.doubt(self._effect, unexpected=self.unexpected) if self._expected else ""
        if reason := self.untrusted or doubt or (TIMING if self.sensor.extreme and not self._expected else ""):
            return rate._replace(half_width=np.inf, reason=reason)
        if not self.timed:
            return rate._replace(half_width=np.inf, reason=f"too few samples ({rate.n})")
        output, covered_s = self.signals.index(signal), self.family.covered(sized(self._active_s(), self.columns))[0]
        rate = beside_left_out(rate, fit, self._equations, output, self.family.n, covered_s, self.family.mean(signal))
        return rate._replace(half_width=rate.half_width + self.family.cut_off)

    def _fit(self, signal: Signal) -> Fit:
        output = self.signals.index(signal)
        if (fit := self._fits.get(output)) is None:
            fit = self._fits[output] = self._solved(
                output=output, errors=self._errors(), others=[rates[output] for rates in self.others],
                start=self._watch.variances, effect=self._effect, idle="steady" if signal in POWER_SOURCES else "none",
                step=self.family.step(signal), alike=self.family.alike, in_step=self._unseen.in_step(self.columns),
            )  # fmt: skip
        return fit

    def _errors(self) -> StampErrors | None:
        """The contribution of stamp errors to the equations."""
        if self.lead in IMMEDIATE or not self.n:
            return None
        return self._stamps.errors(self.columns, self._equations.distinct, 1 / self._length_ns(self.sensor))

    def _length_ns(self, sensor: Sensor) -> int:
        """The time over which a reading averages."""
        return max(1, sensor.length_ns or self.family.length_ns)

    def _solutions(self, equations: Equations, lead: Fit) -> Floats:
        """Every signal's solution of some equations; `lead` is the first signal's fit."""
        others = [self._solved(equations, i, start=self._watch.variances) for i in range(1, len(self.signals))]
        return np.array([fit.solution for fit in (lead, *others)]).T if others else lead.solution[:, None]

    def share(self, columns: Sequence[int]) -> Share | None:
        """The part of the lead's measured total that columns together should have; None before they have windows."""
        return self._targets().share(columns) if columns and min(columns) < self.columns else None

    def counted(self, columns: Sequence[int]) -> CountedShare:
        """The part of the lead's measured total that columns were given so far. It never decreases."""
        wanted = self._targets()
        self._shares.distribute(float(self.family.measured[0]), wanted.values, np.isfinite(wanted.half_widths))
        return self._shares.counted(columns)

    def _targets(self) -> Targets:
        """The part of the lead's measured total that each column should have."""
        active_s, measured = self._active_s(), float(self.family.measured[0])
        windows = self.n + (self.beside.n if self.beside is not None else 0)
        now = windows, self.family.covered_s, float(active_s[1:].sum())
        if self._targeted is None or self._targeted.of != now:
            covered_s, uncovered_s = self.family.covered(active_s)
            mean, regions = self.family.mean(self.lead) or 0.0, [[0], *self._regions()]
            rates = self._fit(self.lead).drawn_to(mean, mean) if mean > 0 and self.timed else np.zeros(0)
            parts = drawn(rates, self._joint(), covered_s, mean, measured)
            present = [region for region in regions if max(region, default=0) < min(len(active_s), self.columns)]
            shares = targets(parts, covered_s, uncovered_s, present, self.best_rate, measured, mean)
            self._targeted = Targets(*shares, now)
        return self._targeted

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another, and free it. Before the first merge, each mixture must have `counted`."""
        self.family.merge(column, into)
        self._shares.merge(column, into)
        self._equations.merge(column, into)
        self._settled.merge(column, into)
        self._unseen.merge(column, into)
        self._watch.forget()
        self._steadying.forget()
        self._fits, self._targeted = {}, None
