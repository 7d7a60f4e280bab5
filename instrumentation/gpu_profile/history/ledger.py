"""Converts a signal's samples into rows, and sums the rows of a device's signals. Pure, and without numpy.

A row is an interval `(start, end]` with a value in whole quanta. The mass of a window mean's row is value x length. A
counter's row is its growth between two readings, spread evenly. An instant's row extends back to the reading before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gpu_profile.catalogue import BUSY_SOURCES, Kind, Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.history.busy_total import SILENCE_NS, BusyTotal
from gpu_profile.units import NS_PER_S

#: An instant (memory in use, a clock) is valid for at most this long before its reading.
LONGEST_HOLD_NS: Final = 5 * NS_PER_S
#: No driver's buffer delivers samples farther behind the watermark. `CLOCK_STEP_SAMPLES` such samples in a row mean
#: that the clock was set back, or that one stamp was far in the future.
CLOCK_STEP_NS: Final = 5 * NS_PER_S
CLOCK_STEP_SAMPLES: Final = 3
FARTHEST: Final = 1 << 62
_HIGHEST_COUNT: Final = 1 << 63
#: Newest rows to keep of a busy source, enough for a second: GPM's rows are 0.1 s long, the others longer.
_RECENT: Final = 64


class RowAccumulator:
    """Converts one signal's samples into rows. Subclasses store the rows with `_push` and `_restart`."""

    if not TYPE_CHECKING:
        __slots__ = ()

    signal: Signal
    total_mass: int
    total_covered_ns: int
    #: Samples left out, by reason. Also counts the clock's steps back, and a counter's wraps and resets.
    dropped: Counter[str]
    _counter: bool
    _mean: bool
    _lowest: int
    _highest: int
    _last_end: int | None
    _last_raw: int | None
    #: A counter's last reading in place of `_last_raw`, if the clock was set since then.
    _before_step: int | None
    #: Ends of consecutive samples far behind the watermark. Nearly always None, which saves a list per signal.
    _far_behind: list[int] | None

    def _open(self, signal: Signal) -> None:
        self.signal = signal
        self._counter = counter = signal.kind is Kind.COUNTER
        self._mean = signal.kind is Kind.WINDOW_MEAN
        # Sums of values in this range fit: `longest_exact_ns` leaves a factor of two above the signal's limit.
        self._lowest, self._highest = (0, (1 << 63) - 1) if counter else (1 - 2 * signal.limit, 2 * signal.limit - 1)
        self.dropped = Counter()
        self._last_raw = self._before_step = self._far_behind = None

    def _push(self, start: int, end: int, value: int, mass: int) -> None:
        """Add a row."""
        raise NotImplementedError

    def _restart(self, end_ns: int) -> None:
        """Discard all rows: the clock was set back to `end_ns`."""
        raise NotImplementedError

    def skip(self, ahead_ns: int) -> None:
        """The clock was set ahead: the next row starts this much after the end of the last one.

        A counter's growth is in the time after that, unless this rate is implausible: then it is in no row.
        """
        if self._last_end is not None:
            self._last_end += ahead_ns
        if self._last_raw is not None:
            self._before_step, self._last_raw = self._last_raw, None

    def set_back(self, end_ns: int) -> None:
        """The clock was set back to `end_ns`: discard all rows. A counter's growth meanwhile is in its total alone."""
        self.dropped["clock set back"] += 1
        if self._last_raw is not None:
            self._before_step, self._last_raw = self._last_raw, None
        self._restart(end_ns)

    @property
    def watermark_ns(self) -> int | None:
        """The end of the newest row; None without rows."""
        return self._last_end

    @property
    def stuck(self) -> bool:
        """True for an energy counter that has never grown: it is broken, because every GPU draws some power."""
        return self.signal is ENERGY and not self.total_mass and self.total_covered_ns >= SILENCE_NS

    def append(self, sample: Sample) -> bool:
        """Add one sample. False if it was left out."""
        _, start, end, value = sample
        return self.take(start, end, value)

    def take(self, start: int, end: int, value: int) -> bool:
        """Add a sample by its start and end in ns, and its value. False if it was left out; `dropped` has the reasons.

        Samples at or before the watermark are left out. `CLOCK_STEP_SAMPLES` of them in a row, each later than the one
        before and all more than `CLOCK_STEP_NS` behind, mean that the clock was set back. All rows are then discarded,
        and new ones start from the newest sample. A counter's growth in between is added to its total but to no row.
        """
        last_end = self._last_end
        if last_end is not None and type(value) is type(end) is int and last_end < end < FARTHEST:
            # Usual readings of counters and means need no other check.
            if (last := self._last_raw) is not None:
                growth = value - last
                if growth >= 0 and value < _HIGHEST_COUNT:
                    self._far_behind = None
                    if not growth and end - last_end < 2 * self.signal.refresh_ns:
                        return self._append_counter(end, value, last_end)
                    self._last_raw = value
                    self._push(last_end, end, value, growth)
                    return True
            elif (
                self._mean
                and type(start) is int
                and last_end <= start <= end
                and self._lowest <= value <= self._highest
            ):
                self._far_behind = None
                self._push(start, end, value, value * (end - start))
                return True
        return self._append_checked(start, end, value, last_end)

    def _append_checked(self, start: int, end: int, value: int, last_end: int | None) -> bool:
        """Add any sample."""
        if not type(value) is type(end) is type(start) is int:
            try:
                start, end, value = index(start), index(end), index(value)
            except TypeError:
                self.dropped["not a whole number"] += 1
                return False
        if not (self._lowest <= value <= self._highest and -FARTHEST < start < FARTHEST and -FARTHEST < end < FARTHEST):
            self.dropped["implausible"] += 1
            return False
        if last_end is not None and end <= last_end and not self._is_set_back(end, last_end):
            self.dropped["late" if end < last_end else "duplicate"] += 1
            return False
        self._far_behind = None
        last_end = self._last_end
        if self._counter:
            return self._append_counter(end, value, last_end)
        if self.signal.kind is Kind.INSTANT:
            start = end if last_end is None or end - last_end > LONGEST_HOLD_NS else last_end
        elif start > end:
            start = end
        elif last_end is not None and start < last_end:
            start = last_end
        self._push(start, end, value, value * (end - start))
        return True

    def _is_set_back(self, end: int, last_end: int) -> bool:
        """Whether this sample, which is not new, completes the evidence that the clock was set back."""
        if end >= last_end - CLOCK_STEP_NS:
            self._far_behind = None
            return False
        behind = self._far_behind
        if behind is None or end <= behind[-1]:
            behind = self._far_behind = []
        behind.append(end)
        if len(behind) < CLOCK_STEP_SAMPLES:
            return False
        self.set_back(end)
        return True

    def _append_counter(self, end: int, raw: int, last_end: int | None) -> bool:
        """Add a counter's reading that is its first, or at most the last."""
        last, before_step = self._last_raw, self._before_step
        if before_step is not None and last_end is not None:
            growth, lasts_ns = raw - before_step, end - last_end
            if not growth and lasts_ns < 2 * self.signal.refresh_ns:
                self.dropped["duplicate"] += 1
                return False
            if 0 <= growth * NS_PER_S <= self.signal.limit * lasts_ns:
                self._push(last_end, end, raw, growth)
            else:
                # The device went on while the machine or its clock stood still.
                self.dropped["clock set ahead"] += 1
                self._push(end, end, raw, 0)
        elif last is None or last_end is None:
            if before_step is not None and raw > before_step:
                self.total_mass += raw - before_step
                self._restart(end)  # later rows have sums from here on
            self._push(end, end, raw, 0)
        elif raw == last:
            if end - last_end < 2 * self.signal.refresh_ns:
                # The driver has not renewed the counter yet: the growth belongs to the next row.
                self.dropped["duplicate"] += 1
                return False
            self._push(last_end, end, raw, 0)
        else:
            growth = raw + self.signal.wraps_at - last
            if last < self.signal.wraps_at and growth * NS_PER_S <= self.signal.limit * (end - last_end):
                self.dropped["wrapped"] += 1
                self._push(last_end, end, raw, growth)
            else:
                # The counter's last value before the reset is unknown, so the time in between stays uncovered.
                self.dropped["reset"] += 1
                self._push(end, end, raw, 0)
        self._last_raw, self._before_step = raw, None
        return True


