"""The windows of signals with common windows, as they arrive in a device's timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Column, Floats, Ints, Timeline
from gpu_profile.join.unmixing.pools.unmeasured import Unmeasured
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.solving.equations import sized
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.sensor import Sensor
from gpu_profile.units import NS_PER_S

#: Signals with common windows. The first of a family leads: its residual determines the timing of all.
FAMILIES: Final[tuple[tuple[Signal, ...], ...]] = (
    (rows.GRAPHICS, rows.SM, rows.OCCUPANCY, rows.TENSOR, rows.DRAM, rows.FP64, rows.FP32, rows.FP16, rows.INTEGER),
    (rows.UTILIZATION, rows.MEMORY_CONTROLLER),
    (rows.ENERGY,),
    (rows.POWER,),
    (rows.POWER_AVERAGE,),
    (rows.PCIE_RX, rows.PCIE_TX),
    (rows.NVLINK_RX, rows.NVLINK_TX),
)
#: Families that become redundant if the lead of another one has readings: by lead, the better lead.
SUPERSEDED: Final[Mapping[Signal, Signal]] = {
    rows.UTILIZATION: rows.GRAPHICS,
    rows.POWER: rows.ENERGY,
    rows.POWER_AVERAGE: rows.ENERGY,
}
#: Counters that the driver reads from the hardware during the call: their timing needs no search.
IMMEDIATE: Final = frozenset({rows.PCIE_RX, rows.NVLINK_RX})
#: The highest power of a board, as a multiple of its limit: its controller averages over milliseconds, so shorter
#: kernels exceed the limit.
_ABOVE_LIMIT: Final = 1.5
#: Number of windows without a reading after which a signal leaves its family.
_SILENT: Final = 10
#: Active time is kept for at most this long for a signal without readings.
_LONGEST_SILENCE_NS: Final = 10 * NS_PER_S
#: A counter missed a renewal if it grows only after this multiple of its usual time.
_STUCK: Final = 1.7
#: Windows whose median length is the usual one.
_SEVERAL: Final = 5
#: Readings that repeat the one before are ignored if at most this share does. A larger share means that they are read
#: more often than they are renewed, or that the device is steady.
_FEW_REPEATED: Final = 0.3
#: Rounding averages out if more than this share of readings differ from the one before by more than a step. Programs
#: that begin, end or pause cause fewer such differences.
_FEW_FAR: Final = 0.03
#: No sensor of a board's power has larger steps.
_COARSEST_W: Final = 10.0


class SignalFamily:
    """The windows of a family's signals in a timeline, each fetched once, and the measured totals over them."""

    def __init__(self, timeline: Timeline, signals: tuple[Signal, ...], start_ns: int) -> None:
        self._timeline = timeline
        self.lead = signals[0]
        self.signals = tuple(signal for signal in signals if timeline.column(signal) is not None)
        #: Earlier windows are not fetched; the end of the newest fetched window.
        self.start_ns = self.seen_ns = start_ns
        #: Fetched windows, the time that they cover, and each signal's integral over them.
        self.n = 0
        self.covered_s = 0.0
        #: The usual length of a window, by the latest fetch of several.
        self.usual_ns = 0
        #: By column: its active time in fetched windows, and the stretches of these windows that are not in it yet.
        self._active_ns: Floats = np.zeros(1)
        self._uncounted: list[tuple[Ints, Ints]] = []
        self.unmeasured = Unmeasured(signals[0])
        self.measured: Floats = np.zeros(len(self.signals))
        #: Windows in which a counter grew, and the time that they took, with the windows without growth before them.
        self._grown, self._took_ns = 0, 0
        #: The time since which it has not grown; None if that is uncertain.
        self._still_ns: int | None = None
        #: Readings; how many of them equal the one before, differ by a step, and by more; and the last reading.
        self._read, self._repeated, self._next, self._far, self._last = 0, 0, 0, 0, math.nan
        #: The largest step, in quanta, of which all differences are multiples.
        self._step = 0
        #: By signal: consecutive windows without a reading.
        self._silent = [0] * len(self.signals)

    @property
    def most(self) -> float:
        """The highest possible rate. A device is at most fully busy, and a board draws little more than its limit over
        the length of an execution."""
        most = self.lead.base(self.lead.limit)
        if self.lead in rows.POWER_SOURCES:
            limit = self._timeline.column(rows.POWER_LIMIT)
            if limit is not None and limit.last is not None and limit.last.value:
                most = min(most, _ABOVE_LIMIT * limit.signal.base(limit.last.value))
        return float(most)

    @property
    def cut_off(self) -> float:
        """The most that a reading omits, in base units: utilisation is cut off to whole percents, not rounded.

        Power may be cut off too."""
        return self.step(self.lead) if self.lead in {rows.UTILIZATION, rows.POWER_AVERAGE} else 0.0

    def step(self, signal: Signal) -> float:
        """Readings of the signal may be multiples of this, in base units; 0 for a counter.

        The driver's unit of power may be finer than the sensor's: then all readings differ by multiples of the latter.
        """
        step = float(signal.base(1))
        return 0.0 if signal.kind is Kind.COUNTER else max(step, min(self._step * step, _COARSEST_W))

    @property
    def alike(self) -> bool:
        """Whether nearly all readings are within a step of the one before, so that rounding does not average out."""
        return self._far < _FEW_FAR * self._read

    @property
    def length_ns(self) -> int:
        """The mean length of a window."""
        return round(self.covered_s * NS_PER_S / max(1, self.n))

    def usual_of(self, sensor: Sensor) -> int:
        """The usual time between readings that describe all of the time since the one before; 0 for other sensors."""
        return self.usual_ns if not sensor.window_ns or self.lead.kind is Kind.COUNTER else 0

    def mean(self, signal: Signal) -> float | None:
        """The device's own mean over all windows."""
        return float(self.measured[self.signals.index(signal)]) / self.covered_s if self.covered_s else None

    def fetch(self, until_ns: int) -> tuple[Windows, list[int]]:
        """The windows that ended by `until_ns` and were not fetched yet, and the indices of signals without readings.
        These signals have left the family."""
        columns = [c for s in self.signals if (c := self._timeline.column(s)) is not None]
        starts, ends, lead = self._of_lead(columns[0], until_ns)
        keep = (starts >= self.start_ns) & (ends > starts)
        masses, absent = np.zeros((len(ends), len(columns))), []
        masses[:, 0] = lead
        for i, column in enumerate(columns[1:], start=1):
            if not keep.any():
                break
            own, fits = _places(column.edges(int(starts[0]), until_ns), starts, ends)
            self._silent[i] = 0 if fits.any() else self._silent[i] + len(ends)
            if not fits.any() and (column.watermark_ns is None or self._silent[i] >= _SILENT):
                absent.append(i)
            else:
                keep &= fits
                masses[:, i] = own
        unit = 1 if self.lead.kind is Kind.COUNTER else NS_PER_S
        masses = masses[keep] * np.array([column.signal.quantum / unit for column in columns])
        if absent:
            self._leave(absent)
            masses = np.delete(masses, absent, axis=1)
        windows = Windows(starts[keep], ends[keep], masses)
        self._measure(windows)
        return windows.where(self._fresh(windows)), absent

    def _of_lead(self, column: Column, until_ns: int) -> tuple[Ints, Ints, Ints]:
        """The starts, ends and masses of the first signal's rows by `until_ns`. They are seen from then on."""
        starts, ends, masses = column.edges(self.seen_ns, until_ns)
        if self.lead.kind is Kind.COUNTER and self.lead not in IMMEDIATE:
            starts, ends, masses = self._joined(starts, ends, masses)
        silent_ns = until_ns - _LONGEST_SILENCE_NS
        self.unmeasured.note(self.seen_ns, ends if len(ends) else np.array([silent_ns]), self.usual_ns)
        self.seen_ns = int(ends[-1]) if len(ends) else max(self.seen_ns, silent_ns)
        return starts, ends, masses

    def _leave(self, absent: list[int]) -> None:
        """Drop signals without readings: they must not silence the others of the family."""
        self.signals = tuple(signal for i, signal in enumerate(self.signals) if i not in absent)
        self.measured = np.delete(self.measured, absent)
        self._silent = [0] * len(self.signals)

    def _measure(self, windows: Windows) -> None:
        """Add windows to the measured totals and to the time that they cover."""
        starts, ends = windows.starts, windows.ends
        self.n += len(ends)
        if len(ends) >= _SEVERAL:
            self.usual_ns = int(np.median(ends - starts))
        self.covered_s += float((ends - starts).sum()) / NS_PER_S
        if len(ends):
            apart = starts[1:] != ends[:-1]
            self._uncounted.append((starts[np.append(True, apart)], ends[np.append(apart, True)]))
        self.measured = self.measured + windows.masses.sum(axis=0)

    @property
    def needs_ns(self) -> int:
        """The time from which windows still need active time to be counted: `seen_ns` if only later ones do."""
        needs_ns = int(self._uncounted[0][0][0]) if self._uncounted else self.seen_ns
        return min(needs_ns, self.unmeasured.since_ns or needs_ns)

    def count(self, active: ActiveTime, columns: int, window_ns: int) -> None:
        """Add up the active time in the windows fetched since the last call. A reading is a mean over `window_ns`."""
        self.unmeasured.count(active, columns, window_ns)
        for starts, ends in self._uncounted:
            passed = active.until(np.concatenate((starts, ends)), columns)
            self._active_ns = sized(self._active_ns, max(columns, len(self._active_ns)))
            self._active_ns[:columns] += passed[:, len(starts) :].sum(axis=1) - passed[:, : len(starts)].sum(axis=1)
        self._uncounted = []

    def covered(self, active_s: Floats) -> tuple[Floats, Floats]:
        """The part of each column's active time that windows cover, in s, and the part of each region's that none does.
        Column 0 is the time outside regions.

        The latter has no part of the measured total: a program may run, or pause, while nobody samples. It is at most
        the time that the windows up to the latest one leave out, and the length of a window: others may still come.
        """
        covered_s = np.minimum(active_s, sized(self._active_ns, len(active_s)) / NS_PER_S)
        covered_s[0] = max(0.0, self.covered_s - float(covered_s[1:].sum()))
        seen_s = (self.seen_ns - self.start_ns + self.length_ns) / NS_PER_S
        left_out_s = max(0.0, min(float(active_s.sum()), seen_s) - self.covered_s)
        uncovered_s: Floats = np.minimum(active_s - covered_s, left_out_s)
        uncovered_s[0] = 0.0
        return covered_s, uncovered_s

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        self._active_ns = sized(self._active_ns, 1 + max(column, into, len(self._active_ns) - 1))
        self._active_ns[into] += self._active_ns[column]
        self._active_ns[column] = 0.0
        self.unmeasured.merge(column, into)

    def _fresh(self, windows: Windows) -> npt.NDArray[np.bool_]:
        """Which windows have a reading that was renewed since the one before, judged by its value."""
        if self.lead is rows.POWER:
            # Power differs from reading to reading by at least a milliwatt, unless the sensor is stuck.
            return np.asarray(np.diff(windows.masses[:, 0], prepend=np.nan) != 0)
        if self.lead is not rows.POWER_AVERAGE:
            return np.ones(len(windows.ends), bool)
        quanta = np.rint(windows.masses[:, 0] * NS_PER_S / self.lead.quantum / (windows.ends - windows.starts))
        steps = np.abs(np.diff(quanta, prepend=self._last))
        repeats = steps == 0
        self._read, self._repeated = self._read + len(quanta), self._repeated + int(repeats.sum())
        changes = steps[steps > 0].astype(np.int64)
        step = int(np.gcd.reduce(changes, initial=self._step))
        if step != self._step:
            self._step, self._next = step, 0
        self._next, self._far = self._next + int((changes == step).sum()), self._far + int((changes > step).sum())
        if len(quanta):
            self._last = float(quanta[-1])
        # By chance, readings equal the one before half as often as they differ by a step.
        informative = self._next < self._repeated <= _FEW_REPEATED * self._read
        return ~repeats if informative else np.ones(len(quanta), bool)

    def _joined(self, starts: Ints, ends: Ints, masses: Ints) -> tuple[Ints, Ints, Ints]:
        """A counter's windows up to its latest growth. A window in which it was stuck is joined with the next one: the
        growth by then belongs to both."""
        grew = np.flatnonzero(masses > 0)
        if len(starts) and self._still_ns is not None:
            # The first window in which it was stuck may have left the history.
            starts = starts.copy()
            starts[0] = min(starts[0], self._still_ns)
        after = grew[-1] + 1 if len(grew) else 0
        if after < len(starts):
            self._still_ns = int(starts[after])
        elif len(grew):
            self._still_ns = None
        if not len(grew):
            return starts[:0], ends[:0], masses[:0]
        starts, ends, masses = starts[:after], ends[:after], masses[:after]
        first = np.append(0, grew[:-1] + 1)
        took = ends[grew] - starts[first]
        self._grown, self._took_ns = self._grown + len(grew), self._took_ns + int(took.sum())
        if len(grew) == len(ends):
            return starts, ends, masses
        apart = np.append(0, starts[1:] - ends[:-1])
        apart[first] = 0
        stuck = took >= _STUCK * max(self.lead.refresh_ns, self._took_ns / self._grown)
        stuck &= (first < grew) & (np.maximum.reduceat(apart, first) == 0)
        keep = ~np.repeat(stuck, grew - first + 1)
        keep[grew] = True
        starts = starts.copy()
        starts[grew[stuck]] = starts[first[stuck]]
        return starts[keep], ends[keep], masses[keep]

    def skip(self, ahead_ns: int) -> None:
        """Move all times this much later: the clock was set."""
        self.start_ns, self.seen_ns = self.start_ns + ahead_ns, self.seen_ns + ahead_ns
        self._still_ns = self._still_ns and self._still_ns + ahead_ns
        self._uncounted = [(starts + ahead_ns, ends + ahead_ns) for starts, ends in self._uncounted]
        self.unmeasured.skip(ahead_ns)


def _places(rows: tuple[Ints, Ints, Ints], starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For each window the value of the row with the same edges, and whether there is one."""
    row_starts, row_ends, masses = rows
    if not len(row_ends):
        return np.zeros(len(ends), np.int64), np.zeros(len(ends), bool)
    place = np.minimum(np.searchsorted(row_ends, ends), len(row_ends) - 1)
    return masses[place], (row_ends[place] == ends) & (row_starts[place] == starts)
