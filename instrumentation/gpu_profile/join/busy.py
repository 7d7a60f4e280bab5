"""Busy time of a device during one interval, with bounds, from the device's best source. Pure."""

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

#: The coverage that counts as full: stamps are whole microseconds.
_ALL: Final = 0.999
#: A busy time with a half-width above this share of its interval is flagged.
WIDEST_DOUBT: Final = 0.1
#: For longer intervals than this, the bounds absorb the effect of windows at the edges. For polled readings, this many
#: windows suffice, staleness included.
LONG_NS: Final = 30 * NS_PER_S
_MANY_WINDOWS: Final = 12
#: How far back the best guess looks, in windows.
_WINDOWS_TO_GUESS: Final = 3
#: Trial phases of a counter's renewal per period, and trial delays of its publication.
_PHASES: Final = 20
_DELAYS_NS: Final = (0, LATEST_GPM_NS // 2, LATEST_GPM_NS)

_finders: WeakKeyDictionary[Timeline, WindowFinder] = WeakKeyDictionary()


class BusyTime(NamedTuple):
    """Busy seconds of an interval of `length_s`: the best guess, and bounds that hold for any load.

    `source` is the signal behind it. `reason` explains why the guess is uncertain; it is empty if the guess is sure.
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
        """Half the distance of the bounds."""
        return (self.high_s - self.low_s) / 2

    @property
    def sure(self) -> bool:
        """Whether the half-width is at most `WIDEST_DOUBT` of the interval.

        An interval too short for two renewals of the sensor has no readings of its own: then, whether both bounds are
        that near to the guess.
        """
        return not self.reason


def busy_time(
    timeline: Timeline,
    interval: Interval,
    readings: Mapping[Signal, Reading] | None = None,
    *,
    stamped: bool | None = None,
) -> BusyTime | None:
    """Busy seconds of one interval; None if the device has no readings around it.

    The source is utilisation, whose window is searched once per timeline, or activity counters. `readings` are the
    interval's own, if the caller has them. `stamped`: the driver stamps them itself. None: stamps in whole microseconds
    are the driver's, because this process's clock ticks in nanoseconds. The first call for a timeline decides.
    """
    if interval.end_ns <= interval.start_ns:
        return None
    source = _source(timeline, stamped, interval)
    if source is None:
        return None
    column, window = source
    reading = read(column, interval) if readings is None else readings.get(column.signal)
    return _by_tiles(column, interval, reading) if window is None else _by_windows(column, window, interval, reading)


def settled(timeline: Timeline, t_ns: int, *, stamped: bool | None = None) -> bool:
    """Whether a reading of a moment at or after `t_ns` has arrived, so that executions that ended by then can be
    judged.

    A region's end is covered one renewal after it, two with activity counters, once the driver's buffer has been
    drained (a flush of the sampler does so). A polled reading may be a renewal old, so its watermark alone is no proof.
    True if there is nothing to wait for.
    """
    source = _source(timeline, stamped, None)
    if source is None:
        trailing = timeline.column(UTILIZATION)
        return trailing is None or trailing.watermark_ns is None
    column, window = source
    mark = column.watermark_ns or 0
    if window is None:
        return mark >= t_ns + column.signal.refresh_ns + LATEST_GPM_NS + LATE_NS
    if mark < t_ns or window.stamped:
        return mark >= t_ns
    earliest = readings_of(column, window, t_ns - LONGEST_NS, mark).earliest
    return len(earliest) > 0 and int(earliest.max()) >= t_ns - LATE_NS


def widest_window_ns(timeline: Timeline) -> int | None:
    """How far back a reading of the best source may look, as far as the search has got; None without a source."""
    tiles, trailing = timeline.column(GRAPHICS), timeline.column(UTILIZATION)
    if tiles is not None and tiles.watermark_ns is not None:
        return tiles.signal.refresh_ns
    window = _learn(timeline, trailing, None) if trailing is not None and trailing.watermark_ns is not None else None
    return None if window is None else max(window.windows)


def _source(
    timeline: Timeline, stamped: bool | None, interval: Interval | None
) -> tuple[Column, WindowEstimate | None] | None:
    """The best source of busy time, and the estimate of a trailing sensor's window; None without a source.

    Utilisation comes first if the driver stamps it, its window is proven, and it covers the whole interval (without
    one: if it is not much older than the counters). The moments of activity counters are uncertain, and bounds for all
    possible moments are wider and cost ten times as much.
    """
    tiles, trailing = timeline.column(GRAPHICS), timeline.column(UTILIZATION)
    counted = tiles is not None and tiles.watermark_ns is not None
    if trailing is not None and trailing.watermark_ns is not None and (not counted or trailing.stamped):
        window = _learn(timeline, trailing, stamped)
        proven = window is not None and window.stamped and len(window.windows) == 1
        if window is not None and (not counted or (proven and _covers(trailing, tiles, interval))):
            return trailing, window
    return (tiles, None) if tiles is not None and counted else None


def _covers(trailing: Column, tiles: Column | None, interval: Interval | None) -> bool:
    if interval is None:
        newest_ns = tiles.watermark_ns if tiles is not None else None
        return (trailing.watermark_ns or 0) >= (newest_ns or 0) - NS_PER_S
    reading = read(trailing, interval)
    return reading is not None and reading.coverage >= _ALL


def _learn(timeline: Timeline, column: Column, stamped: bool | None) -> WindowEstimate | None:
    """The current estimate of the sensor behind a timeline's column. Earlier results are reused."""
    finder = _finders.get(timeline)
    if finder is None:
        finder = _finders.setdefault(timeline, WindowFinder(stamped=stamped))
    return finder.learn(column)


# ---------------------------------------------------------------------- utilisation


def _by_windows(column: Column, window: WindowEstimate, interval: Interval, reading: Reading | None) -> BusyTime | None:
    a, b = interval.start_ns, interval.end_ns
    widest = max(window.windows)
    many = _MANY_WINDOWS * (widest + window.stale_ns) if window.stale_ns else LONG_NS
    if b - a >= min(many, LONG_NS):
        return _long(reading, interval, widest)
    readings = readings_of(column, window, a - WINDOWS_BEFORE * widest, b + WINDOWS_AFTER * widest + window.stale_ns)
    if not len(readings.latest) or int(readings.latest[-1]) <= a or int(readings.earliest[0]) - widest >= b:
        return None
    apart = max(window.spacing_ns, window.stale_ns)
    every = [part for w in window.windows if (part := _by_window(readings, a, b, w)) is not None]
    bounds = hull(every)
    if bounds is None:
        return _contradictory(column.signal, reading, interval)
    reason = f"too short for readings of moments up to {apart / 1e6:.0f} ms apart"
    if len(window.windows) > 1 and (len(every) < len(window.windows) or any(_narrow(p, b - a, apart) for p in every)):
        reason = f"the sensor's window is not known yet: {window.windows[-1] / 1e6:.0f} to {widest / 1e6:.0f} ms"
    elif int(readings.earliest[-1]) < b - LATE_NS:
        reason = "no reading covers its end yet"
    elif int(readings.earliest[0]) > a:
        reason = "no readings from before its start"
    # Readings count as rounded, but may be cut off.
    high = min(float(b - a), bounds.high_ns + column.signal.quantum / 2 * (b - a))
    busy = _busy(column.signal, bounds._replace(high_ns=high), b - a, apart, reason)
    # If some windows have no solution, a reading may be garbage.
    return busy._replace(reason=reason) if len(every) < len(window.windows) else busy


def _contradictory(signal: Signal, reading: Reading | None, interval: Interval) -> BusyTime:
    length = interval.end_ns - interval.start_ns
    anything = BusyBounds(0.0 if reading is None else _overlap(reading, length), 0.0, float(length))
    return _busy(signal, anything, length, 0, "the readings contradict each other")


def _by_window(readings: Readings, a_ns: int, b_ns: int, window_ns: int) -> BusyBounds | None:
    these = with_window(readings, window_ns)
    bounds = busy_between(these, a_ns, b_ns, renewals(these.around(a_ns, b_ns, _WINDOWS_TO_GUESS)))
    if bounds is None:
        return None
    # After a reading of 0 or 1 over a window around the whole interval, the room that rounding leaves is no guess.
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
    """Busy ns if every reading applied to the time since the one before it."""
    return min(1.0, reading.mean) * length_ns


def _long(reading: Reading | None, interval: Interval, window_ns: int) -> BusyTime | None:
    """Busy time of a long interval: an overlap sum, whose error comes from windows at the edges.

    The sum of trailing means is the mean of sums over the interval moved back by up to a window: by half of one on
    average, and a renewal. Time without rows may be busy or not. The load is assumed not to beat with the sensor's
    renewals: over so many windows, only a load locked to them does.
    """
    if reading is None:
        return None
    signal, length = reading.signal, interval.end_ns - interval.start_ns
    covered = reading.coverage * length
    doubt = window_ns / 2 + signal.refresh_ns + signal.quantum / 2 * covered
    total = reading.total * NS_PER_S
    # A value that is cut off, not rounded, loses twice as much.
    above = doubt + signal.quantum / 2 * covered + length - covered
    low, high = max(0.0, total - doubt), min(float(length), total + above)
    bounds = BusyBounds(min(max(_overlap(reading, length), low), high), low, high)
    return _busy(signal, bounds, length, 0, "readings cover too little of it")


# ---------------------------------------------------------------------- activity counters


def _by_tiles(column: Column, interval: Interval, reading: Reading | None) -> BusyTime | None:
    """Busy time by counters that are read as deltas: tiles, whose edges lie at the counter's last renewal.

    The counter is renewed at an even pace (GPM: every 100 ms), at an unknown phase, and published after an unknown
    delay. Every pair of phase and delay that fits counts.
    """
    a, b = interval.start_ns, interval.end_ns
    period = column.signal.refresh_ns
    if b - a >= LONG_NS:
        return _long(reading, interval, period + 2 * LATEST_GPM_NS)
    starts, ends, masses = column.edges(a - 6 * period, b + 6 * period)
    real = ends > starts
    starts, ends, masses = starts[real], ends[real], masses[real]
    if not len(ends) or ends[-1] <= a or starts[0] >= b:
        return None
    shares = masses // (ends - starts) * column.signal.quantum
    fits: list[TrailingFit] = []
    # Edges may be off by the step between two trial phases, and by late readings.
    step = period // _PHASES
    doubt = step + 2.0 * LATE_NS
    # If all readings are alike, their moments do not matter.
    alike = float(np.ptp(shares)) <= column.signal.quantum
    for delay, phase in [(0, 0)] if alike else product(_DELAYS_NS, range(0, period, step)):
        since, until = (edges - delay - (edges - delay - phase) % period for edges in (starts, ends))
        real = until > since
        tiles = Readings.exact(until[real], (until - since)[real], shares[real], column.signal.quantum)
        if (fitted := fit(merged(tiles, a + 4 * period, b - 4 * period), a, b)) is not None:
            fits.append(fitted)
    every = hull(fitted.bounds for fitted in sorted(fits))
    if every is None:
        return _contradictory(column.signal, reading, interval)
    low, high = max(0.0, every.low_ns - doubt), min(float(b - a), every.high_ns + doubt)
    # Around an idle or a fully busy interval, the room that rounding leaves is no guess.
    around = shares[(ends > a - period) & (starts < b + period)]
    value = low if (around <= 0).all() else high if (around >= 1).all() else every.value_ns
    bounds = BusyBounds(min(max(value, low), high), low, high)
    reason = f"too short for a counter that renews itself every {period / 1e6:.0f} ms"
    if int(ends[-1]) < b:
        reason = "no reading covers its end yet"
    elif int(starts[0]) > a:
        reason = "no readings from before its start"
    return _busy(column.signal, bounds, b - a, period, reason)