class SignalTotals(RowAccumulator):
    """The sums of one signal's rows, and the newest row: all that a scrape needs."""

    __slots__ = (
        "_before_step",
        "_counter",
        "_far_behind",
        "_highest",
        "_last_end",
        "_last_raw",
        "_lowest",
        "_mean",
        "_start",
        "_value",
        "dropped",
        "signal",
        "total_covered_ns",
        "total_mass",
    )

    def __init__(self, signal: Signal) -> None:
        self._open(signal)
        self.total_mass = self.total_covered_ns = self._start = self._value = 0
        self._last_end = None

    def _push(self, start: int, end: int, value: int, mass: int) -> None:
        self.total_mass += mass
        self.total_covered_ns += end - start
        self._start, self._last_end, self._value = start, end, value

    def skip(self, ahead_ns: int) -> None:
        """As `RowAccumulator.skip`."""
        super().skip(ahead_ns)
        self._start += ahead_ns

    def _restart(self, end_ns: int) -> None:  # noqa: ARG002 - there are no rows up to there
        self._last_end = None

    @property
    def last(self) -> Sample | None:
        """The newest reading; of a counter, its running total. None without rows."""
        end = self._last_end
        if end is None:
            return None
        return Sample(self.signal, self._start if self.signal.kind is Kind.WINDOW_MEAN else end, end, self._value)


