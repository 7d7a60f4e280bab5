"""How long a device was busy during one interval, with bounds: from the best source that it has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Interval
from gpu_profile.catalogue.signals import GRAPHICS, UTILIZATION
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.reading import LATEST_GPM_NS, Reading, read
from gpu_profile.join.trailing import (
    WINDOWS_AFTER,
    WINDOWS_BEFORE,
    BusyBounds,
    Readings,
    TrailingFit,
    busy_between,
    fit,
    hull,
    merged,
)
from gpu_profile.join.window_search import (
    LATE_NS,
    LONGEST_NS,
    WindowEstimate,
    WindowFinder,
    readings_of,
    renewals,
    with_window,
)
from gpu_profile.units import NS_PER_S

#: Readings cover an interval if they do so for this share of it: stamps are whole microseconds.
_ALL: Final = 0.999
#: A busy time whose half-width is above this share of its interval is flagged.
WIDEST_DOUBT: Final = 0.1
#: From this length on, what a window takes in beside an interval's edges is left to the bounds; of polled readings,
#: from so many windows on, staleness included.
LONG_NS: Final = 30 * NS_PER_S
_MANY_WINDOWS: Final = 12
#: How far back the best guess looks, in windows.
_WINDOWS_TO_GUESS: Final = 3
#: Phases of a counter's renewal at which tiles are tried, and how long after it they may have been published.
_PHASES: Final = 20
_DELAYS_NS: Final = (0, LATEST_GPM_NS // 2, LATEST_GPM_NS)

_finders: WeakKeyDictionary[Timeline, WindowFinder] = WeakKeyDictionary()


class BusyTime(NamedTuple):
    """Busy seconds of an interval of `length_s`: the best guess, and what it is for sure not below and not above.

    `source` is the signal that told. `reason` says what keeps the guess from being sure: "" if nothing does.
    """

    value_s: float
    low_s: float
    high_s: float
    length_s: float
    source: Signal
    reason: str = ""

    @property
    def share(self) -> float:
        """The busy share of the interval, 0-1."""
        return self.value_s / self.length_s

    @property
    def half_width_s(self) -> float:
        """Half of what lies between the bounds."""
        return (self.high_s - self.low_s) / 2

    @property
    def sure(self) -> bool:
        """Whether the half-width is at most `WIDEST_DOUBT` of the interval.

        Of an interval too short to hold two renewals of the sensor: whether either bound is that near to the guess,
        which then has nothing of the interval's own to go by.
        """
        return not self.reason


def busy_time(
    timeline: Timeline,
    interval: Interval,
    readings: Mapping[Signal, Reading] | None = None,
    *,
    stamped: bool | None = None,
) -> BusyTime | None:
    """Busy seconds of one interval; None where the device tells nothing around it.

    By utilisation, whose window is looked for in the readings once per timeline, or by activity counters.
    `readings` are those of the interval, from a caller who has them. `stamped` says whether the driver stamps them
    itself; None: stamps in whole microseconds are its own, as this process's clock ticks in nanoseconds. The first call
    for a timeline decides.
    """
    if interval.end_ns <= interval.start_ns:
        return None
    source = _source(timeline, stamped, interval)
    if source is None:
        return None
    column, found = source
    reading = read(column, interval) if readings is None else readings.get(column.signal)
    return _by_tiles(column, interval, reading) if found is None else _by_windows(column, found, interval, reading)


def settled(timeline: Timeline, t_ns: int, *, stamped: bool | None = None) -> bool:
    """Whether a reading of a moment at or after `t_ns` has come: what ended then can be judged.

    A region's end is covered one renewal after it, two by activity counters, and known once the driver's buffer has
    been drained (a flush of the sampler does). A polled reading may be as old as the sensor's renewals lie apart: its
    watermark alone is no proof. True where there is nothing to wait for.
    """
    source = _source(timeline, stamped, None)
    if source is None:
        trailing = timeline.column(UTILIZATION)
        return trailing is None or trailing.watermark_ns is None
    column, found = source
    mark = column.watermark_ns or 0
    if found is None:
        return mark >= t_ns + column.signal.refresh_ns + LATEST_GPM_NS + LATE_NS
    if mark < t_ns or found.stamped:
        return mark >= t_ns
    earliest = readings_of(column, found, t_ns - LONGEST_NS, mark).earliest
    return len(earliest) > 0 and int(earliest.max()) >= t_ns - LATE_NS


def widest_window_ns(timeline: Timeline) -> int | None:
    """How far back a reading of the best source may look, as far as that is known; None where there is no source."""
    tiles, trailing = timeline.column(GRAPHICS), timeline.column(UTILIZATION)
    if tiles is not None and tiles.watermark_ns is not None:
        return tiles.signal.refresh_ns
    found = _learn(timeline, trailing, None) if trailing is not None and trailing.watermark_ns is not None else None
    return None if found is None else max(found.windows)


def _source(
    timeline: Timeline, stamped: bool | None, interval: Interval | None
) -> tuple[Column, WindowEstimate | None] | None:
    """What tells best how busy the device was, with what is known of a trailing sensor; None for nothing.

    Utilisation comes first where the driver stamps it, its window is known, and it covers all of the interval (without
    one: if it is not much older than the counters). What activity counters are of is not known, and bounds that hold
    for all that it may be are wider and cost ten times as much.
    """
    tiles, trailing = timeline.column(GRAPHICS), timeline.column(UTILIZATION)
    counted = tiles is not None and tiles.watermark_ns is not None
    if trailing is not None and trailing.watermark_ns is not None and (not counted or trailing.stamped):
        found = _learn(timeline, trailing, stamped)
        known = found is not None and found.stamped and len(found.windows) == 1
        if found is not None and (not counted or (known and _covers(trailing, tiles, interval))):
            return trailing, found
    return (tiles, None) if tiles is not None and counted else None


def _covers(trailing: Column, tiles: Column | None, interval: Interval | None) -> bool:
    if interval is None:
        newest_ns = tiles.watermark_ns if tiles is not None else None
        return (trailing.watermark_ns or 0) >= (newest_ns or 0) - NS_PER_S
    reading = read(trailing, interval)
    return reading is not None and reading.coverage >= _ALL


def _learn(timeline: Timeline, column: Column, stamped: bool | None) -> WindowEstimate | None:
    """What is known by now of the sensor behind a timeline's column; what was found before is not looked for again."""
    finder = _finders.get(timeline)
    if finder is None:
        finder = _finders.setdefault(timeline, WindowFinder(stamped=stamped))
    return finder.learn(column)


