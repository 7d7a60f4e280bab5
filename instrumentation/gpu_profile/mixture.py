"""Sensor windows set beside the regions that were active in them: one family of signals that share their windows. Pure.

A driver stamps a reading with the moment of the call, but what it hands out is older: GPM and the energy counter renew
themselves every 100 ms at a phase that no reader is told, other sensors lag. The timing is therefore looked for in the
data: of a grid of lags and phases, the one that leaves the least residual. While it is looked for, windows are kept;
then it is locked, and only the normal equations remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.join import ActiveTime
from gpu_profile.timeline import Floats, Ints, Timeline
from gpu_profile.units import NS_PER_S
from gpu_profile.unmix import Fit, Rate, Unmixer

_MS: Final = 1_000_000
#: Steps of the grid and of the finer ones around its best point, and the longest lag that is tried.
STEP_NS: Final = 5 * _MS
FINE_STEPS_NS: Final = (_MS, _MS // 5)
LONGEST_LAG_NS: Final = 120 * _MS
#: A driver call takes up to this long, so that its stamp may be on the other side of a renewal than its reading.
GUARD_NS: Final = 2 * _MS
#: Windows after which the timing is locked: 30 s at 10 Hz.
LOCK_AT: Final = 300
#: It is looked for again when there are this many times as many: each search costs some hundred small fits.
JUDGE_GROWTH: Final = 1.5
#: The search starts with this many windows per unknown.
_LEAST_PER_COLUMN: Final = 3

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
            wanted = targets * (measured / total)
        else:
            wanted = np.zeros(len(targets))
            wanted[0] = measured
        short = np.maximum(wanted - self.shared, 0.0)
        missing = float(short.sum())
        left = measured - float(self.shared.sum())
        if missing > 0 and left > 0:
            self.shared = self.shared + short * min(1.0, left / missing)


class Timing(NamedTuple):
    """What moment a reading stamped `t` is of: `t - lag_ns`, or the sensor's last renewal, which comes every
    `period_ns` at `phase_ns` (0 for no such period). `blur_ns` is how far the grid leaves either open."""

    lag_ns: int = 0
    period_ns: int = 0
    phase_ns: int = 0
    blur_ns: int = 0

    def moments(self, stamps: Ints) -> Ints:
        """The moments that the readings stamped `stamps` are of."""
        if not self.period_ns:
            return stamps - self.lag_ns
        return stamps - (stamps - self.phase_ns) % self.period_ns

    def clear(self, stamps: Ints) -> npt.NDArray[np.bool_]:
        """Which stamps are far enough from a renewal to tell which side of it they are on: a call takes time."""
        if not self.period_ns:
            return np.ones(len(stamps), bool)
        since = (stamps - self.phase_ns) % self.period_ns
        return (since >= GUARD_NS + self.blur_ns) & (since < self.period_ns - GUARD_NS)

    def around(self, step_ns: int) -> tuple[Timing, ...]:
        """This timing and its neighbours on a finer grid, as far as the coarser one leaves it open."""
        moves = range(-self.blur_ns, self.blur_ns + 1, step_ns)
        if self.period_ns:
            return tuple(Timing(0, self.period_ns, (self.phase_ns + move) % self.period_ns, step_ns) for move in moves)
        return tuple(Timing(self.lag_ns + move, blur_ns=step_ns) for move in moves if self.lag_ns + move >= 0)


def grids(signal: Signal) -> Iterator[tuple[tuple[Timing, ...], float]]:
    """The grids for a signal, each with what its residuals are multiplied with before they are compared.

    Every lag, and every phase of its renewals if it has them. As long as a reader keeps exact time the two cannot be
    told apart, but only the second stays right when a reading comes late: a lag has to fit clearly better.
    """
    period = signal.refresh_ns
    lags = tuple(Timing(lag, blur_ns=STEP_NS) for lag in range(0, LONGEST_LAG_NS + 1, 2 * STEP_NS))
    yield lags, 1.25 if period else 1.0
    if period:
        yield tuple(Timing(0, period, phase, STEP_NS) for phase in range(0, period, STEP_NS)), 1.0


class _Windows(NamedTuple):
    """Windows of a family: the stamps of their edges in ns since the epoch, and every signal's masses over them."""

    starts: Ints
    ends: Ints
    masses: Floats


class ColumnActivity(NamedTuple):
    """Of every column: exclusive active time in s, and the mean length in ns of a stretch of it without a break."""

    total_s: Floats
    stretch_ns: Floats