class BusySourceTotals(SignalTotals):
    """A source of busy time: `SignalTotals`, with at least the newest second of rows. Adds to the device's total."""

    __slots__ = ("_busy", "_rows")

    def __init__(self, signal: Signal, busy: BusyTotal) -> None:
        super().__init__(signal)
        self._rows: deque[tuple[int, int, int]] = deque(maxlen=_RECENT)
        self._busy = busy
        busy.expect(signal)

    def _push(self, start: int, end: int, value: int, mass: int) -> None:
        super()._push(start, end, value, mass)
        self._rows.append((start, end, mass))
        self._busy.take(self.signal, start, end, mass)

    def _restart(self, end_ns: int) -> None:
        super()._restart(end_ns)
        self._rows.clear()
        self._busy.restart()

    def integral(self, a_ns: int, b_ns: int) -> tuple[int, int]:
        """Mass of the kept rows within `(a, b]`, rounded down per row, and the ns that they cover."""
        mass = covered = 0
        for start, end, whole in list(self._rows):
            inside = min(end, b_ns) - max(start, a_ns)
            if inside > 0:
                mass += whole * inside // (end - start)
                covered += inside
        return mass, covered


_A = TypeVar("_A", bound=RowAccumulator)


class ColumnsBySignal(Generic[_A]):
    """A column for each signal of a device. One thread appends, any thread may read."""

    def __init__(self, signals: Iterable[Signal] = ()) -> None:
        self._columns: dict[Signal, _A] = {}
        #: The latest time that the clock showed before it was set back.
        self._latest_ns = -FARTHEST
        self.add(signals)

    def _opened(self, signal: Signal) -> _A:
        """A new account of a signal."""
        raise NotImplementedError

    def add(self, signals: Iterable[Signal]) -> None:
        """Open a column for each signal that has none."""
        for signal in signals:
            if signal not in self._columns:
                self._columns[signal] = self._opened(signal)

    def append(self, samples: Iterable[tuple[Signal, int, int, int]], now_ns: int = -FARTHEST) -> int:
        """Add samples, in any order of signals. Returns the number of new ones.

        `now_ns`: the present, if available. A driver that is opened again delivers its buffers again. Samples that are
        old by this clock are therefore no evidence that it was set back. Later ones are from before it was set back.
        """
        taken, old_ns, latest_ns, find = 0, now_ns - CLOCK_STEP_NS, self._latest_ns, self._columns.get
        for signal, start, end, value in samples:
            column = find(signal)
            if column is None:
                column = self._columns[signal] = self._opened(signal)
            if not old_ns <= end <= now_ns and (
                (end < old_ns and end <= (column._last_end or -FARTHEST)) or now_ns < end <= latest_ns
            ):
                column.dropped["late"] += 1
            else:
                taken += column.take(start, end, value)
        return taken

    def skip(self, ahead_ns: int) -> None:
        """The clock was set ahead since the last samples: no row covers time that never passed."""
        for column in self._columns.values():
            column.skip(ahead_ns)

    def set_back(self, now_ns: int, latest_ns: int) -> None:
        """The clock was set back to `now_ns` since the last samples. It had shown times up to `latest_ns`."""
        self._latest_ns = latest_ns
        for column in self._columns.values():
            if column.watermark_ns is not None:
                column.set_back(now_ns)

    @property
    def columns(self) -> Mapping[Signal, _A]:
        """The columns by signal."""
        return self._columns

    def count_dropped(self, totals: Counter[str]) -> None:
        """Add the `dropped` counts of all columns to `totals`."""
        for column in list(self._columns.values()):
            if column.dropped:
                totals.update(column.dropped)

    def column(self, signal: Signal) -> _A | None:
        """The signal's column; None without one."""
        return self._columns.get(signal)

    def best(self, sources: Iterable[Signal]) -> _A | None:
        """The first of `sources` with a newest reading at most 5 s older than that of any other.

        Without readings, the first source that the device has. Stuck sources are left out.
        """
        columns = (self._columns.get(signal) for signal in sources)
        working = [column for column in columns if column is not None and not column.stuck]
        marks = [(column, mark) for column in working if (mark := column.watermark_ns) is not None]
        newest = max((mark for _, mark in marks), default=0)
        return next((c for c, mark in marks if newest - mark <= SILENCE_NS), working[0] if working else None)


class Ledger(ColumnsBySignal[SignalTotals]):
    """The sums of a device's signals, without their history."""

    def __init__(self, signals: Iterable[Signal] = ()) -> None:
        self.busy = BusyTotal()
        super().__init__(signals)

    def skip(self, ahead_ns: int) -> None:
        """As `ColumnsBySignal.skip`."""
        super().skip(ahead_ns)
        self.busy.skip(ahead_ns)

    def _opened(self, signal: Signal) -> SignalTotals:
        return BusySourceTotals(signal, self.busy) if signal in BUSY_SOURCES else SignalTotals(signal)
