"""How far back a utilisation reading looks, and how stale it may be: found in the readings themselves. Pure.

NVIDIA documents a sample period of "between 1 second and 1/6 second depending on the product" (nvidia-smi(1)), and no
call tells which. Two things in the data do. A mean over `W` moves by at most `dt / W` in the time `dt`: what moves
faster time and again rules `W` out. And where a load switches between nothing and all, which regions of programs do, it
moves by just that for all of `W`: a straight ramp as steep as `W` allows, while nothing longer is possible, proves `W`
as far as readings can. A load that itself rises in a straight line at such a slope, on a device whose true window is
shorter, is mistaken for it until the load has stepped a few times.
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
#: The longest sample period that NVIDIA documents; also how stale a polled reading may be while nothing else is known.
LONGEST_NS: Final = NS_PER_S
_DOCUMENTED_NS: Final = tuple(NS_PER_S * sixths // 6 for sixths in range(1, 7))
#: Multiples of the stamps' own spacing are tried up to this one; devices are known to average over ten.
_MOST_MULTIPLES: Final = 12
#: Two windows closer than this are one.
_ALIKE: Final = 0.03
#: A ramp that proves a window has so many steps, each as high as it can be, and rises by this share in all. Two steps
#: do if they rise by more, and are not the two halves of one step of the load that a short window cut in the middle.
_STEPS: Final = 3
_RISE: Final = 0.25
_HIGH_RISE: Final = 0.6
_HIGHEST_STEP: Final = 0.45
#: How far steps of polled readings, whose moments are uncertain, may be from that.
_TOLERANCE: Final = 0.1
#: A window is ruled out by so many moves that it cannot make: one reading that is garbage makes two of them. What a
#: ramp has proven takes more.
_MOVES: Final = 3
_MOVES_AGAINST_PROOF: Final = 8
#: A driver's reading may be published this much after its moment.
LATE_NS: Final = 5 * _MS
#: History that is looked through at a time, and how much of anything must be there to be believed.
_HISTORY_NS: Final = 60 * NS_PER_S
_FEWEST: Final = 4
_STRIDES: Final = (1, 2, 4)
#: Even paces at which sensors may renew themselves: what is tried for polled readings, each at so many phases.
_PERIODS_NS: Final = tuple(NS_PER_S // per_s for per_s in (1, 2, 4, 5, 6, 10, 20, 50, 100))
_PHASES: Final = 20
_MOST_PERIODS: Final = 3


class WindowEstimate(NamedTuple):
    """What is known of a sensor up to `until_ns`.

    `stamped`: the driver stamps the moments of its readings, `spacing_ns` apart; else they were polled, that far apart,
    and one may be up to `stale_ns` old. `candidates` are windows, longest first, and `against` how often the readings
    moved as they cannot with each; `known_ns` is the one that is proven, 0 without.
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
        """The windows that have to be reckoned with, longest first."""
        return (self.known_ns,) if self.known_ns else self.alive

    @property
    def alive(self) -> tuple[int, ...]:
        """The windows that are not ruled out."""
        return tuple(w for w, moves in zip(self.candidates, self.against, strict=True) if moves < _MOVES)


class WindowFinder:
    """Looks for the window of one column of readings. `stamped` None: whole microseconds are a driver's stamps.

    What is found is replaced as a whole, so that threads may share a finder: at worst, both do the same work.
    """

    def __init__(self, *, stamped: bool | None = None) -> None:
        self._stamped = stamped
        self._found: WindowEstimate | None = None

    def learn(self, column: Column) -> WindowEstimate | None:
        """Look through the readings that are new; None while there are too few."""
        found, mark = self._found, column.watermark_ns
        if mark is None or (found is not None and mark == found.until_ns):
            return found
        if found is not None and mark < found.until_ns:
            found = None  # the clock was set back
        since = mark - _HISTORY_NS
        if found is not None:
            since = max(since, found.until_ns - 3 * LONGEST_NS)
        ends, shares = _rows(column, since, mark)
        if len(ends) >= _FEWEST:
            self._found = found = _learn(found, ends, shares, column.signal, self._stamped)
        return found


