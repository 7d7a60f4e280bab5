"""The bounded history of one device's signals, with prefix sums so that any interval costs two look-ups.

Every signal becomes rows `(start, end]` with a value in whole quanta. A window mean's row weighs value x length; a
counter's row is what it grew by between two readings, spread evenly; an instant holds back to the reading before it.
Sums are int64 that wrap on purpose: differences stay exact as long as one interval's own sum fits (the signal's
`longest_exact_ns`), and longer intervals are cut. Splitting an interval therefore never changes a sum, not by one bit.

A column lives in a buffer that its owner supplies: one writer, many readers. The writer publishes the length last, and
moves rows only between two increments of a generation number, which readers check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.samples import Device, Sample
from gpu_profile.units import NS_PER_S

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
T = TypeVar("T")

#: An instant (memory in use, a clock) is taken to hold for at most this long before its reading.
LONGEST_HOLD_NS: Final = 5 * NS_PER_S
_FIELDS: Final = 5
_HEADER: Final = 8
_LENGTH, _FIRST, _GENERATION = 0, 1, 2


def wrap(value: int) -> int:
    """`value` modulo 2^64 as a signed 64-bit number, as int64 arithmetic leaves it."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


class Cumulative(NamedTuple):
    """Sums over a column's history up to a moment, both wrapped to int64: mass in quanta·ns (quanta for a counter)."""

    mass: int
    covered_ns: int


class Rows(NamedTuple):
    """The rows that overlap an interval: values in quanta (a counter's growth), overlaps and whole lengths in ns."""

    values: Ints
    weights: Ints
    lengths: Ints


