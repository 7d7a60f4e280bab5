"""The search for the window of a utilisation sensor, and for the age of its readings, in the readings. Pure.

NVIDIA documents a sample period of "between 1 second and 1/6 second depending on the product" (nvidia-smi(1)). No call
returns it. Two facts in the data show it. A mean over `W` moves by at most `dt / W` in the time `dt`: repeated faster
moves rule `W` out. And if a load switches between nothing and all, as regions of programs do, the mean moves by exactly
that for all of `W`. So a straight ramp as steep as `W` allows, without any longer window being possible, proves `W` as
far as readings can. A load that itself rises linearly at such a slope, on a device with a shorter window, is mistaken
for a ramp until the load has stepped a few times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.rows import Bools
from gpu_profile.history.timeline import Column, Floats, Ints
from gpu_profile.join.trailing import Readings
from gpu_profile.units import NS_PER_S

_MS: Final = 1_000_000
#: The longest sample period that NVIDIA documents; also the age of a polled reading until a better bound is found.
LONGEST_NS: Final = NS_PER_S
_DOCUMENTED_NS: Final = tuple(NS_PER_S * sixths // 6 for sixths in range(1, 7))
#: The highest multiple of the stamps' own spacing that is tried. Devices with a multiple of ten exist.
_MOST_MULTIPLES: Final = 12
#: Two windows closer than this share are one.
_ALIKE: Final = 0.03
#: A ramp that proves a window has this many steps, each as high as possible, and rises by this share in total. Two
#: steps suffice if they rise by more, and are not the halves of one load step that a short window cut in the middle.
_STEPS: Final = 3
_RISE: Final = 0.25
_HIGH_RISE: Final = 0.6
_HIGHEST_STEP: Final = 0.45
#: The tolerance of such steps for polled readings, whose moments are uncertain.
_TOLERANCE: Final = 0.1
#: This many impossible moves rule a window out: one garbage reading makes two of them. A window that a ramp has proven
#: needs more.
_MOVES: Final = 3
_MOVES_AGAINST_PROOF: Final = 8
#: The longest delay from a reading's moment to its publication by the driver.
LATE_NS: Final = 5 * _MS
#: The length of history that is examined at a time, and the fewest readings or changes that count as evidence.
_HISTORY_NS: Final = 60 * NS_PER_S
_FEWEST: Final = 4
_STRIDES: Final = (1, 2, 4)
#: Even paces at which sensors may be renewed, tried for polled readings, each at this many phases.
_PERIODS_NS: Final = tuple(NS_PER_S // per_s for per_s in (1, 2, 4, 5, 6, 10, 20, 50, 100))
_PHASES: Final = 20
_MOST_PERIODS: Final = 3


class WindowEstimate(NamedTuple):
    """The estimate of a sensor's window by readings up to `until_ns`.

    `stamped`: the driver stamps the moments of its readings, `spacing_ns` apart. Otherwise they were polled, that far
    apart, and one may be up to `stale_ns` old. `candidates` are windows, longest first. `against` counts for each the
    moves that it cannot explain. `known_ns` is the proven window, 0 without one.
    """

    until_ns: int
    stamped: bool
    spacing_ns: int
    stale_ns: int
    candidates: tuple[int, ...]
    against: tuple[int, ...]
    known_ns: int

    @property
    def windows(self) -> tuple[int, ...]:
        """The windows that are possible, longest first; only the proven one, if any."""
        return (self.known_ns,) if self.known_ns else self.alive

    @property
    def alive(self) -> tuple[int, ...]:
        """The windows that are not ruled out."""
        return tuple(w for w, moves in zip(self.candidates, self.against, strict=True) if moves < _MOVES)


class WindowFinder:
    """Searches for the window of one column of readings. `stamped` None: whole microseconds are a driver's stamps.

    The estimate is replaced as a whole, so threads may share a finder: at worst, both do the same work.
    """

    def __init__(self, *, stamped: bool | None = None) -> None:
        self._stamped = stamped
        self._estimate: WindowEstimate | None = None

    def learn(self, column: Column) -> WindowEstimate | None:
        """Examine the new readings. None while there are too few."""
        estimate, mark = self._estimate, column.watermark_ns
        if mark is None or (estimate is not None and mark == estimate.until_ns):
            return estimate
        if estimate is not None and mark < estimate.until_ns:
            estimate = None  # the clock was set back
        since = mark - _HISTORY_NS
        if estimate is not None:
            since = max(since, estimate.until_ns - 3 * LONGEST_NS)
        ends, shares = _rows(column, since, mark)
        if len(ends) >= _FEWEST:
            self._estimate = estimate = _learn(estimate, ends, shares, column.signal, self._stamped)
        return estimate


def readings_of(column: Column, estimate: WindowEstimate, since_ns: int, until_ns: int) -> Readings:
    """The readings of an interval with their possible moments, and without windows."""
    ends, shares = _rows(column, since_ns, until_ns)
    return _readings(ends, shares, estimate.stamped, estimate.stale_ns, column.signal)


def with_window(readings: Readings, window_ns: int) -> Readings:
    """The readings with this window."""
    return readings._replace(windows=np.full(len(readings.latest), window_ns, np.int64))


def renewals(readings: Readings) -> Iterator[list[Readings]]:
    """The readings at the moments that an evenly renewed sensor implies: by pace, one element per possible phase.

    Only the slowest few possible paces: faster ones are always possible, and bound less.
    """
    left = _MOST_PERIODS
    for period in _PERIODS_NS:
        step = period // _PHASES
        phases: list[Readings] = []
        for phase in range(0, period, step):
            since = (readings.latest - phase) % period
            moments = readings.latest - since
            # Next to a renewal, a phase that is off by half a step may assign a reading to another renewal.
            clear = (since >= step // 2) & (since < period - step // 2)
            if np.count_nonzero(clear) * 2 > len(clear) and (moments >= readings.earliest)[clear].all():
                clear_readings = readings.part(clear)
                phases.append(clear_readings._replace(earliest=moments[clear], latest=moments[clear]))
        if phases:
            yield phases
            left -= 1
        if not left:
            return


def _rows(column: Column, since_ns: int, until_ns: int) -> tuple[Ints, Floats]:
    """Ends and shares of the rows with a length."""
    starts, ends, masses = column.edges(since_ns, until_ns)
    lengths = ends - starts
    positive = lengths > 0
    return ends[positive], masses[positive] // lengths[positive] * column.signal.quantum


def _learn(
    before: WindowEstimate | None, ends: Ints, shares: Floats, signal: Signal, stamped: bool | None
) -> WindowEstimate:
    if stamped is None:
        stamped = not (ends % 1000).any()
    spacing = int(np.median(np.diff(ends)))
    stale = 0 if stamped else min(LONGEST_NS, _stale(ends, shares))
    candidates = _candidates(spacing if stamped else 0)
    same = before is not None and before.stamped == stamped
    if before is not None and same and stamped:
        same = abs(before.spacing_ns - spacing) <= _ALIKE * spacing
    against, proven, since = (0,) * len(candidates), 0, int(ends[0])
    if before is not None and same:
        candidates, against, proven, since = before.candidates, before.against, before.known_ns, before.until_ns
        stale = min(stale, before.stale_ns)
    readings = _readings(ends, shares, stamped, stale, signal)
    # Readings of one spacing are at least tiles, which any load can give.
    least = 1.05 * spacing if stamped else 0.0
    against = tuple(
        moves + (_faster(readings, w, since) if w > least else 0) for w, moves in zip(candidates, against, strict=True)
    )
    estimate = WindowEstimate(int(ends[-1]), stamped, spacing, stale, candidates, against, proven)
    if not estimate.alive:
        # The sensor has changed, for example with the driver.
        return estimate._replace(against=(0,) * len(candidates), known_ns=0)
    possible = [w for w, moves in zip(candidates, against, strict=True) if moves < _MOVES_AGAINST_PROOF]
    if proven not in possible:
        proven = next((w for w in possible if _proven(readings, w, exact=stamped)), 0)
    if not proven and len(estimate.alive) == 1:
        proven = estimate.alive[0]
    return estimate._replace(known_ns=proven)


def _candidates(spacing_ns: int) -> tuple[int, ...]:
    """The windows to be tried, longest first: multiples of the stamps' spacing, and the documented ones."""
    multiples = min(_MOST_MULTIPLES, round(LONGEST_NS / spacing_ns)) if spacing_ns else 0
    windows = [spacing_ns * n for n in range(1, max(1, multiples) + 1)] if spacing_ns else []
    windows += [w for w in _DOCUMENTED_NS if all(abs(w - other) > _ALIKE * w for other in windows) and w > spacing_ns]
    return tuple(sorted(windows, reverse=True))