# ---------------------------------------------------------------------- utilisation


def _by_windows(column: Column, found: WindowEstimate, interval: Interval, reading: Reading | None) -> BusyTime | None:
    a, b = interval.start_ns, interval.end_ns
    widest = max(found.windows)
    many = _MANY_WINDOWS * (widest + found.stale_ns) if found.stale_ns else LONG_NS
    if b - a >= min(many, LONG_NS):
        return _long(reading, interval, widest)
    readings = readings_of(column, found, a - WINDOWS_BEFORE * widest, b + WINDOWS_AFTER * widest + found.stale_ns)
    if not len(readings.latest) or int(readings.latest[-1]) <= a or int(readings.earliest[0]) - widest >= b:
        return None
    apart = max(found.spacing_ns, found.stale_ns)
    every = [part for w in found.windows if (part := _by_window(readings, a, b, w)) is not None]
    bounds = hull(every)
    if bounds is None:
        return _contradictory(column.signal, reading, interval)
    reason = f"too short for readings of moments up to {apart / 1e6:.0f} ms apart"
    if len(found.windows) > 1 and (len(every) < len(found.windows) or any(_narrow(p, b - a, apart) for p in every)):
        reason = f"the sensor's window is not known yet: {found.windows[-1] / 1e6:.0f} to {widest / 1e6:.0f} ms"
    elif int(readings.earliest[-1]) < b - LATE_NS:
        reason = "no reading covers its end yet"
    elif int(readings.earliest[0]) > a:
        reason = "no readings from before its start"
    # Readings are taken for rounded, but may be cut off.
    high = min(float(b - a), bounds.high_ns + column.signal.quantum / 2 * (b - a))
    busy = _busy(column.signal, bounds._replace(high_ns=high), b - a, apart, reason)
    # What some windows cannot give may be a reading that is garbage.
    return busy._replace(reason=reason) if len(every) < len(found.windows) else busy


def _contradictory(signal: Signal, reading: Reading | None, interval: Interval) -> BusyTime:
    length = interval.end_ns - interval.start_ns
    anything = BusyBounds(0.0 if reading is None else _overlap(reading, length), 0.0, float(length))
    return _busy(signal, anything, length, 0, "the readings contradict each other")


def _by_window(readings: Readings, a_ns: int, b_ns: int, window_ns: int) -> BusyBounds | None:
    these = with_window(readings, window_ns)
    bounds = busy_between(these, a_ns, b_ns, renewals(these.around(a_ns, b_ns, _WINDOWS_TO_GUESS)))
    if bounds is None:
        return None
    # A reading of nothing at all, or of everything, over a window around the whole interval: what rounding leaves room
    # for is no guess.
    around = these.shares[(these.latest - window_ns <= a_ns) & (these.earliest >= b_ns)]
    if len(around) and around.min() <= 0.0:
        return bounds._replace(value_ns=bounds.low_ns)
    return bounds._replace(value_ns=bounds.high_ns) if len(around) and around.max() >= 1.0 else bounds


