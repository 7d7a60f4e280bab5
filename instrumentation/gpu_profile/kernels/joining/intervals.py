"""Sets of moments as sorted, disjoint intervals: their length, and the length of their overlap."""

from __future__ import annotations

import numpy as np

from gpu_profile.kernels.joining.columns import Numbers


class Cover:
    """All moments in at least one of the intervals `[starts, ends)`, given in any order."""

    __slots__ = ("_before", "ends", "starts")

    def __init__(self, starts: Numbers, ends: Numbers) -> None:
        some = ends > starts
        starts, ends = starts[some], ends[some]
        order = np.argsort(starts, kind="stable")
        starts, until = starts[order], np.maximum.accumulate(ends[order]) if len(order) else ends
        first = np.ones(len(starts), bool)
        first[1:] = starts[1:] > until[:-1]
        last = np.ones(len(starts), bool)
        last[:-1] = first[1:]
        self.starts: Numbers = starts[first]
        self.ends: Numbers = until[last]
        lengths = self.ends - self.starts
        self._before: Numbers = np.concatenate(([0], np.cumsum(lengths)))

    @property
    def length(self) -> int:
        """The total length."""
        return int(self._before[-1])

    def until(self, moments: Numbers) -> Numbers:
        """The length before each of the moments."""
        if not len(self.starts):
            return np.zeros(len(moments), np.int64)
        place = self.starts.searchsorted(moments, "right")
        over = np.maximum(self.ends[place - 1] - moments, 0)
        return self._before[place] - np.where(place > 0, over, 0)

    def within(self, other: Cover) -> int:
        """The length of the overlap with the other."""
        return int((self.until(other.ends) - self.until(other.starts)).sum())