def _stale(ends: Ints, shares: Floats) -> int:
    """The largest age of polled values: two changes in a row are two renewals, and no two renewals are closer.

    Not the closest two, because a garbage reading changes there and back at once.
    """
    changed = np.flatnonzero(shares[1:] != shares[:-1]) + 1
    apart = np.sort(ends[changed[1:]] - ends[changed[:-1] - 1])
    return int(apart[_FEWEST - 1]) + LATE_NS if len(apart) >= _FEWEST else LONGEST_NS


def _readings(ends: Ints, shares: Floats, stamped: bool, stale_ns: int, signal: Signal) -> Readings:
    """Readings with their possible moments.

    A polled value that changed was renewed since the poll before. One that did not change may be as old as the one
    before, and is left out, except for the newest, until it is too old to be the same.
    """
    none = np.zeros(len(ends), np.int64)
    if stamped or not len(ends):
        return Readings(ends, ends, none, shares, signal.quantum)
    previous = np.concatenate(([ends[0] - stale_ns], ends[:-1]))
    fresh = np.ones(len(ends), bool)
    fresh[1:] = shares[1:] != shares[:-1]
    fresh[0] = False
    earliest = np.where(fresh, np.maximum(previous - LATE_NS, ends - stale_ns), ends - stale_ns)
    earliest = np.maximum.accumulate(earliest)
    since = ends[np.maximum.accumulate(np.where(fresh, np.arange(len(ends)), 0))]
    keep = fresh | (ends - since >= stale_ns)
    keep[[0, -1]] = True
    return Readings(earliest[keep], ends[keep], none[keep], shares[keep], signal.quantum)


