"""The share of each region's time in which the driver held the clocks down, by reason. Pure.

The driver counts throttle time, and the counters are read ten times a second. Their growth between two readings is
shared out by time among the regions that ran between them: a limit that applies for less than 100 ms counts for the
regions on both sides of it. Nothing is unmixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Column, Floats, Ints, Timeline
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.units import NS_PER_S

#: The counters are evaluated for this much time at once, which costs hardly more than for a moment...
_PATIENCE_NS: Final = 5 * NS_PER_S
#: ... and the wait for their rows is no longer than this.
_LATE_NS: Final = 10 * NS_PER_S
#: A share is given if rows cover this much of the time.
_COVERED: Final = 0.5


class Throttling:
    """The counters of throttle time of one device, applied to its regions. A region is its column in the pool."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        #: By reason, `[2, columns]`: ns in which the clocks were held down, and ns that rows cover.
        self._throttled: dict[str, Floats] = {}
        self._active_ns: Floats = np.zeros(0)
        #: Activities that have not been matched with the counters yet, and the start of the first.
        self._waiting: list[Activities] = []
        self._since_ns = 0

    def note(self, present: Activities) -> None:
        """Queue the activities of a slice of time, later than earlier slices, until the counters' rows arrive."""
        if len(present.starts):
            if not self._waiting:
                self._since_ns = int(present.starts.min())
            self._waiting.append(present)

    def read(self, now_ns: int, *, final: bool) -> None:
        """Read the counters for the queued activities if their rows have arrived, or are overdue."""
        elapsed_ns = now_ns - self._since_ns
        if not self._waiting or (elapsed_ns < _PATIENCE_NS and not final):
            return
        counters = throttle_counters(self._timeline)
        marks = [mark for counter in counters.values() if (mark := counter.watermark_ns) is not None]
        starts, ends, _, columns = Activities.joined(self._waiting).once()
        if marks and len(ends) and min(marks) < ends.max() and elapsed_ns < _LATE_NS and not final:
            return
        self._waiting = []
        self._active_ns = _added(self._active_ns, _summed(columns, ends - starts))
        if not marks:
            # Time without readings counts as not covered.
            return
        for reason, counter in counters.items():
            sums = np.array([_summed(columns, part) for part in counter.integrals(starts, ends)])
            self._throttled[reason] = _added(self._throttled.get(reason, np.zeros((2, 0))), sums)

    def shares(self, column: int) -> Mapping[str, float]:
        """By reason: the share of a region's time in which the clocks were held down. Only with enough readings."""
        shares = {}
        for reason, sums in self._throttled.items():
            held, covered = sums[:, column].tolist() if 0 <= column < sums.shape[1] else (0.0, 0.0)
            if covered > 0 and covered >= _COVERED * self._active_ns[column]:
                shares[reason] = min(1.0, held / covered)
        return shares

    def merge(self, column: int, into: int) -> None:
        """Merge a region's time into another's."""
        self._waiting = [w._replace(columns=np.where(w.columns == column, into, w.columns)) for w in self._waiting]
        self._active_ns = _merged(self._active_ns, column, into)
        self._throttled = {reason: _merged(sums, column, into) for reason, sums in self._throttled.items()}


def throttle_counters(timeline: Timeline) -> Mapping[str, Column]:
    """By reason: the driver's counter of throttle time, or else the counter that this project derives from readings."""
    counters = {}
    for sources in zip(rows.THROTTLES, rows.THROTTLES_SEEN, strict=True):
        if (counter := timeline.best(sources)) is not None:
            counters[dict(sources[0].attributes)["nvidia.gpu.throttle.reason"]] = counter
    return counters


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
