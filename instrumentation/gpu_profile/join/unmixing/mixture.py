"""Sensor windows set beside the regions that were active in them: one family of signals that share their windows. Pure.

The sensor's timing is looked for in the data: of a grid of lags, phases, windows and stamps' errors, what leaves the
least residual. While it is looked for, windows are kept; then it is locked, and only the normal equations remain. When
the residual grows for good, it is looked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.unmixing.active_time import ActiveTime
from gpu_profile.join.unmixing.sensor import LONGEST_LAG_NS, Sensor, shapes
from gpu_profile.join.unmixing.timing_search import Search, Windows, design_of
from gpu_profile.join.unmixing.unmix import Z95, Fit, Rate, Unmixer
from gpu_profile.units import NS_PER_S

#: Windows after which a timing is locked if it has no phase, nothing comes near it, and its lag is known this well, and
#: otherwise: 30 and 100 s at 10 Hz.
_SURE_LAG_NS: Final = 200_000
LOCK_AT: Final = 300
LOCK_UNSURE_AT: Final = 1000
#: It is looked for again when there are this many times as many windows, and when there will be no more: each search
#: costs some hundred small fits.
_GROWTH: Final = 1.5
_GROWTH_AT_LAST: Final = 1.25
#: The search starts with this many windows per unknown.
_LEAST_PER_COLUMN: Final = 3
#: A signal that has readings, but for none of so many windows, does not belong to them.
_SILENT: Final = 10
#: Active time is not kept any longer than this for a signal that says nothing.
_LONGEST_SILENCE_NS: Final = 10 * NS_PER_S
#: Once the timing is locked, windows of so much time are taken in together: the cost is hardly more than for one.
PATIENCE_NS: Final = 5 * NS_PER_S
#: Readings wait for this long while stamps may be early: what ran after them is then known too.
_AHEAD_NS: Final = 60_000_000
#: How far back any lag that is tried may look: a renewal, or the error of the stamps, comes on top of the grid's.
_LONGEST_LOOK_NS: Final = 2 * LONGEST_LAG_NS
#: A window that misses by so many standard deviations is not what the equations are about: a late reading, or one that
#: was taken for that of another renewal.
_OUTLIER: Final = 6.0
#: Windows tell of the timing if what the rates say of them is this well known, as a share of the variance of a window.
_WELL_KNOWN: Final = 0.25
#: A locked timing is doubted when the latest windows miss by this many times what they missed by when it was found
#: (mean squares, outliers cut), over about as many windows as this; the more often that was so, the less readily.
_DRIFT: Final = 1.75
_DRIFT_WINDOWS: Final = 200
#: ... and is beyond doubt while they miss by no more than this many times as much.
_SOUND: Final = 1.25
#: The rates that new windows are held against are solved for anew when there are this many times as many windows.
_REFIT: Final = 1.25

#: Signals that share their windows. The first of a family leads: its residual chooses the timing for all.
FAMILIES: Final[tuple[tuple[Signal, ...], ...]] = (
    (rows.GRAPHICS, rows.SM, rows.OCCUPANCY, rows.TENSOR, rows.DRAM, rows.FP64, rows.FP32, rows.FP16),
    (rows.UTILIZATION, rows.MEMORY_CONTROLLER),
    (rows.ENERGY,),
    (rows.POWER_AVERAGE,),
    (rows.PCIE_RX, rows.PCIE_TX),
    (rows.NVLINK_RX, rows.NVLINK_TX),
)
#: A family that is not needed where the lead of another is there: the better source makes it superfluous.
SUPERSEDED: Final[Mapping[Signal, Signal]] = {rows.UTILIZATION: rows.GRAPHICS, rows.POWER_AVERAGE: rows.ENERGY}
#: Counters that the driver reads from hardware at the call: there is no timing to look for.
_IMMEDIATE: Final = frozenset({rows.PCIE_RX, rows.NVLINK_RX})


@dataclass(slots=True)
class Shares:
    """A quantity shared out so that every share only grows and all shares add up to what was measured.

    Columns are those of the equations: 0 is the unattributed rest. `shared` is in unit·s (a counter's unit).
    """

    shared: Floats = field(default_factory=lambda: np.zeros(1))

    def hand_out(self, measured: float, targets: Floats) -> None:
        """Bring the sum up to `measured`, so that the shares move towards the proportions of `targets`."""
        if len(targets) > len(self.shared):
            self.shared = np.pad(self.shared, (0, len(targets) - len(self.shared)))
        total = float(targets.sum())
        if total > 0:
            wanted = targets / total * measured
        else:
            wanted = np.zeros(len(targets))
            wanted[0] = measured
        short = np.maximum(wanted - self.shared, 0.0)
        missing = float(short.sum())
        left = measured - float(self.shared.sum())
        if missing > 0 and left > 0:
            self.shared = self.shared + short * min(1.0, left / missing)

    def merge(self, column: int, into: int) -> None:
        """Give what a column was given to another."""
        if column < len(self.shared):
            self.shared = np.pad(self.shared, (0, max(0, into + 1 - len(self.shared))))
            self.shared[into] += self.shared[column]
            self.shared[column] = 0.0


class Mixture:
    """One family of signals of one device. Columns are numbered by the pool; column 0 is nobody's time.

    `active_s` tells the exclusive active time of every column.
    """

    def __init__(
        self, timeline: Timeline, family: tuple[Signal, ...], *, start_ns: int, active_s: Callable[[], Floats]
    ) -> None:
        self.timeline = timeline
        self.signals = tuple(s for s in family if timeline.column(s) is not None)
        self.lead = family[0]
        self.start_ns = start_ns
        self.covered_s = 0.0
        self.measured: Floats = np.zeros(len(self.signals))
        self.sensor = Sensor()
        self.locked = self.lead in _IMMEDIATE
        #: How often the timing was looked for anew because the residual had grown.
        self.drifts = 0
        self._active_s = active_s
        self._shares = Shares()
        self._seen_ns = start_ns
        #: Nothing is busier than busy: rates of ratios end at 1.
        self._most = self.lead.base(self.lead.limit) if self.lead.kind is Kind.WINDOW_MEAN else np.inf
        self._unmixer = Unmixer(self._most)
        #: Equations from when the timing was last beyond doubt: they stand.
        self._settled = Unmixer(self._most)
        #: Windows since then that told of the timing.
        self._told = 0
        self._waiting: list[Windows] = []
        self._kept: list[Windows] = []
        self._judged_n = 0
        self._searched_n = 0
        self._watched_n = 0
        self._watched: Fit = self._unmixer.fit()
        self._usual = 0.0
        self._recent = 0.0
        #: By how much each column's rate of each signal moves if the timing is off by its standard deviation.
        self._swing: Floats = np.zeros((0, len(self.signals)))
        self._repeats = 1.0
        #: The timings that the latest search could not rule out.
        self._known: tuple[Sensor, ...] = ()
        self._fits: dict[int, Fit] = {}

    @property
    def n(self) -> int:
        """Windows taken in."""
        return self._unmixer.n

    @property
    def seen_ns(self) -> int:
        """The end of the newest window that was fetched."""
        return self._seen_ns

    @property
    def columns(self) -> int:
        """Columns that a window was met by, nobody's included."""
        return self._unmixer.columns

    @property
    def needs_ns(self) -> int:
        """From when on active time is still needed, as far as this mixture goes."""
        held = self._kept or self._waiting
        return (int(held[0].starts[0]) if held else self._seen_ns) - self._reach_ns

    @property
    def _reach_ns(self) -> int:
        """How far before its row a reading may look."""
        return self.sensor.reach_ns if self.locked else max(s.reach_ns for s in shapes(self.lead)) + _LONGEST_LOOK_NS

    # ------------------------------------------------------------------ taking in

    def fetch(self, since_ns: int, until_ns: int, *, final: bool = False) -> bool:
        """Fetch the windows that ended by `until_ns`; whether it is time to `take` what was fetched.

        Active time is known from `since_ns` on.
        """
        if self.locked and not final and until_ns - self._seen_ns < PATIENCE_NS:
            return False
        ahead = 0 if final else self.sensor.ahead_ns if self.locked else _AHEAD_NS
        windows = self._fetch(until_ns - ahead)
        self.covered_s += float((windows.ends - windows.starts).sum()) / NS_PER_S
        self.measured = self.measured + windows.masses.sum(axis=0)
        # A reading may look back to before the first slice, and nobody knows whose time that was.
        windows = windows.where(windows.starts - self._reach_ns >= max(since_ns, self.start_ns))
        if len(windows.ends):
            self._waiting.append(windows)
        return final or bool(self._waiting)

    def take(self, active: ActiveTime, columns: int, *, final: bool = False) -> None:
        """Take the windows that were fetched in. `active` reaches back to `needs_ns`, and has `columns` columns."""
        fresh, self._waiting = self._waiting, []
        if self.locked and fresh and self.sensor.refuted(self.lead, np.concatenate([w.ends for w in fresh])):
            # Who asks more often than before is shown more.
            self.locked, self._judged_n, self._searched_n = False, 0, 0
            self._settled = self._unmixer.copy()
        if not self.locked:
            self._kept += fresh
            self._searched_n += sum(len(windows.ends) for windows in fresh)
        if not self._search(active, columns, _GROWTH_AT_LAST if final else _GROWTH) and fresh:
            self._add(Windows.joined(fresh), active, columns)

    def _fetch(self, until_ns: int) -> Windows:
        columns = [c for s in self.signals if (c := self.timeline.column(s)) is not None]
        starts, ends, masses = columns[0].edges(self._seen_ns, until_ns)
        self._seen_ns = int(ends[-1]) if len(ends) else max(self._seen_ns, until_ns - _LONGEST_SILENCE_NS)
        keep = (starts >= self.start_ns) & (ends > starts)
        taken = np.zeros((len(ends), len(columns)))
        taken[:, 0] = masses
        absent = []
        for i, column in enumerate(columns[1:], start=1):
            if not keep.any():
                break
            place, fits = _places(column.edges(int(starts[0]), until_ns), starts, ends)
            if not fits.any() and (column.watermark_ns is None or len(ends) >= _SILENT):
                absent.append(i)
            else:
                keep &= fits
                taken[:, i] = place
        if absent:
            # A signal that has no readings must not silence the others of its family: it leaves.
            self._leave(absent)
            columns = [column for i, column in enumerate(columns) if i not in absent]
            taken = np.delete(taken, absent, axis=1)
        unit = 1 if self.lead.kind is Kind.COUNTER else NS_PER_S
        scale = np.array([column.signal.quantum / unit for column in columns])
        return Windows(starts[keep], ends[keep], taken[keep] * scale)

    def _leave(self, outputs: list[int]) -> None:
        """Go on without some of the signals."""
        self.signals = tuple(signal for i, signal in enumerate(self.signals) if i not in outputs)
        self.measured = np.delete(self.measured, outputs)
        self._kept, self._waiting = (
            [w._replace(masses=np.delete(w.masses, outputs, axis=1)) for w in held]
            for held in (self._kept, self._waiting)
        )
        self._unmixer.leave(outputs)
        self._settled.leave(outputs)
        self._swing = np.delete(self._swing, outputs, axis=1)
        self._fits.clear()

    def _add(self, windows: Windows, active: ActiveTime, columns: int) -> None:
        for part in windows.parts():
            design, values = design_of(part, active, columns, self.sensor, counts=self.lead.kind is Kind.COUNTER)
            if not len(values):
                continue
            if self.locked and self.lead not in _IMMEDIATE:
                near = self._watch(design, values[:, 0])
                if not near.all():
                    design, values = design[near], values[near]
            self._unmixer.add(design, values)

    # ------------------------------------------------------------------ the timing

    def _search(self, active: ActiveTime, columns: int, growth: float) -> bool:
        """Look for the timing again if there are so many times more windows; True if the equations were made anew."""
        if self.locked:
            return False
        n = sum(len(w.ends) for w in self._kept)
        enough = self._searched_n >= max(growth * self._judged_n, _LEAST_PER_COLUMN * columns)
        last = self._searched_n >= LOCK_UNSURE_AT
        if columns == 1 or n < _LEAST_PER_COLUMN * columns or not (enough or last):
            return False
        self._judged_n = self._searched_n
        windows = Windows.joined(self._kept)
        search = Search(self.lead, windows, active, columns, self._most, known=self._known)
        found = search.run()
        self._known = (found.sensor, *found.rivals)
        self.sensor, self._swing = found.sensor, search.swing(found)
        self._repeats = found.repeats
        self._usual = self._recent = found.residual
        self._unmixer = self._settled.copy()
        self._fits.clear()
        self._add(windows, active, columns)
        sure = found.sensor.in_step and not found.rivals and found.lag_sd_ns <= _SURE_LAG_NS
        if last or (sure and self._searched_n >= LOCK_AT):
            self.lock()
        return True

    def lock(self) -> None:
        """Stay with the timing that was found, and forget the windows."""
        self.locked = True
        self._kept = []
        self._watched_n = 0
        self._told = self.n

    def forget(self, before_ns: int) -> None:
        """Let windows from before go while the timing is looked for: their active time takes too much room."""
        since_ns = before_ns + self._reach_ns
        self._kept, self._waiting = (
            [w for w in (w.where(w.starts >= since_ns) for w in held) if len(w.ends)]
            for held in (self._kept, self._waiting)
        )

    def restart(self, since_ns: int) -> None:
        """Time goes on from an earlier moment than it had reached."""
        self.start_ns = self._seen_ns = since_ns
        self._kept, self._waiting = [], []
        # Windows that are gone find no timing; what they said stands, under the one that is known so far.
        self._judged_n = self._searched_n = 0
        self._settled = self._unmixer.copy()

    def _watch(self, design: Floats, values: Floats) -> npt.NDArray[np.bool_]:
        """Which new windows are near what the rates say; looks for the timing again if they are not any more."""
        if self.n > _REFIT * self._watched_n:
            self._watched_n, self._watched = self.n, self._unmixer.fit()
        rates = self._watched.rates
        missed = (values - design[:, : len(rates)] @ rates[: design.shape[1]]) ** 2
        # A window of a region that is hardly known yet is the only way to know it better, however far off it is.
        doubt = self._watched.variances(design)
        telling = np.isfinite(doubt) & (doubt <= _WELL_KNOWN * self._watched.noise)
        most = _OUTLIER**2 * self._usual
        if telling.any():
            latest = float(np.minimum(missed[telling], most).mean())
            self._recent += min(1.0, telling.sum() / _DRIFT_WINDOWS) * (latest - self._recent)
        self._told += int(telling.sum())
        sound = self._recent < _SOUND * self._usual and 2 * self._told > self.n - self._settled.n
        if sound and self.n > _REFIT * self._settled.n:
            self._settled, self._told = self._unmixer.copy(), 0
        if self._usual > 0 and self._recent > _DRIFT * (1 + self.drifts) * self._usual:
            self.drifts += 1
            self.locked, self._judged_n, self._searched_n = False, 0, 0
        return missed <= most + _OUTLIER**2 * doubt if self._usual > 0 else np.ones(len(missed), bool)

    # ------------------------------------------------------------------ answers

    def rate(self, signal: Signal, weights: Floats) -> Rate:
        """The rate of columns together, by their active times, in base units (a counter's: per second)."""
        fit = self._fit(signal)
        share = np.zeros(len(fit.rates))
        known = min(len(share), len(weights))
        share[:known] = weights[:known]
        if not share.any():
            return Rate(0.0, np.inf, 0, "no samples yet")
        return fit.rate(share / share.sum())

    def _fit(self, signal: Signal) -> Fit:
        output = self.signals.index(signal)
        fit = self._fits.get(output)
        if fit is None or fit.n != self._unmixer.n:
            fit = self._fits[output] = self._unmixer.fit(output, self._swing[:, output], self._repeats)
        return fit

    def mean(self, signal: Signal) -> float | None:
        """The device's own mean over all windows."""
        return float(self.measured[self.signals.index(signal)]) / self.covered_s if self.covered_s else None

    def targets(self) -> Floats:
        """What each column should have of the lead's measured total, in proportion to its rate times its active time.

        The less certain a rate, the closer it is drawn to the mean (weights by inverse variance, the mean's own
        spread taken to be its size): with no certainty, time decides, as it does in the overlap mean.
        """
        mean = self.mean(self.lead) or 0.0
        active_s, fit = self._active_s(), self._fit(self.lead)
        targets = np.zeros(len(active_s))
        known = min(len(fit.rates), len(active_s))
        doubt = (fit.half_widths()[:known] / Z95) ** 2
        weight = np.where(np.isfinite(doubt) & (mean > 0), mean**2 / (mean**2 + doubt), 0.0) if mean else 0.0
        targets[:known] = (weight * fit.rates[:known] + (1 - weight) * mean) * active_s[:known]
        total = float(targets.sum())
        return targets / total * float(self.measured[0]) if total > 0 else targets

    def shares(self) -> Floats:
        """What every column was given so far of the lead's measured total: never less than before."""
        self._shares.hand_out(float(self.measured[0]), self.targets())
        return self._shares.shared

    def merge(self, column: int, into: int) -> None:
        """Make a column part of another, and free it."""
        self.shares()
        self._shares.merge(column, into)
        self._unmixer.merge(column, into)
        self._settled.merge(column, into)
        if column < len(self._swing):
            self._swing[column] = 0.0
        self._watched_n = 0
        self._fits.clear()


def _places(rows: tuple[Ints, Ints, Ints], starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For each window the mass of the row with the same edges, and whether there is one."""
    row_starts, row_ends, masses = rows
    if not len(row_ends):
        return np.zeros(len(ends), np.int64), np.zeros(len(ends), bool)
    place = np.minimum(np.searchsorted(row_ends, ends), len(row_ends) - 1)
    return masses[place], (row_ends[place] == ends) & (row_starts[place] == starts)