class Mixture:
    """One family of signals of one device. `columns(name)` numbers a region; column 0 is nobody's time."""

    def __init__(self, timeline: Timeline, family: tuple[Signal, ...], *, start_ns: int) -> None:
        self.timeline = timeline
        self.signals = tuple(s for s in family if timeline.column(s) is not None)
        self.lead = family[0]
        self.start_ns = start_ns
        self.covered_s = 0.0
        self.measured: Floats = np.zeros(len(self.signals))
        self.shares = Shares()
        self.timing = Timing()
        self.locked = self.lead in _IMMEDIATE
        #: What the pool knows of every column, and keeps up to date here.
        self.activity = ColumnActivity(np.zeros(1), np.full(1, np.inf))
        self._seen_ns = start_ns
        #: Nothing is busier than busy: rates of ratios end at 1.
        self._most = self.lead.base(self.lead.limit) if self.lead.kind is Kind.WINDOW_MEAN else np.inf
        self._unmixer = Unmixer(self._most)
        self._kept: list[_Windows] = []
        self._judged_n = 0
        self._fits: dict[int, Fit] = {}

    @property
    def n(self) -> int:
        """Windows taken in."""
        return self._unmixer.n

    @property
    def columns(self) -> int:
        """Columns that a window was met by, nobody's included."""
        return self._unmixer.columns

    # ------------------------------------------------------------------ taking in

    def take(
        self,
        recent: ActiveTime,
        whole: Callable[[], ActiveTime],
        index: Mapping[str, int],
        until_ns: int,
    ) -> None:
        """Take the windows that ended by `until_ns` in. `recent` reaches back over their lags, `whole` to the start."""
        windows = self._fetch(until_ns)
        self.covered_s += float((windows.ends - windows.starts).sum()) / NS_PER_S
        self.measured = self.measured + windows.masses.sum(axis=0)
        # A reading may look back to before the first slice, and nobody knows whose time that was.
        looks_back_to = np.minimum(windows.starts, windows.ends - self._window_ns) - LONGEST_LAG_NS
        known = looks_back_to >= max(recent.origin_ns, self.start_ns)
        windows = _Windows(windows.starts[known], windows.ends[known], windows.masses[known])
        if not len(windows.ends):
            return
        if not self.locked:
            self._kept.append(windows)
        if not self._judge(whole, index):
            self._add(windows, recent, index)
        self.shares.hand_out(float(self.measured[0]), self.targets())

    def _fetch(self, until_ns: int) -> _Windows:
        columns = [c for s in self.signals if (c := self.timeline.column(s)) is not None]
        starts, ends, masses = columns[0].edges(self._seen_ns, until_ns)
        if len(ends):
            self._seen_ns = int(ends[-1])
        keep = (starts >= self.start_ns) & (ends > starts)
        taken = np.zeros((len(ends), len(columns)))
        taken[:, 0] = masses
        absent = []
        for i, column in enumerate(columns[1:], start=1):
            if not keep.any():
                break
            place, fits = _places(column.edges(int(starts[0]), until_ns), starts, ends)
            if fits.any():
                keep &= fits
                taken[:, i] = place
            else:
                absent.append(i)
        if absent:
            # A signal that has no readings must not silence the others of its family: it leaves.
            self._leave(absent)
            columns = [column for i, column in enumerate(columns) if i not in absent]
            taken = np.delete(taken, absent, axis=1)
        unit = 1 if self.lead.kind is Kind.COUNTER else NS_PER_S
        scale = np.array([column.signal.quantum / unit for column in columns])
        return _Windows(starts[keep], ends[keep], taken[keep] * scale)

    def _leave(self, outputs: list[int]) -> None:
        """Go on without some of the signals."""
        self.signals = tuple(signal for i, signal in enumerate(self.signals) if i not in outputs)
        self.measured = np.delete(self.measured, outputs)
        self._kept = [w._replace(masses=np.delete(w.masses, outputs, axis=1)) for w in self._kept]
        self._unmixer.leave(outputs)
        self._fits.clear()

    def _add(self, windows: _Windows, active: ActiveTime, index: Mapping[str, int]) -> None:
        design, values = self._equations(windows, active, index, self.timing)
        self._unmixer.add(design, values)

    def _equations(
        self, windows: _Windows, active: ActiveTime, index: Mapping[str, int], timing: Timing
    ) -> tuple[Floats, Floats]:
        """Shares of every window by column, and the signals' means over it, under a timing.

        The shares are averaged over what the grid leaves open of the moments: the smeared window.
        """
        starts, ends = timing.moments(windows.starts), timing.moments(windows.ends)
        keep = ends > starts
        clear = keep & timing.clear(windows.starts) & timing.clear(windows.ends)
        if clear.sum() * 2 >= keep.sum():
            keep = clear
        starts, ends = starts[keep], ends[keep]
        counter = self.lead.kind is Kind.COUNTER
        stamped = (windows.ends - windows.starts)[keep]
        # A counter grew between the moments; a mean was taken by the driver over whatever it covered.
        values = windows.masses[keep] * NS_PER_S / (ends - starts if counter else stamped)[:, None]
        low = (starts - active.origin_ns).astype(np.float64)
        high = (ends - active.origin_ns).astype(np.float64)
        if self._window_ns:
            low = high - self._window_ns
        design = np.zeros((len(low), max(index.values(), default=0) + 1))
        offsets = (timing.blur_ns * 0.25, timing.blur_ns * 0.75) if timing.blur_ns else (0.0,)
        # A lag of the grid stands for the lags up to the next; a phase, for the renewals up to the next.
        sign = 1 if timing.period_ns else -1
        for region in active.regions:
            time = sum(active.during(region, low + sign * o, high + sign * o) for o in offsets)
            design[:, index[region]] += time / (len(offsets) * (high - low))
        design[:, 0] = np.clip(1.0 - design[:, 1:].sum(axis=1), 0.0, 1.0)
        return design, values

    @property
    def _window_ns(self) -> int:
        """How far a reading looks back, where that is further than to the reading before."""
        return self.lead.window_ns if self.lead is rows.POWER_AVERAGE else 0

    def _judge(self, whole: Callable[[], ActiveTime], index: Mapping[str, int]) -> bool:
        """Look for the timing again if there are half as many windows more; True if the equations were made anew."""
        if self.locked:
            return False
        n = sum(len(w.ends) for w in self._kept)
        columns = max(index.values(), default=0) + 1
        if n < JUDGE_GROWTH * self._judged_n or n < _LEAST_PER_COLUMN * columns or columns == 1:
            return False
        self._judged_n = n
        windows = _Windows(*(np.concatenate(part) for part in zip(*self._kept, strict=True)))
        active = whole()

        def residual(timing: Timing) -> float:
            return self._residual(windows, active, index, timing)

        self.timing, least = Timing(), np.inf
        for grid, handicap in grids(self.lead):
            best = min(grid, key=residual)
            for step in FINE_STEPS_NS:
                best = min(best.around(step), key=residual)
            if residual(best) * handicap < least:
                self.timing, least = best, residual(best) * handicap
        self._unmixer = Unmixer(self._most)
        self._add(windows, active, index)
        if n >= LOCK_AT:
            self.lock()
        return True

    def lock(self) -> None:
        """Stay with the timing that was found, and forget the windows."""
        self.locked = True
        self._kept = []

    def _residual(self, windows: _Windows, active: ActiveTime, index: Mapping[str, int], timing: Timing) -> float:
        unmixer = Unmixer(self._most)
        design, values = self._equations(windows, active, index, timing)
        unmixer.add(design, values[:, :1])
        return unmixer.residual

    # ------------------------------------------------------------------ answers

    def rate(self, signal: Signal, weights: Mapping[int, float], stretch_ns: float) -> Rate:
        """The rate of a mixture of columns, in base units (a counter's: per second); `weights` are their active times.

        `stretch_ns` is how long the mixture is active without a break, on average.
        """
        fit = self._fit(signal)
        share = np.zeros(len(fit.rates))
        for column, weight in weights.items():
            if column < len(share):
                share[column] = weight
        if not share.any():
            return Rate(0.0, np.inf, 0, "no samples yet")
        return fit.rate(share / share.sum(), doubt=self._timing_doubt(stretch_ns))

    def _fit(self, signal: Signal) -> Fit:
        output = self.signals.index(signal)
        fit = self._fits.get(output)
        if fit is None or fit.n != self._unmixer.n:
            fit = self._fits[output] = self._unmixer.fit(output)
        return fit

    def _timing_doubt(self, stretch_ns: float) -> float:
        """How much of a mixture's time may be its neighbours', for all that is known of the timing.

        Every stretch of it has two edges, each open by half of the grid's step, always in the same direction: it does
        not average out, so a region that never lasts longer than that cannot be told from its neighbours.
        """
        return self.timing.blur_ns / 2 / max(stretch_ns, 1.0)

    def mean(self, signal: Signal) -> float | None:
        """The device's own mean over all windows."""
        return float(self.measured[self.signals.index(signal)]) / self.covered_s if self.covered_s else None

    def targets(self) -> Floats:
        """What each column should have of the lead's measured total, in proportion to its rate times its active time.

        The less certain a rate, the closer it is drawn to the mean (weights by inverse variance, the mean's own
        spread taken to be its size): with no certainty, time decides, as it does in the overlap mean.
        """
        mean = self.mean(self.lead) or 0.0
        active_s, fit = self.activity.total_s, self._fit(self.lead)
        targets = np.zeros(len(active_s))
        for i, stretch_ns in enumerate(self.activity.stretch_ns[: len(fit.rates)]):
            rate = fit.rate(np.eye(len(fit.rates))[i], doubt=self._timing_doubt(float(stretch_ns)))
            doubt = rate.half_width**2
            weight = mean**2 / (mean**2 + doubt) if mean and np.isfinite(doubt) else 0.0
            targets[i] = (weight * rate.value + (1 - weight) * mean) * active_s[i]
        total = float(targets.sum())
        return targets * (float(self.measured[0]) / total) if total > 0 else targets


def _places(rows: tuple[Ints, Ints, Ints], starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For each window the mass of the row with the same edges, and whether there is one."""
    row_starts, row_ends, masses = rows
    if not len(row_ends):
        return np.zeros(len(ends), np.int64), np.zeros(len(ends), bool)
    place = np.minimum(np.searchsorted(row_ends, ends), len(row_ends) - 1)
    return masses[place], (row_ends[place] == ends) & (row_starts[place] == starts)
