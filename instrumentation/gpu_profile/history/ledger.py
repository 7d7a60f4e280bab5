"""How a signal's samples become rows, and what the rows of a device's signals add up to. Pure, and without numpy.

Every signal becomes rows `(start, end]` with a value in whole quanta. A window mean's row weighs value x length; a
counter's row is what it grew by between two readings, spread evenly; an instant holds back to the reading before it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from gpu_profile.catalogue import BUSY_SOURCES, Kind, Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.units import NS_PER_S

#: An instant (memory in use, a clock) is taken to hold for at most this long before its reading.
LONGEST_HOLD_NS: Final = 5 * NS_PER_S
#: Samples farther behind the watermark than any driver's buffer delivers late, and how many of them in a row tell that
#: the clock was set back, or that one stamp was far in the future.
CLOCK_STEP_NS: Final = 5 * NS_PER_S
CLOCK_STEP_SAMPLES: Final = 3
FARTHEST: Final = 1 << 62
_HIGHEST_COUNT: Final = 1 << 63
#: Rows of a busy source that its newest second holds at most: GPM's are 0.1 s long, the others longer.
_RECENT: Final = 64
#: A source that is so much behind another one of the same quantity has stopped: sources answer within a second.
_SILENCE_NS: Final = 5 * NS_PER_S
#: Or so many of its own periods, where it is asked more seldom.
_SILENT_PERIODS: Final = 3


class Account:
    """Takes one signal's samples in as rows. Where rows lie is the matter of whoever has `_push` and `_restart`."""

    if not TYPE_CHECKING:
        __slots__ = ()

    signal: Signal
    total_mass: int
    total_covered_ns: int
    #: Samples that were left out, by reason; for a counter also how often it wrapped or was reset.
    dropped: Counter[str]
    _counter: bool
    _lowest: int
    _highest: int
    _last_end: int | None
    _last_raw: int | None
    #: The samples that may tell that the clock was set back; None, without an object of its own, nearly always.
    _astray: list[int] | None

    def _open(self, signal: Signal) -> None:
        self.signal = signal
        self._counter = counter = signal.kind is Kind.COUNTER
        # Sums of such values fit: `longest_exact_ns` leaves a factor of two above the signal's limit.
        self._lowest, self._highest = (0, (1 << 63) - 1) if counter else (1 - 2 * signal.limit, 2 * signal.limit - 1)
        self.dropped = Counter()
        self._last_raw = self._astray = None

    def _push(self, start: int, end: int, value: int, mass: int) -> None:
        """Add a row."""
        raise NotImplementedError

    def _restart(self, end_ns: int) -> None:
        """Forget all rows; the next one is the first of a new count of time."""
        raise NotImplementedError

    @property
    def watermark_ns(self) -> int | None:
        """The end of the newest row; None while there is none."""
        return self._last_end

    @property
    def stuck(self) -> bool:
        """Whether it tells nothing: an energy counter that has never grown, for every GPU draws some power."""
        return self.signal is ENERGY and not self.total_mass and self.total_covered_ns >= _SILENCE_NS

    def append(self, sample: Sample) -> bool:
        """Take one sample in; False if it was left out (`dropped` says why).

        Samples at or before the watermark are left out. `CLOCK_STEP_SAMPLES` of them in a row, each later than the one
        before and all more than `CLOCK_STEP_NS` behind, mean that the clock was set back: the column forgets its rows
        and starts again from there. What a counter grew by meanwhile is added to its total, to no row.
        """
        _, start, end, value = sample
        last_end, last = self._last_end, self._last_raw
        if last is not None and last_end is not None and type(value) is type(end) is int:
            # A counter's usual reading, without a look at anything else.
            growth = value - last
            if growth > 0 and last_end < end < FARTHEST and value < _HIGHEST_COUNT:
                self._astray = None
                self._last_raw = value
                self._push(last_end, end, value, growth)
                return True
        if not type(value) is type(end) is type(start) is int:
            try:
                start, end, value = index(start), index(end), index(value)
            except TypeError:
                self.dropped["not a whole number"] += 1
                return False
        if not (self._lowest <= value <= self._highest and -FARTHEST < start < FARTHEST and -FARTHEST < end < FARTHEST):
            self.dropped["implausible"] += 1
            return False
        if last_end is not None and end <= last_end and not self._set_back(end, value, last_end):
            self.dropped["late" if end < last_end else "duplicate"] += 1
            return False
        self._astray = None
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

    def _set_back(self, end: int, value: int, last_end: int) -> bool:
        """Whether a sample that is not new is the last of those that tell that the clock was set back."""
        if end >= last_end - CLOCK_STEP_NS:
            self._astray = None
            return False
        astray = self._astray
        if astray is None or end <= astray[-1]:
            astray = self._astray = []
        astray.append(end)
        if len(astray) < CLOCK_STEP_SAMPLES:
            return False
        self.dropped["clock set back"] += 1
        if self._counter and self._last_raw is not None and value > self._last_raw:
            self.total_mass += value - self._last_raw
        self._restart(end)
        self._last_raw = None
        return True

    def _append_counter(self, end: int, raw: int, last_end: int | None) -> bool:
        """A counter's reading that is the first, or no higher than the last."""
        last = self._last_raw
        if last is None or last_end is None:
            self._push(end, end, raw, 0)
        elif raw == last:
            if end - last_end < 2 * self.signal.refresh_ns:
                # The driver has not renewed the counter yet: the growth belongs to a row that is still open.
                self.dropped["duplicate"] += 1
                return False
            self._push(last_end, end, raw, 0)
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


