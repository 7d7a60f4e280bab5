"""Exclusive active time per column as a function of time: what every sensor window is set beside. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.activities import Pieces

#: Numbers of columns: two bytes each, as there are many pieces.
Columns = npt.NDArray[np.integer[Any]]


class SampledTime(NamedTuple):
    """Active time at moments `step_ns` apart from `origin_ns` on, `[columns, moments]`, in straight lines between.

    Enough for a rough look, and a tenth of the work where many windows are asked for.
    """

    origin_ns: int
    step_ns: int
    sums: Floats

    def until(self, moments: Ints, columns: int) -> Floats:
        """As `ActiveTime.until`."""
        place = np.clip((moments - self.origin_ns) / self.step_ns, 0.0, self.sums.shape[1] - 1.001)
        low = place.astype(np.int64)
        part = place - low
        sums = self.sums[:columns]
        result: Floats = sums[:, low] * (1.0 - part) + sums[:, low + 1] * part
        return result


class ActiveTime(NamedTuple):
    """Pieces of activities' time on one device, by start.

    A piece counts for the column `alone` while nothing else is active, and for `shared`, in equal parts with the
    others, while something is: a device that is full gives each less than it would have alone.
    `reached` is the latest end so far. `times` are the moments at which the number of active pieces changes, and
    `alone_ns` and `shared_ns` how much a piece that was active from the first of them on would have counted for; all
    three are empty while nothing ever coincides.
    """

    alone: Columns
    shared: Columns
    starts: Ints
    ends: Ints
    reached: Ints
    times: Ints
    alone_ns: Floats
    shared_ns: Floats

    @classmethod
    def of(cls, found: Pieces, alone: Columns, shared: Columns) -> ActiveTime:
        """From pieces and the two columns of each."""
        starts, ends, none = found.starts, found.ends, np.zeros(0)
        reached = np.maximum.accumulate(ends)
        if not (reached[:-1] > starts[1:]).any():
            return cls(alone, shared, starts, ends, reached, np.zeros(0, np.int64), none, none)
        times, count = concurrency(found)
        lengths, count = np.diff(times), count[:-1]
        alone_ns = np.concatenate(([0.0], np.cumsum(np.where(count == 1, lengths, 0))))
        shared_ns = np.concatenate(([0.0], np.cumsum(np.where(count > 1, lengths / np.maximum(count, 1), 0.0))))
        return cls(alone, shared, starts, ends, reached, times, alone_ns, shared_ns)

    def _between(self, start_ns: int, end_ns: int) -> ActiveTime:
        """The pieces that any of the time between needs, and more."""
        high = int(np.searchsorted(self.starts, end_ns))
        low = int(np.searchsorted(self.reached, start_ns, side="right"))
        if low == 0 and high == len(self.starts):
            return self
        cut = slice(low, high)
        return self._replace(
            alone=self.alone[cut], shared=self.shared[cut], starts=self.starts[cut], ends=self.ends[cut],
            reached=self.reached[cut],
        )  # fmt: skip

    def lengths(self) -> tuple[Floats, Floats]:
        """How many ns each piece counts for alone and shared."""
        return self.within(self.starts, self.ends)

    def within(self, starts: Ints, ends: Ints) -> tuple[Floats, Floats]:
        """How many ns pieces that were active between each two moments would count for alone and shared."""
        if not len(self.times):
            whole = (ends - starts).astype(np.float64)
            return whole, np.zeros(len(whole))
        alone, shared = (
            self._counted(ends, counted) - self._counted(starts, counted) for counted in (self.alone_ns, self.shared_ns)
        )
        return alone, shared

    def _counted(self, moments: Ints, counted: Floats) -> Floats:
        first = self.times[0]
        result: Floats = np.interp(moments - first, self.times - first, counted)
        return result

    def sampled(self, start_ns: int, end_ns: int, step_ns: int, columns: int) -> SampledTime:
        """The same, roughly, for moments between the two."""
        moments = np.arange(start_ns, end_ns + 2 * step_ns, step_ns)
        return SampledTime(start_ns, step_ns, self.until(moments, columns))

    def until(self, moments: Ints, columns: int) -> Floats:
        """Active ns of each column up to each of the sorted `moments`: `[columns, len(moments)]`.

        Counted from wherever the pieces begin: only differences mean something.
        """
        if not len(moments):
            return np.zeros((columns, 0))
        some = self._between(int(moments[0]), int(moments[-1]))
        if not len(self.times):
            # Sums of moments after a near origin keep their digits.
            starts, ends, at = ((part - moments[0]).astype(np.float64) for part in (some.starts, some.ends, moments))
            return _passed(starts, ends, at, some.alone, columns)
        result = np.zeros((columns, len(moments)))
        for column, counted in ((some.alone, self.alone_ns), (some.shared, self.shared_ns)):
            starts, ends, at = (self._counted(part, counted) for part in (some.starts, some.ends, moments))
            result += _passed(starts, ends, at, column, columns)
        return result


def _passed(starts: Floats, ends: Floats, at: Floats, column: Columns, columns: int) -> Floats:
    """Of each column, the sum over its pieces of what has passed of them by each moment."""
    edges = np.concatenate((starts, ends))
    sign = np.ones(len(edges))
    sign[len(starts) :] = -1.0
    width = len(at) + 1
    row = column.astype(np.int64) * width
    cells = np.searchsorted(at, edges, side="right") + np.concatenate((row, row))
    # Of what has begun by a moment and not ended, the time since; what has ended counts for its whole length.
    open_ = np.bincount(cells, sign, columns * width).reshape(columns, width)[:, :-1]
    times = np.bincount(cells, sign * edges, columns * width).reshape(columns, width)[:, :-1]
    result: Floats = at * np.cumsum(open_, axis=1) - np.cumsum(times, axis=1)
    return result


def concurrency(found: Pieces) -> tuple[Ints, Ints]:
    """The moments at which the number of active pieces changes, and the number from each on."""
    times = np.concatenate((found.starts, found.ends))
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.where(order < len(found.starts), 1, -1))
    times = times[order]
    # Of several changes at one moment, the last one counts.
    final = np.ones(len(times), bool)
    final[:-1] = times[1:] != times[:-1]
    return times[final], count[final]
