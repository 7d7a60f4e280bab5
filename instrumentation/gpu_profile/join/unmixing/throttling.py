"""For which part of each region's time the driver held the clocks down, and why. Pure.

The driver counts throttle time, and the counters are read ten times a second. What a counter grew by between two
readings is shared out by time among all that ran between them: a limit that comes and goes within 100 ms counts for
the regions on both sides of it. Nothing is unmixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Column, Floats, Ints, Timeline
from gpu_profile.join.unmixing.activities import Activities
from gpu_profile.units import NS_PER_S

#: The counters are looked at for so much time at once, which costs hardly more than for a moment...
_PATIENCE_NS: Final = 5 * NS_PER_S
#: ... and their rows are waited for no longer than this.
_LATE_NS: Final = 10 * NS_PER_S
#: A share is told if rows cover this much of the time.
_COVERED: Final = 0.5


class Throttling:
    """The counters of throttle time of one device, beside what ran on it. A region is its column in the pool."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        #: By reason, `[2, columns]`: ns for which the clocks were held down, and ns that rows cover.
        self._found: dict[str, Floats] = {}
        self._active_ns: Floats = np.zeros(0)
        #: What ran, and is not yet set beside the counters, and since when.
        self._waiting: list[Activities] = []
        self._since_ns = 0

    def note(self, present: Activities) -> None:
        """Wait for the counters' rows of what ran in a slice of time."""
        if len(present.starts):
            start_ns = int(present.starts.min())
            self._since_ns = min(self._since_ns, start_ns) if self._waiting else start_ns
            self._waiting.append(present)

    def read(self, now_ns: int, *, final: bool) -> None:
        """Read the counters for what waits, if their rows have come, or will not come any more."""
        elapsed_ns = now_ns - self._since_ns
        if not self._waiting or (elapsed_ns < _PATIENCE_NS and not final):
            return
        counters = throttle_counters(self._timeline)
        marks = [mark for counter in counters.values() if (mark := counter.watermark_ns) is not None]
        starts, ends, _, columns = self._ran().once()
        if marks and len(ends) and min(marks) < ends.max() and elapsed_ns < _LATE_NS and not final:
            return
        self._waiting = []
        self._active_ns = _added(self._active_ns, _summed(columns, ends - starts))
        if not marks:
            # Time for which there are no readings is time that they do not cover.
            return
        for reason, counter in counters.items():
            found = np.array([_summed(columns, part) for part in counter.integrals(starts, ends)])
            self._found[reason] = _added(self._found.get(reason, np.zeros((2, 0))), found)

    def shares(self, column: int) -> Mapping[str, float]:
        """By reason: the share of a region's time for which the clocks were held down; none that is not known."""
        known = {}
        for reason, found in self._found.items():
            held, covered = found[:, column].tolist() if 0 <= column < found.shape[1] else (0.0, 0.0)
            if covered > 0 and covered >= _COVERED * self._active_ns[column]:
                known[reason] = min(1.0, held / covered)
        return known

    def restart(self) -> None:
        """Time goes on from an earlier moment: readings with the stamps of what waits are not of it any more."""
        if self._waiting:
            starts, ends, _, columns = self._ran().once()
            self._active_ns = _added(self._active_ns, _summed(columns, ends - starts))
        self._waiting = []

    def _ran(self) -> Activities:
        """All that waits."""
        return Activities(*map(np.concatenate, zip(*self._waiting, strict=True)))

    def merge(self, column: int, into: int) -> None:
        """Make a region's time that of another."""
        self._waiting = [w._replace(columns=np.where(w.columns == column, into, w.columns)) for w in self._waiting]
        self._active_ns = _merged(self._active_ns, column, into)
        self._found = {reason: _merged(found, column, into) for reason, found in self._found.items()}


def throttle_counters(timeline: Timeline) -> Mapping[str, Column]:
    """By reason: the driver's counter of throttle time, else what readings showed."""
    found = {}
    for sources in zip(rows.THROTTLES, rows.THROTTLES_SEEN, strict=True):
        if (counter := timeline.best(sources)) is not None:
            found[dict(sources[0].attributes)["nvidia.gpu.throttle.reason"]] = counter
    return found


def _summed(columns: Ints, values: npt.NDArray[Any]) -> Floats:
    return np.bincount(columns, values.astype(np.float64)).astype(np.float64, copy=False)


def _added(sums: Floats, more: Floats) -> Floats:
    if sums.shape != more.shape:
        size = max(sums.shape[-1], more.shape[-1])
        sums, more = _padded(sums, size), _padded(more, size)
    return sums + more


def _merged(sums: Floats, column: int, into: int) -> Floats:
    sums = _padded(sums, max(column, into) + 1)
    sums[..., into] += sums[..., column]
    sums[..., column] = 0.0
    return sums


def _padded(sums: Floats, size: int) -> Floats:
    return np.pad(sums, [(0, 0)] * (sums.ndim - 1) + [(0, max(0, size - sums.shape[-1]))])