class SignalTotals(Account):
    """What one signal's rows add up to, and the newest of them: all that a scrape needs."""

    __slots__ = (
        "_astray",
        "_counter",
        "_highest",
        "_last_end",
        "_last_raw",
        "_lowest",
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

    def _restart(self, end_ns: int) -> None:  # noqa: ARG002 - there are no rows up to there
        self._last_end = None

    @property
    def last(self) -> Sample | None:
        """The newest reading, a counter's as its running total."""
        end = self._last_end
        if end is None:
            return None
        return Sample(self.signal, self._start if self.signal.kind is Kind.WINDOW_MEAN else end, end, self._value)


class BusyTotal:
    """Busy time by the best source that tells of each moment: it never goes back where another source takes over.

    `masses` are what counts of each source, in its quanta·ns, `covered_ns` the time that they tell of together, and
    `signal` the source that told last, up to `until_ns`.
    """

    def __init__(self) -> None:
        self.masses: dict[Signal, int] = {}
        self.covered_ns = 0
        self.signal: Signal | None = None
        #: Until when each source is waited for; None before its first row.
        self._waits: dict[Signal, int | None] = {}
        self.restart()

    def restart(self) -> None:
        """The clock was set back: what was told last lies ahead."""
        self.until_ns: int | None = None
        self._first_ns: int | None = None
        self._waits = dict.fromkeys(self._waits)

    def expect(self, signal: Signal) -> None:
        """The device should have this source."""
        self._waits[signal] = None

    def take(self, signal: Signal, start: int, end: int, mass: int) -> None:
        """A row of one source. It counts from where the last one ended, unless a better source tells of that time."""
        self._waits[signal] = end + max(_SILENCE_NS, _SILENT_PERIODS * (end - start))
        if self._first_ns is None:
            self._first_ns = start
        for better in BUSY_SOURCES[: BUSY_SOURCES.index(signal)]:
            if better in self._waits and end <= (self._waits[better] or self._first_ns + _SILENCE_NS):
                return
        new = start if self.until_ns is None else max(start, self.until_ns)
        if new < end:
            self.masses[signal] = self.masses.get(signal, 0) + mass * (end - new) // (end - start)
            self.covered_ns += end - new
            self.signal, self.until_ns = signal, end


class Recent(SignalTotals):
    """As `SignalTotals`, with the rows of the newest second or more, which add to the device's busy time."""

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
        """Mass of the rows within `(a, b]`, rounded down, and the ns of it that they cover, as far as they are kept."""
        mass = covered = 0
        for start, end, whole in list(self._rows):
            inside = min(end, b_ns) - max(start, a_ns)
            if inside > 0:
                mass += whole * inside // (end - start)
                covered += inside
        return mass, covered


_A = TypeVar("_A", bound=Account)


class Signals(Generic[_A]):
    """An account (a "column") for each signal of a device. One thread appends; any may read."""

    def __init__(self, signals: Iterable[Signal] = ()) -> None:
        self._columns: dict[Signal, _A] = {}
        self.add(signals)

    def _opened(self, signal: Signal) -> _A:
        """A new account of a signal."""
        raise NotImplementedError

    def add(self, signals: Iterable[Signal]) -> None:
        """Give the signals that have none yet a column."""
        for signal in signals:
            if signal not in self._columns:
                self._columns[signal] = self._opened(signal)

    def append(self, samples: Iterable[Sample], now_ns: int = -FARTHEST) -> int:
        """Take samples in, in any order of signals; returns how many were new.

        `now_ns`: when they were read, where that is known. A driver that is opened anew tells once more what it has in
        its buffers: samples that are old by this clock do not tell that it was set back.
        """
        taken, old_ns = 0, now_ns - CLOCK_STEP_NS
        for sample in samples:
            column = self._columns.get(sample.signal)
            if column is None:
                column = self._columns[sample.signal] = self._opened(sample.signal)
            if sample.t_end_ns < old_ns and sample.t_end_ns <= (column.watermark_ns or -FARTHEST):
                column.dropped["late"] += 1
            else:
                taken += column.append(sample)
        return taken

    @property
    def columns(self) -> Mapping[Signal, _A]:
        """The columns by signal."""
        return self._columns

    def count_dropped(self, totals: Counter[str]) -> None:
        """Add the samples that all columns left out, by reason, to `totals`."""
        for column in list(self._columns.values()):
            if column.dropped:
                totals.update(column.dropped)

    def column(self, signal: Signal) -> _A | None:
        """The signal's column; None if the device does not have it."""
        return self._columns.get(signal)

    def best(self, sources: Iterable[Signal]) -> _A | None:
        """The first of `sources` that has readings, none much older than another's; else the first that should have.
        None of those that are stuck."""
        columns = (self._columns.get(signal) for signal in sources)
        held = [column for column in columns if column is not None and not column.stuck]
        told = [(column, mark) for column in held if (mark := column.watermark_ns) is not None]
        newest = max((mark for _, mark in told), default=0)
        return next((c for c, mark in told if newest - mark <= _SILENCE_NS), held[0] if held else None)


class Ledger(Signals[SignalTotals]):
    """What the signals of a device add up to, where nobody asks for their history."""

    def __init__(self, signals: Iterable[Signal] = ()) -> None:
        self.busy = BusyTotal()
        super().__init__(signals)

    def _opened(self, signal: Signal) -> SignalTotals:
        return Recent(signal, self.busy) if signal in BUSY_SOURCES else SignalTotals(signal)