class Column:
    """One signal's rows over `buffer`, which holds at least `Column.size(capacity)` bytes and starts zeroed.

    The newest `capacity` rows can be read. The buffer holds twice as many, so that rows are moved only now and then.
    """

    def __init__(self, signal: Signal, capacity: int, buffer: Any = None) -> None:
        if capacity < 2:
            raise ValueError(f"{signal.key}: a column needs room for at least 2 rows, not {capacity}")
        self.signal = signal
        self.capacity = capacity
        if buffer is None:
            # numpy leaves fresh zeros to the kernel: pages cost memory only once rows are written to them.
            buffer = np.zeros(self.size(capacity), np.uint8)
        words = np.frombuffer(buffer, np.int64, count=self.size(capacity) // 8)
        self._header: Ints = words[:_HEADER]
        self._rows: Ints = words[_HEADER:].reshape(_FIELDS, 2 * capacity)
        self._start, self._end, self._value, self._mass, self._covered = self._rows
        self.total_mass = 0
        self.total_covered_ns = 0
        self.dropped: Counter[str] = Counter()
        self._last_raw: int | None = None

    @staticmethod
    def size(capacity: int) -> int:
        """Bytes that a column of `capacity` rows needs."""
        return 8 * (_HEADER + _FIELDS * 2 * capacity)

    # ------------------------------------------------------------------ writing

    def append(self, sample: Sample) -> bool:
        """Take one sample in; False if it was left out (`dropped` says why)."""
        last_end = self.watermark_ns
        kind = self.signal.kind
        end, value = sample.t_end_ns, sample.value
        if last_end is not None and end <= last_end:
            self.dropped["late" if end < last_end else "duplicate"] += 1
            return False
        if not self._plausible(value):
            self.dropped["implausible"] += 1
            return False
        if kind is Kind.COUNTER:
            return self._append_counter(end, value, last_end)
        if kind is Kind.INSTANT:
            start = end if last_end is None or end - last_end > LONGEST_HOLD_NS else last_end
        else:
            start = min(sample.t_start_ns, end)
            if last_end is not None and start < last_end:
                start = last_end
        self._push(start, end, value, value * (end - start))
        self._last_raw = value
        return True

    def _plausible(self, value: int) -> bool:
        """Whether sums of such values fit: `longest_exact_ns` leaves a factor of two above the signal's limit."""
        if self.signal.kind is Kind.COUNTER:
            return 0 <= value < 1 << 63
        return abs(value) < 2 * self.signal.limit

    def _append_counter(self, end: int, raw: int, last_end: int | None) -> bool:
        last = self._last_raw
        if last is None or last_end is None:
            self._push(end, end, raw, 0)
        elif raw == last and end - last_end < 2 * self.signal.refresh_ns:
            # The driver has not renewed the counter yet: the growth belongs to a row that is still open.
            self.dropped["duplicate"] += 1
            return False
        elif raw >= last:
            self._push(last_end, end, raw, raw - last)
        else:
            growth = raw + self.signal.wraps_at - last
            if last < self.signal.wraps_at and growth * NS_PER_S <= self.signal.limit * (end - last_end):
                self.dropped["wrapped"] += 1
                self._push(last_end, end, raw, growth)
            else:
                # What the counter held before it restarted is unknown, so the time in between stays uncovered.
                self.dropped["reset"] += 1
                self._push(end, end, raw, 0)
        self._last_raw = raw
        return True

    def _push(self, start: int, end: int, value: int, mass: int) -> None:
        header = self._header
        length = int(header[_LENGTH])
        if length == 2 * self.capacity:
            # One row more than can be read is kept: the sums of the oldest row start where those before it ended.
            header[_GENERATION] += 1
            self._rows[:, : self.capacity + 1] = self._rows[:, self.capacity - 1 :]
            header[_FIRST] = 1
            header[_LENGTH] = length = self.capacity + 1
            header[_GENERATION] += 1
        self.total_mass += mass
        self.total_covered_ns += end - start
        self._start[length] = start
        self._end[length] = end
        self._value[length] = value
        self._mass[length] = wrap(self.total_mass)
        self._covered[length] = wrap(self.total_covered_ns)
        header[_LENGTH] = length + 1
        header[_FIRST] = max(0, length + 1 - self.capacity)

    # ------------------------------------------------------------------ reading

    def __len__(self) -> int:
        return self._consistent(lambda first, length: length - first)

    def _consistent(self, read: Callable[[int, int], T]) -> T:
        """`read(first, length)` without rows moving under it."""
        while True:
            before = int(self._header[_GENERATION])
            result = read(int(self._header[_FIRST]), int(self._header[_LENGTH]))
            if before % 2 == 0 and int(self._header[_GENERATION]) == before:
                return result

    @property
    def watermark_ns(self) -> int | None:
        """The end of the newest row; None while there is none."""
        length = int(self._header[_LENGTH])
        return int(self._end[length - 1]) if length else None

    @property
    def oldest_ns(self) -> int | None:
        """The start of the oldest row that is still held."""
        return self._consistent(lambda first, length: int(self._start[first]) if length else None)

    @property
    def last(self) -> Sample | None:
        """The newest reading, a counter's as its running total."""

        def read(_: int, length: int) -> Sample | None:
            if not length:
                return None
            i = length - 1
            start = self._end[i] if self.signal.kind is not Kind.WINDOW_MEAN else self._start[i]
            return Sample(self.signal, int(start), int(self._end[i]), int(self._value[i]))

        return self._consistent(read)

    def cumulative(self, t_ns: int) -> Cumulative:
        """Sums over the history up to `t_ns`; moments outside the rows that are held take the nearest edge's."""
        return self._consistent(lambda first, length: self._cumulative(t_ns, first, length))

    def _cumulative(self, t_ns: int, first: int, length: int) -> Cumulative:
        if length == first:
            return Cumulative(0, 0)
        i = first + int(np.searchsorted(self._end[first:length], t_ns))
        if i == length:
            return Cumulative(int(self._mass[i - 1]), int(self._covered[i - 1]))
        start, end = int(self._start[i]), int(self._end[i])
        row_mass = wrap(int(self._mass[i]) - (int(self._mass[i - 1]) if i else 0))
        mass_before, covered_before = int(self._mass[i]) - row_mass, int(self._covered[i]) - (end - start)
        inside = max(0, t_ns - start)
        if self.signal.kind is Kind.COUNTER:
            part = row_mass * inside // (end - start) if end > start else 0
        else:
            part = int(self._value[i]) * inside
        return Cumulative(wrap(mass_before + part), wrap(covered_before + inside))

    def integral(self, a_ns: int, b_ns: int) -> Cumulative:
        """The exact mass of `(a, b]` and how much of it rows cover, as Python ints of any size."""
        _check_order(a_ns, b_ns)
        return self._consistent(lambda first, length: self._integral(a_ns, b_ns, first, length))

    def _integral(self, a_ns: int, b_ns: int, first: int, length: int) -> Cumulative:
        if length == first:
            return Cumulative(0, 0)
        # Outside the rows nothing is covered; without the cut a year of nothing would be summed in pieces.
        a_ns = min(max(a_ns, int(self._start[first])), int(self._end[length - 1]))
        b_ns = min(max(b_ns, a_ns), int(self._end[length - 1]))
        mass, step = 0, self.signal.longest_exact_ns
        low = self._cumulative(a_ns, first, length)
        covered = wrap(self._cumulative(b_ns, first, length).covered_ns - low.covered_ns)
        while a_ns < b_ns:
            a_ns = min(a_ns + step, b_ns)
            high = self._cumulative(a_ns, first, length)
            mass += wrap(high.mass - low.mass)
            low = high
        return Cumulative(mass, covered)

    def integrals(self, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Masses and covered ns of many intervals at once. None may be longer than `signal.longest_exact_ns`."""
        lengths = ends - starts
        if len(starts) and int(lengths.min()) < 0:
            worst = int(lengths.argmin())
            _check_order(int(starts[worst]), int(ends[worst]))
        if len(starts) and int(lengths.max()) > self.signal.longest_exact_ns:
            raise ValueError(f"{self.signal.key}: longer than {self.signal.longest_exact_ns} ns: use integral()")
        return self._consistent(lambda first, length: self._integrals(starts, ends, first, length))

    def _integrals(self, starts: Ints, ends: Ints, first: int, length: int) -> tuple[Ints, Ints]:
        if length == first:
            return np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        low_mass, low_covered = self._cumulatives(starts, first, length)
        high_mass, high_covered = self._cumulatives(ends, first, length)
        return high_mass - low_mass, high_covered - low_covered

    def _cumulatives(self, ts: Ints, first: int, length: int) -> tuple[Ints, Ints]:
        i = np.searchsorted(self._end[first:length], ts)
        i += first
        np.minimum(i, length - 1, out=i)
        # What of the row lies after the moment is taken off the sum at its end: fewer look-ups than from its start.
        ends = self._end[i]
        lengths = ends - self._start[i]
        after = np.clip(ends - ts, 0, lengths)
        if self.signal.kind is Kind.COUNTER:
            before = np.where(i > 0, self._mass[np.maximum(i - 1, 0)], 0)
            growth = self._mass[i] - before
            mass = before + _share(growth, lengths - after, np.maximum(lengths, 1))
        else:
            mass = self._mass[i] - self._value[i] * after
        return mass, self._covered[i] - after

    def rows(self, a_ns: int, b_ns: int) -> Rows:
        """The rows that overlap `(a, b]`, oldest first."""
        _check_order(a_ns, b_ns)
        return self._consistent(lambda first, length: self._overlapping(a_ns, b_ns, first, length))

    def _overlapping(self, a_ns: int, b_ns: int, first: int, length: int) -> Rows:
        lo = first + int(np.searchsorted(self._end[first:length], a_ns, side="right"))
        hi = first + int(np.searchsorted(self._start[first:length], b_ns, side="left"))
        hi = max(lo, hi)
        overlap = np.minimum(self._end[lo:hi], b_ns) - np.maximum(self._start[lo:hi], a_ns)
        if self.signal.kind is Kind.COUNTER:
            values = np.diff(self._mass[lo:hi], prepend=self._mass[lo - 1] if lo else 0)
        else:
            values = self._value[lo:hi].copy()
        return Rows(values, overlap, self._end[lo:hi] - self._start[lo:hi])

    def edges(self, after_ns: int, until_ns: int) -> tuple[Ints, Ints, Ints]:
        """Starts, ends and masses of the rows that end in `(after, until]`, oldest first."""

        def read(first: int, length: int) -> tuple[Ints, Ints, Ints]:
            lo = first + int(np.searchsorted(self._end[first:length], after_ns, side="right"))
            hi = first + int(np.searchsorted(self._end[first:length], until_ns, side="right"))
            masses = np.diff(self._mass[lo:hi], prepend=self._mass[lo - 1] if lo else 0)
            return self._start[lo:hi].copy(), self._end[lo:hi].copy(), masses

        return self._consistent(read)


def _check_order(a_ns: int, b_ns: int) -> None:
    if b_ns < a_ns:
        raise ValueError(f"an interval ends before it starts: {a_ns} > {b_ns}")


def _share(total: Ints, part: Ints, whole: Ints) -> Ints:
    """`total * part // whole`, exact also where the product does not fit in 64 bits."""
    fits = total.astype(np.float64) * part < 2.0**62
    result = np.where(fits, total * part, 0) // whole
    for k in np.nonzero(~fits)[0]:
        result[k] = int(total[k]) * int(part[k]) // int(whole[k])
    return result


class Timeline:
    """The history of one device: a column of `capacity` rows per signal that it has.

    `signals` are those that its driver can read; others get a column with their first sample. `allocate(signal, size)`
    supplies the columns' buffers; without it they are this process's own memory.
    """

    def __init__(
        self,
        device: Device,
        signals: Iterable[Signal] = (),
        *,
        capacity: int = 6000,
        allocate: Callable[[Signal, int], Any] | None = None,
    ) -> None:
        self.device = device
        self.capacity = capacity
        self._allocate = allocate
        self._columns: dict[Signal, Column] = {}
        self.add(signals)

    def add(self, signals: Iterable[Signal]) -> None:
        """Give the signals that have none yet a column."""
        for signal in signals:
            if signal not in self._columns:
                self._add(signal)

    def _add(self, signal: Signal) -> Column:
        buffer = self._allocate(signal, Column.size(self.capacity)) if self._allocate else None
        column = self._columns[signal] = Column(signal, self.capacity, buffer)
        return column

    @property
    def columns(self) -> Mapping[Signal, Column]:
        """The columns by signal."""
        return self._columns

    def column(self, signal: Signal) -> Column | None:
        """The signal's column; None if the device does not have it."""
        return self._columns.get(signal)

    def append(self, samples: Iterable[Sample]) -> int:
        """Take samples in, in any order of signals; returns how many were new."""
        taken = 0
        for sample in samples:
            column = self._columns.get(sample.signal)
            if column is None:
                column = self._add(sample.signal)
            taken += column.append(sample)
        return taken

    def watermark_ns(self, signals: Iterable[Signal]) -> int | None:
        """The moment up to which all of `signals` that this device has are known; None if it has none of them."""
        marks = [c.watermark_ns for s in signals if (c := self._columns.get(s)) is not None]
        known = [mark for mark in marks if mark is not None]
        return min(known) if known else None

    def best(self, sources: Iterable[Signal]) -> Column | None:
        """The first of `sources` that this device has."""
        return next((c for s in sources if (c := self._columns.get(s)) is not None), None)