def _narrow(bounds: BusyBounds, length_ns: int, apart_ns: int) -> bool:
    value, low, high = bounds
    doubt = (high - low) / 2 if length_ns >= 2 * apart_ns else max(value - low, high - value)
    return doubt <= WIDEST_DOUBT * length_ns


def _busy(source: Signal, bounds: BusyBounds, length_ns: int, apart_ns: int, reason: str) -> BusyTime:
    value, low, high = (part / NS_PER_S for part in bounds)
    narrow = _narrow(bounds, length_ns, apart_ns)
    return BusyTime(value, low, high, length_ns / NS_PER_S, source, "" if narrow else reason)


def _overlap(reading: Reading, length_ns: int) -> float:
    """Busy ns if every reading stood for the time since the one before it."""
    return min(1.0, reading.mean) * length_ns


def _long(reading: Reading | None, interval: Interval, window_ns: int) -> BusyTime | None:
    """Busy time of a long interval: an overlap sum, which is off by what windows take in beside the edges.

    The sum of trailing means is the mean of sums over the interval moved back by up to a window: by half of one on
    average, and a renewal. What rows do not cover may be anything. Supposed is that the load does not beat with the
    sensor's renewals, which over so many windows takes a load that is locked to them.
    """
    if reading is None:
        return None
    signal, length = reading.signal, interval.end_ns - interval.start_ns
    covered = reading.coverage * length
    doubt = window_ns / 2 + signal.refresh_ns + signal.quantum / 2 * covered
    total = reading.total * NS_PER_S
    # A value that is cut off, not rounded, leaves out twice as much.
    above = doubt + signal.quantum / 2 * covered + length - covered
    low, high = max(0.0, total - doubt), min(float(length), total + above)
    bounds = BusyBounds(min(max(_overlap(reading, length), low), high), low, high)
    return _busy(signal, bounds, length, 0, "readings cover too little of it")


# ---------------------------------------------------------------------- activity counters


def _by_tiles(column: Column, interval: Interval, reading: Reading | None) -> BusyTime | None:
    """Busy time by counters that are read as deltas: tiles, whose edges lie at the counter's last renewal.

    It renews itself at an even pace (GPM: every 100 ms), at a phase that nobody is told, and is published by one that
    is told no more: every pair that fits counts.
    """
    a, b = interval.start_ns, interval.end_ns
    period = column.signal.refresh_ns
    if b - a >= LONG_NS:
        return _long(reading, interval, period + 2 * LATEST_GPM_NS)
    starts, ends, masses = column.edges(a - 6 * period, b + 6 * period)
    held = ends > starts
    starts, ends, masses = starts[held], ends[held], masses[held]
    if not len(ends) or ends[-1] <= a or starts[0] >= b:
        return None
    shares = masses // (ends - starts) * column.signal.quantum
    fits: list[TrailingFit] = []
    # Between two phases that are tried, and for what is read late, edges may be this far off.
    step = period // _PHASES
    doubt = step + 2.0 * LATE_NS
    # Where all readings are alike, it is the same what each is of.
    alike = float(np.ptp(shares)) <= column.signal.quantum
    for delay, phase in [(0, 0)] if alike else product(_DELAYS_NS, range(0, period, step)):
        since, until = (edges - delay - (edges - delay - phase) % period for edges in (starts, ends))
        real = until > since
        tiles = Readings.exact(until[real], (until - since)[real], shares[real], column.signal.quantum)
        if (found := fit(merged(tiles, a + 4 * period, b - 4 * period), a, b)) is not None:
            fits.append(found)
    every = hull(found.bounds for found in sorted(fits))
    if every is None:
        return _contradictory(column.signal, reading, interval)
    low, high = max(0.0, every.low_ns - doubt), min(float(b - a), every.high_ns + doubt)
    # Around an interval without any work, or full of it, what rounding leaves room for is no guess.
    around = shares[(ends > a - period) & (starts < b + period)]
    value = low if (around <= 0).all() else high if (around >= 1).all() else every.value_ns
    bounds = BusyBounds(min(max(value, low), high), low, high)
    reason = f"too short for a counter that renews itself every {period / 1e6:.0f} ms"
    if int(ends[-1]) < b:
        reason = "no reading covers its end yet"
    elif int(starts[0]) > a:
        reason = "no readings from before its start"
    return _busy(column.signal, bounds, b - a, period, reason)
