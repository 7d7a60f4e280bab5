"""The windows of signals that share them, as they come into a device's timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.unmixing.design import Windows
from gpu_profile.units import NS_PER_S

#: Signals that share their windows. The first of a family leads: its residual chooses the timing for all.
FAMILIES: Final[tuple[tuple[Signal, ...], ...]] = (
    (rows.GRAPHICS, rows.SM, rows.OCCUPANCY, rows.TENSOR, rows.DRAM, rows.FP64, rows.FP32, rows.FP16),
    (rows.UTILIZATION, rows.MEMORY_CONTROLLER),
    (rows.ENERGY,),
    (rows.POWER,),
    (rows.POWER_AVERAGE,),
    (rows.PCIE_RX, rows.PCIE_TX),
    (rows.NVLINK_RX, rows.NVLINK_TX),
)
#: A family that is not needed where the lead of another is there: the better source makes it superfluous.
SUPERSEDED: Final[Mapping[Signal, Signal]] = {
    rows.UTILIZATION: rows.GRAPHICS,
    rows.POWER: rows.ENERGY,
    rows.POWER_AVERAGE: rows.ENERGY,
}
#: Counters that the driver reads from hardware at the call: there is no timing to look for.
IMMEDIATE: Final = frozenset({rows.PCIE_RX, rows.NVLINK_RX})
#: A board draws no more than this many times its limit: its controller averages over milliseconds, so that shorter
#: kernels exceed it.
_ABOVE_LIMIT: Final = 1.5
#: A signal that has readings, but for none of so many windows, does not belong to them.
_SILENT: Final = 10
#: Active time is not kept any longer than this for a signal that says nothing.
_LONGEST_SILENCE_NS: Final = 10 * NS_PER_S
#: If it takes so many times as long as it usually does until a counter grows, it missed a renewal.
_STUCK: Final = 1.7
#: Readings that repeat the one before say nothing of their own where no more than this share does: where more do, they
#: are read more often than they are renewed, or are what a steady device shows.
_FEW_REPEATED: Final = 0.3


class SignalFamily:
    """The windows that all signals of a family have in a timeline, each fetched once, and what was measured in them."""

    def __init__(self, timeline: Timeline, signals: tuple[Signal, ...], start_ns: int) -> None:
        self._timeline = timeline
        self.lead = signals[0]
        self.signals = tuple(signal for signal in signals if timeline.column(signal) is not None)
        #: Windows from before are not fetched; the newest that was ended here.
        self.start_ns = self.seen_ns = start_ns
        #: Windows that were fetched, the time that they cover, and each signal's mass over them.
        self.n = 0
        self.covered_s = 0.0
        self.measured: Floats = np.zeros(len(self.signals))
        #: Windows in which a counter grew, and how long they and those before them took.
        self._grown, self._took_ns = 0, 0
        #: Since when it has not grown, where that is known.
        self._still_ns: int | None = None
        #: Readings, how many of them repeat the one before or are next to it, and the last one.
        self._read, self._repeated, self._next, self._last = 0, 0, 0, math.nan
        #: Windows in a row that each signal has had no readings for.
        self._silent = [0] * len(self.signals)

    @property
    def most(self) -> float:
        """The highest rate that there can be: nothing is busier than busy, and no board draws much more than its limit
        for as long as an execution."""
        most = self.lead.base(self.lead.limit)
        if self.lead in rows.POWER_SOURCES:
            limit = self._timeline.column(rows.POWER_LIMIT)
            if limit is not None and limit.last is not None and limit.last.value:
                most = min(most, _ABOVE_LIMIT * limit.signal.base(limit.last.value))
        return float(most)

    @property
    def cut_off(self) -> float:
        """What a reading may leave out, in base units: utilisation is cut off to whole percents, not rounded."""
        return self.lead.base(1) if self.lead is rows.UTILIZATION else 0.0

    @property
    def length_ns(self) -> int:
        """The mean length of a window."""
        return round(self.covered_s * NS_PER_S / max(1, self.n))

    def mean(self, signal: Signal) -> float | None:
        """The device's own mean over all windows."""
        return float(self.measured[self.signals.index(signal)]) / self.covered_s if self.covered_s else None

    def fetch(self, until_ns: int) -> tuple[Windows, list[int]]:
        """The windows that ended by then and were not fetched yet, and the places of signals that turned out to have no
        readings in them: they have left."""
        columns = [c for s in self.signals if (c := self._timeline.column(s)) is not None]
        starts, ends, masses = columns[0].edges(self.seen_ns, until_ns)
        if self.lead.kind is Kind.COUNTER and self.lead not in IMMEDIATE:
            starts, ends, masses = self._joined(starts, ends, masses)
        self.seen_ns = int(ends[-1]) if len(ends) else max(self.seen_ns, until_ns - _LONGEST_SILENCE_NS)
        keep = (starts >= self.start_ns) & (ends > starts)
        taken = np.zeros((len(ends), len(columns)))
        taken[:, 0] = masses
        absent = []
        for i, column in enumerate(columns[1:], start=1):
            if not keep.any():
                break
            place, fits = _places(column.edges(int(starts[0]), until_ns), starts, ends)
            self._silent[i] = 0 if fits.any() else self._silent[i] + len(ends)
            if not fits.any() and (column.watermark_ns is None or self._silent[i] >= _SILENT):
                absent.append(i)
            else:
                keep &= fits
                taken[:, i] = place
        if absent:
            # A signal that has no readings must not silence the others of its family: it leaves.
            columns = [column for i, column in enumerate(columns) if i not in absent]
            taken = np.delete(taken, absent, axis=1)
            self.signals = tuple(signal for i, signal in enumerate(self.signals) if i not in absent)
            self.measured = np.delete(self.measured, absent)
            self._silent = [0] * len(self.signals)
        unit = 1 if self.lead.kind is Kind.COUNTER else NS_PER_S
        scale = np.array([column.signal.quantum / unit for column in columns])
        windows = Windows(starts[keep], ends[keep], taken[keep] * scale)
        self.n += len(windows.ends)
        self.covered_s += float((windows.ends - windows.starts).sum()) / NS_PER_S
        self.measured = self.measured + windows.masses.sum(axis=0)
        if self.lead is rows.POWER:
            # No two are alike to the milliwatt, but of a sensor that is stuck.
            windows = windows.where(np.diff(windows.masses[:, 0], prepend=np.nan) != 0)
        return windows.where(self._fresh(windows)) if self.lead is rows.POWER_AVERAGE else windows, absent

    def _fresh(self, windows: Windows) -> npt.NDArray[np.bool_]:
        """Which windows have a reading that was renewed since the one before, as far as its value tells."""
        quanta = np.rint(windows.masses[:, 0] * NS_PER_S / self.lead.quantum / (windows.ends - windows.starts))
        steps = np.abs(np.diff(quanta, prepend=self._last))
        repeats = steps == 0
        self._read, self._repeated = self._read + len(quanta), self._repeated + int(repeats.sum())
        self._next += int((steps == 1).sum())
        if len(quanta):
            self._last = float(quanta[-1])
        # By chance, half as many readings are equal to the one before as are next to it.
        told = self._next < self._repeated <= _FEW_REPEATED * self._read
        return ~repeats if told else np.ones(len(quanta), bool)

    def _joined(self, starts: Ints, ends: Ints, masses: Ints) -> tuple[Ints, Ints, Ints]:
        """A counter's windows up to its latest growth, those in which it was stuck as one with the next: what it grows
        by then is of all of them."""
        grew = np.flatnonzero(masses > 0)
        if len(starts) and self._still_ns is not None:
            # The first of the windows in which it was stuck may have been let go of since.
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

    def restart(self, since_ns: int) -> None:
        """Time goes on from an earlier moment than it had reached."""
        self.start_ns = self.seen_ns = since_ns
        self._still_ns = None


def _places(rows: tuple[Ints, Ints, Ints], starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For each window the mass of the row with the same edges, and whether there is one."""
    row_starts, row_ends, masses = rows
    if not len(row_ends):
        return np.zeros(len(ends), np.int64), np.zeros(len(ends), bool)
    place = np.minimum(np.searchsorted(row_ends, ends), len(row_ends) - 1)
    return masses[place], (row_ends[place] == ends) & (row_starts[place] == starts)