def _faster(readings: Readings, window_ns: int, since_ns: int) -> int:
    """How often readings after `since_ns` moved faster than a mean over `window_ns` can."""
    most = 0
    for stride in _STRIDES:
        moved = np.abs(readings.shares[stride:] - readings.shares[:-stride])
        time = readings.latest[stride:] - readings.earliest[:-stride] + 2 * 1000
        faster = moved - readings.quantum * 1.01 > time / window_ns
        most = max(most, int(np.count_nonzero(faster & (readings.latest[stride:] > since_ns))))
    return most


def _proven(readings: Readings, window_ns: int, *, exact: bool) -> bool:
    """Whether a ramp of the readings is as steep as a mean over `window_ns` can be, for long enough."""
    moved = np.diff(readings.shares)
    time = np.diff(readings.latest) / window_ns
    doubt = readings.quantum * 1.01 + (0.0 if exact else _TOLERANCE) * time
    steep: Bools = (np.abs(np.abs(moved) - time) <= doubt) & (np.abs(moved) > readings.quantum * 1.01)
    steps = np.where(steep, np.sign(moved), 0.0)
    first = 0
    for last in range(len(steps) + 1):
        if last < len(steps) and steps[last] and (last == first or steps[last] == steps[first]):
            continue
        rise, allowed = abs(float(moved[first:last].sum())), float(time[first:last].sum())
        close = readings.quantum * 1.01 + (0.0 if exact else _TOLERANCE / 2) * allowed
        enough = (last - first >= _STEPS and rise >= _RISE) or (
            last - first == 2 and rise >= _HIGH_RISE and float(np.abs(moved[first:last]).max()) <= _HIGHEST_STEP
        )
        if enough and abs(rise - allowed) <= close:
            return True
        first = last if last < len(steps) and steps[last] else last + 1
    return False