def readings_of(column: Column, found: WindowEstimate, since_ns: int, until_ns: int) -> Readings:
    """The readings of an interval as what they are worth; their windows are still to be set."""
    ends, shares = _rows(column, since_ns, until_ns)
    return _readings(ends, shares, found.stamped, found.stale_ns, column.signal)


def with_window(readings: Readings, window_ns: int) -> Readings:
    """The same, of this window."""
    return readings._replace(windows=np.full(len(readings.latest), window_ns, np.int64))


def renewals(readings: Readings) -> Iterator[list[Readings]]:
    """The same at the moments that they had if the sensor renews itself at an even pace: by pace, at every phase.

    Of the paces that are possible the slowest few: faster ones are always possible, and say less.
    """
    left = _MOST_PERIODS
    for period in _PERIODS_NS:
        step = period // _PHASES
        found: list[Readings] = []
        for phase in range(0, period, step):
            since = (readings.latest - phase) % period
            moments = readings.latest - since
            # Next to a renewal, a phase that is off by half a step may take a reading for another one.
            clear = (since >= step // 2) & (since < period - step // 2)
            if np.count_nonzero(clear) * 2 > len(clear) and (moments >= readings.earliest)[clear].all():
                held = readings.part(clear)
                found.append(held._replace(earliest=moments[clear], latest=moments[clear]))
        if found:
            yield found
            left -= 1
        if not left:
            return


def _rows(column: Column, since_ns: int, until_ns: int) -> tuple[Ints, Floats]:
    """Ends and shares of the rows that have a length."""
    starts, ends, masses = column.edges(since_ns, until_ns)
    lengths = ends - starts
    held = lengths > 0
    return ends[held], masses[held] // lengths[held] * column.signal.quantum


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
    against, known, since = (0,) * len(candidates), 0, int(ends[0])
    if before is not None and same:
        candidates, against, known, since = before.candidates, before.against, before.known_ns, before.until_ns
        stale = min(stale, before.stale_ns)
    readings = _readings(ends, shares, stamped, stale, signal)
    # Readings of one spacing are tiles at least, which any load can give.
    least = 1.05 * spacing if stamped else 0.0
    against = tuple(
        moves + (_faster(readings, w, since) if w > least else 0) for w, moves in zip(candidates, against, strict=True)
    )
    found = WindowEstimate(int(ends[-1]), stamped, spacing, stale, candidates, against, known)
    if not found.alive:
        # The sensor is another one than it was, such as after a change of the driver.
        return found._replace(against=(0,) * len(candidates), known_ns=0)
    possible = [w for w, moves in zip(candidates, against, strict=True) if moves < _MOVES_AGAINST_PROOF]
    if known not in possible:
        known = next((w for w in possible if _proven(readings, w, exact=stamped)), 0)
    if not known and len(found.alive) == 1:
        known = found.alive[0]
    return found._replace(known_ns=known)


def _candidates(spacing_ns: int) -> tuple[int, ...]:
    """The windows to be tried, longest first: multiples of the stamps' spacing, and what is documented."""
    multiples = min(_MOST_MULTIPLES, round(LONGEST_NS / spacing_ns)) if spacing_ns else 0
    found = [spacing_ns * n for n in range(1, max(1, multiples) + 1)] if spacing_ns else []
    found += [w for w in _DOCUMENTED_NS if all(abs(w - other) > _ALIKE * w for other in found) and w > spacing_ns]
    return tuple(sorted(found, reverse=True))


def _stale(ends: Ints, shares: Floats) -> int:
    """How old polled values may be: two changes in a row were two renewals, and no two lie closer than that.

    Not the closest two: a reading that is garbage changes there and back at once.
    """
    changed = np.flatnonzero(shares[1:] != shares[:-1]) + 1
    apart = np.sort(ends[changed[1:]] - ends[changed[:-1] - 1])
    return int(apart[_FEWEST - 1]) + LATE_NS if len(apart) >= _FEWEST else LONGEST_NS


def _readings(ends: Ints, shares: Floats, stamped: bool, stale_ns: int, signal: Signal) -> Readings:
    """Readings with the moments that they may be of.

    Of polled ones, a value that changed is of a renewal since the poll before; one that did not may be as old as the
    one before, and is left out, but for the newest, until that is too old to be it.
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
