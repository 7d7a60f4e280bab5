"""Sensor windows set beside the regions that were active in them: one family of signals that share their windows. Pure.

The sensor's timing is looked for in the data: of a grid of lags, phases, windows and stamps' errors, what leaves the
least residual. While it is looked for, windows are kept; then it is locked, and only the normal equations remain. When
the residual grows for good, it is looked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import POWER_SOURCES, Kind, Signal
from gpu_profile.history.timeline import Floats, Timeline
from gpu_profile.join.unmixing.active_time import ActiveTime
from gpu_profile.join.unmixing.correction import corrected
from gpu_profile.join.unmixing.design import Design, Rows, Windows
from gpu_profile.join.unmixing.equations import Equations, sized
from gpu_profile.join.unmixing.expected import DevicePrior
from gpu_profile.join.unmixing.family import IMMEDIATE, SignalFamily
from gpu_profile.join.unmixing.probes import Probe, ProbeKind, choose, slots_of
from gpu_profile.join.unmixing.sensor import Sensor
from gpu_profile.join.unmixing.shares import CountedShare, Share, Shares, Targets, drawn, targets
from gpu_profile.join.unmixing.stamps import StampErrors, Stamps
from gpu_profile.join.unmixing.timing_search import Search
from gpu_profile.join.unmixing.timings import LONGEST_LAG_NS, shapes
from gpu_profile.join.unmixing.unmix import Fit, Rate
from gpu_profile.join.unmixing.watch import ResidualWatch
from gpu_profile.units import NS_PER_S

#: Windows after which a timing is locked if it has no phase, nothing comes near it, and its lag is known this well, and
#: otherwise: 30 and 100 s at 10 Hz.
_SURE_LAG_MS: Final = 0.2
LOCK_AT: Final = 300
LOCK_UNSURE_AT: Final = 1000
#: It is looked for again with so many times as many windows, and when there will be no more: a search is many fits, and
#: rivals that few windows could not rule out are carried along.
_GROWTH: Final = 4.0
_GROWTH_AT_LAST: Final = 1.25
#: The search starts with so many windows per column, fewer where there will be no more; before it, no rate is given.
_LEAST_PER_COLUMN: Final = 8
_LEAST_AT_LAST: Final = 3
#: Once the timing is locked, windows of so much time are taken in together: the cost is hardly more than for one.
PATIENCE_NS: Final = 5 * NS_PER_S
#: Readings wait for this long while stamps may be early: what ran after them is then known too.
_AHEAD_NS: Final = 60_000_000
#: How far back any lag that is tried may look: a renewal, or the error of the stamps, comes on top of the grid's.
_LONGEST_LOOK_NS: Final = 2 * LONGEST_LAG_NS


class Mixture:
    """One family of signals of one device. Columns are numbered by the pool; column 0 is nobody's time.

    `active_s` tells the exclusive active time of every column, `regions` the columns of every region, `joint` whose
    rates make up the device's while a column is active; `known` is what was known of the device's sensors before.
    """

    def __init__(
        self, timeline: Timeline, family: tuple[Signal, ...], *, start_ns: int,
        active_s: Callable[[], Floats], regions: Callable[[], Iterable[Sequence[int]]], joint: Callable[[], Floats],
        stamps: Stamps, known: DevicePrior,
    ) -> None:  # fmt: skip
        self.family = SignalFamily(timeline, family, start_ns)
        self.lead = family[0]
        self._reference: Floats = np.zeros(1)  # the rates that the probes of the timing are weighted by
        #: What follows regions, on average over the time of each column.
        self._tails: Floats = np.zeros((1, 0))
        self.sensor = Sensor()
        self.locked = self.lead in IMMEDIATE
        #: Why nothing that is unmixed here is to be trusted; and what was expected of the sensor, if anything was.
        self._untrusted, self._expected = known.untrusted, known.sensors.get(self.lead)
        #: Whether its readings say something else, and whether those that are gone did.
        self.unexpected = self._contradicted = False
        self._prior = self._expected and self._expected.prior
        #: What tells the lead's rates best, and whose windows it tells them by besides, if by any.
        self.clearest: Callable[[Floats], Rate] = partial(self.rate, self.lead)
        self.beside: Mixture | None = None
        self._active_s, self._regions, self._joint = active_s, regions, joint
        self._targeted: Targets | None = None  # asked for by every region
        self._unknown_ns = 0  # of the time before this it is not known whose it was
        self._stamps, self._origin_ns = stamps, start_ns
        self._shares, self._equations = Shares(), Equations()
        #: What they said of rates when the timing was last beyond doubt: it stands.
        self._settled = Equations()
        self._watch, self._waiting, self._kept = ResidualWatch(), list[Windows](), list[Windows]()
        self._judged_n = self._searched_n = self.searches = 0
        #: The timings that the latest search could not rule out, and by column each signal's rates under the others.
        self._known: tuple[Sensor, ...] = ()
        self.others: list[list[Floats]] = []
        self._effect = 1.0  # how many windows tell as much as one, as the latest search found it
        self._fits: dict[int, Fit] = {}

    @property
    def n(self) -> int:
        """Windows taken in."""
        return self._equations.n

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Those that have readings."""
        return self.family.signals

    @property
    def drifts(self) -> int:
        """How often the timing was looked for anew because the residual had grown."""
        return self._watch.drifts

    @property
    def _timed(self) -> bool:
        """Whether the timing is more than a guess."""
        return self.locked or bool(self._known)

    @property
    def columns(self) -> int:
        """Columns that a window was met by, nobody's included."""
        return self._equations.columns

    @property
    def needs_ns(self) -> int:
        """From when on active time is still needed, as far as this mixture goes."""
        held = self._kept or self._waiting
        return (int(held[0].starts[0]) if held else self.family.seen_ns) - self._reach_ns

    @property
    def _reach_ns(self) -> int:
        """How far before its row a reading may look."""
        return self.sensor.reach_ns if self.locked else max(s.reach_ns for s in shapes(self.lead)) + _LONGEST_LOOK_NS

    # ------------------------------------------------------------------ taking in

    def fetch(self, since_ns: int, until_ns: int, *, final: bool = False) -> bool:
        """Fetch the windows that ended by `until_ns`; whether it is time to `take` what was fetched.

        Active time is known from `since_ns` on.
        """
        if self.locked and not final and until_ns - self.family.seen_ns < PATIENCE_NS:
            return False
        ahead = 0 if final else self.sensor.ahead_ns if self.locked else _AHEAD_NS
        windows, absent = self.family.fetch(until_ns - ahead)
        if absent:
            self._leave(absent)
        # A reading may look back to where it is not known whose time it was. For timings that are only tried, the time
        # before the first execution was nobody's.
        known_ns = max(since_ns, self.family.start_ns if self.locked else self._unknown_ns)
        windows = windows.where(windows.starts - self._reach_ns >= known_ns)
        if len(windows.ends):
            self._waiting.append(windows)
        return final or bool(self._waiting)

    def take(self, active: ActiveTime, columns: int, *, final: bool = False) -> None:
        """Take the windows that were fetched in. `active` reaches back to `needs_ns`, and has `columns` columns."""
        fresh, self._waiting = self._waiting, []
        if self.locked and fresh and self.sensor.refuted(self.lead, np.concatenate([w.ends for w in fresh])):
            # A sensor that is read more often than before shows more of its timing.
            self._settle(self._solved(start=self._watch.variances))
            self._unlock()
        if not self.locked:
            self._kept += fresh
            self._searched_n += sum(len(windows.ends) for windows in fresh)
        if not self._search(active, columns, final=final) and fresh:
            self._add(Windows.joined(fresh), active, columns)
        if self._timed and not self.others and self.lead not in IMMEDIATE:
            self._stamps.bound_by(self.lead, self._equations, 1 / self._length_ns(self.sensor))

    def _leave(self, outputs: list[int]) -> None:
        """Go on without some of the signals."""
        self._kept, self._waiting = (
            [w._replace(masses=np.delete(w.masses, outputs, axis=1)) for w in held]
            for held in (self._kept, self._waiting)
        )
        self._equations.leave(outputs)
        self._settled.leave(outputs)
        self.others = [[each for i, each in enumerate(rates) if i not in outputs] for rates in self.others]
        self._fits.clear()

    def _add(self, windows: Windows, active: ActiveTime, columns: int) -> None:
        rows = self._rows(windows, active, columns, self.sensor, self._equations.probes, self._reference)
        for shares, values, probes in rows:
            if self.locked and self.lead not in IMMEDIATE:
                near = self._near(probes, shares, values[:, 0])
                if not near.all():
                    shares, values, probes = shares[near], values[near], probes[near]  # noqa: PLW2901
            self._equations.add(shares, values, probes)

    def _rows(
        self, windows: Windows, active: ActiveTime, columns: int, sensor: Sensor, probes: Sequence[Probe],
        reference: Floats,
    ) -> Iterator[Rows]:  # fmt: skip
        """The equations of windows, some at a time, with the probes of the timing weighted by the rates `reference`."""
        for part in windows.parts():
            design = Design(part, sensor, counts=self.lead.kind is Kind.COUNTER)
            shares = design.shares(active, columns)
            if len(shares):
                around = reference, self._origin_ns, self._tails
                yield shares, design.values, design.probes(active, probes, shares, *around)

    # ------------------------------------------------------------------ the timing

    def _search(self, active: ActiveTime, columns: int, *, final: bool) -> bool:
        """Look for the timing again if there are enough more windows; True if the equations were made anew."""
        if self.locked:
            return False
        n = sum(len(w.ends) for w in self._kept)
        least = columns * (_LEAST_AT_LAST if final else _LEAST_PER_COLUMN)
        enough = self._searched_n >= max(self._judged_n * (_GROWTH_AT_LAST if final else _GROWTH), least)
        last = self._searched_n >= LOCK_UNSURE_AT
        if columns == 1 or n < least or not (enough or last):
            return False
        self._judged_n, self.searches = self._searched_n, self.searches + 1
        windows, active = Windows.joined(self._kept), active.tabled(columns)
        self._expected = self._expected and self._expected.beside(exact=self._stamps.exact)
        self._prior = self._expected and self._expected.prior
        search = Search(
            self.lead, windows, active, columns, self.family.most, known=self._known, expected=self._expected,
            errors=None if self.lead in IMMEDIATE else self._stamps.errors(columns, 1, 1.0),
        )  # fmt: skip
        found = search.run()
        self._known, self._effect = (found.sensor, *found.rivals), found.effect
        self._watch.found(found.residual)
        self._equations = self._renewed(active, columns, found.sensor)
        self._tails = active.tail_means(slots_of(self._equations.probes, columns))
        self._fits.clear()
        sound = windows.where(windows.starts - found.sensor.reach_ns >= self.family.start_ns)
        windows = sound if len(sound.ends) >= columns else windows

        def rows_of(sensor: Sensor, reference: Floats) -> Iterator[Rows]:
            return self._rows(windows, active, columns, sensor, self._equations.probes, reference)

        self.sensor, self._reference, rows, first, fit = corrected(
            found.sensor, search.rates(found.sensor), self._equations, rows_of,
            lead=self.lead, fit_of=self._solved, given=self._prior is not None, length_ns=self._length_ns(found.sensor),
            now_ns=int(windows.ends[len(windows.ends) // 2]), origin_ns=self._origin_ns,
        )  # fmt: skip
        self._equations.refer(self._solutions(first, fit), first.seen)
        for each in rows:
            self._equations.add(*each)
        others = (self._rates(rival, windows, active, columns) for rival in found.rivals)
        self.others = [rates for rates in others if rates]
        if self._expected is not None:
            told = windows, self._fit(self.lead), self._effect
            self.unexpected = self._expected.contradicted(self._known, *told, before=self._contradicted)
        sure = found.sensor.in_step and not found.rivals and fit.uncertainty(ProbeKind.LAG) <= _SURE_LAG_MS
        if last or (sure and self._searched_n >= LOCK_AT):
            self.lock()
        return True

    def _renewed(self, active: ActiveTime, columns: int, sensor: Sensor) -> Equations:
        """What stands of the equations, for windows under another timing to be added."""
        active_s = sized(self._active_s(), columns)
        lengths = active.typical_ns(columns) / self._length_ns(sensor)
        return self._settled.with_probes(choose(active_s, lengths, window=sensor.window_ns > 0))

    def _rates(self, sensor: Sensor, windows: Windows, active: ActiveTime, columns: int) -> list[Floats]:
        """Every signal's rates and steady ones by column under another timing; none if it leaves all windows out."""
        equations = self._renewed(active, columns, sensor)
        for each in self._rows(windows, active, columns, sensor, equations.probes, self._reference):
            equations.add(*each)
        if not equations.n:
            return []
        fits = [self._solved(equations, i, effect=self._effect) for i in range(len(self.signals))]
        return [np.array([fit.rates, np.clip(fit.steady, 0.0, self.family.most)]) for fit in fits]

    def lock(self) -> None:
        """Stay with the timing that was found, and forget the windows."""
        self.locked = True
        self._kept = []
        self._watch.begin(self.n)

    def _unlock(self) -> None:
        """Look for the timing anew, in windows that are yet to come."""
        self.locked, self._judged_n, self._searched_n = False, 0, 0
        self._contradicted = self.unexpected

    def _settle(self, fit: Fit) -> None:
        """Let what the equations say of rates stand, whatever comes of the timing."""
        self._settled = self._equations.without_probes(fit.precision)

    def forget(self, before_ns: int) -> None:
        """Let windows from before go while the timing is looked for: their active time takes too much room."""
        since_ns, before = before_ns + self._reach_ns, [len(w.ends) for w in self._kept]
        self._kept, self._waiting = (
            [w for w in (w.where(w.starts >= since_ns) for w in held) if len(w.ends)]
            for held in (self._kept, self._waiting)
        )
        if before != [len(w.ends) for w in self._kept]:
            self._contradicted = self.unexpected

    def restart(self, since_ns: int) -> None:
        """Time goes on from an earlier moment than it had reached."""
        self.family.restart(since_ns)
        self._unknown_ns = since_ns
        self._kept, self._waiting = [], []
        # Windows that are gone find no timing; what they said stands, under the one that is known so far.
        self._judged_n, self._searched_n, self._contradicted = 0, 0, self.unexpected
        self._settle(self._solved(start=self._watch.variances))

    def _near(self, probes: Floats, shares: Floats, values: Floats) -> npt.NDArray[np.bool_]:
        """Which new windows are near what the rates say; looks for the timing again if they are not any more."""
        if self._watch.due(self.n):
            fit = self._solved(start=self._watch.variances)
            self._reference = fit.rates
            self._equations.refer(self._solutions(self._equations, fit), self._equations.seen)
            if self._watch.expect(fit):
                self._settle(fit)
        near = self._watch.near(probes, shares, values)
        if self._watch.drifted:
            self._watch.drifts += 1
            self._unlock()
        return near

    def _solved(self, equations: Equations | None = None, output: int = 0, **options: Any) -> Fit:
        return Fit(equations or self._equations, output, most=self.family.most, prior=self._prior, **options)

    # ------------------------------------------------------------------ answers

    def rate(self, signal: Signal, weights: Floats) -> Rate:
        """The device's rate while columns are active, by their active times, in base units (a counter's per s)."""
        fit = self._fit(signal)
        joint = self._joint()
        share = sized(sized(weights, len(joint)) @ joint, self.columns)
        if not share.any():
            return Rate(0.0, np.inf, 0, "no samples yet")
        found = fit.rate(share / share.sum())
        doubt = self._expected.doubt(self._effect, unexpected=self.unexpected) if self._expected else ""
        if reason := self._untrusted or doubt:
            return found._replace(half_width=np.inf, reason=reason)
        if not self._timed:
            return found._replace(half_width=np.inf, reason=f"too few samples ({found.n})")
        return found._replace(half_width=found.half_width + self.family.cut_off)

    def _fit(self, signal: Signal) -> Fit:
        output = self.signals.index(signal)
        fit = self._fits.get(output)
        if fit is None or fit.n != self._equations.n:
            others = [rates[output] for rates in self.others]
            fit = self._fits[output] = self._solved(
                output=output, errors=self._errors(), others=others,
                start=self._watch.variances, effect=self._effect, idle="steady" if signal in POWER_SOURCES else "none",
                step=0.0 if signal.kind is Kind.COUNTER else signal.base(1),
            )  # fmt: skip
        return fit

    def _errors(self) -> StampErrors | None:
        """What errors of stamps may add to the equations."""
        if self.lead in IMMEDIATE or not self.n:
            return None
        return self._stamps.errors(self._equations.columns, self.n, 1 / self._length_ns(self.sensor))

    def _length_ns(self, sensor: Sensor) -> int:
        """Over how long a reading averages."""
        return max(1, sensor.length_ns or self.family.length_ns)

    def _solutions(self, equations: Equations, lead: Fit) -> Floats:
        """Every signal's solution of some equations, of which the lead's is known."""
        others = range(1, len(self.signals))
        fits = [lead, *(self._solved(equations, i, start=self._watch.variances) for i in others)]
        return np.array([fit.solution for fit in fits]).T

    def share(self, columns: Sequence[int]) -> Share | None:
        """What columns together should have of the lead's measured total."""
        if not columns or min(columns) >= self.columns:
            return None
        return self._targets().share(columns)

    def counted(self, columns: Sequence[int]) -> CountedShare:
        """What columns were given so far of the lead's measured total, never less than before."""
        wanted = self._targets()
        self._shares.hand_out(float(self.family.measured[0]), wanted.values, np.isfinite(wanted.half_widths))
        return self._shares.counted(columns)

    def _targets(self) -> Targets:
        """What each column should have of the lead's measured total."""
        active_s, measured = self._active_s(), float(self.family.measured[0])
        windows = self.n + (self.beside.n if self.beside is not None else 0)
        now = windows, self.family.covered_s, float(active_s[1:].sum())
        if self._targeted is None or self._targeted.of != now:
            # Time that no window covers has no part of what was measured.
            covered_s = active_s * min(1.0, self.family.covered_s / max(float(active_s.sum()), 1e-300))
            mean, regions = self.family.mean(self.lead) or 0.0, [[0], *self._regions()]
            rates = self._fit(self.lead).drawn_to(mean, mean) if mean > 0 and self._timed else np.zeros(0)
            parts = drawn(rates, self._joint(), active_s, mean, measured)
            known = [region for region in regions if max(region, default=0) < min(len(active_s), self.columns)]
            found = targets(parts, covered_s, known, self.clearest, measured, mean)
            self._targeted = Targets(*found, now)
        return self._targeted

    def merge(self, column: int, into: int) -> None:
        """Make a column part of another, and free it."""
        self.counted([])
        self._shares.merge(column, into)
        self._equations.merge(column, into)
        self._settled.merge(column, into)
        self._watch.forget()
        self._fits.clear()
        self._targeted = None
