"""Intervals of threads: the innermost at a moment, and the nesting of intervals. Pure; times in ns."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final

import numpy as np

from gpu_profile.kernels.joining.columns import Numbers

#: Where starts and durations are whole µs, an inner interval may end so much later than the one around it.
_ROUNDED_NS: Final = 2_000


class Nesting:
    """Intervals `[starts, ends)` on `threads`, numbered by their indexes in these arrays.

    `parents` are the innermost intervals that were open around each from its beginning to its end, -1: none. `crossing`
    counts intervals that end after one that they began in, such as a coroutine's. Neither of the two is inside the
    other; while both are open, the one that began last counts as the innermost.
    """

    def __init__(self, threads: Numbers, starts: Numbers, ends: Numbers) -> None:
        self.parents: Numbers = np.full(len(starts), -1, np.int64)
        self.crossing = 0
        #: By thread: moments, and the innermost interval from each of them on.
        self._changes: dict[int, tuple[Numbers, Numbers]] = {}
        self._starts, self._ends = starts, ends
        for thread in np.unique(threads).tolist():
            here = np.flatnonzero(threads == thread)
            order = here[np.lexsort((-ends[here], starts[here]))]
            self._changes[int(thread)] = self._sweep(order)

    def _sweep(self, order: Numbers) -> tuple[Numbers, Numbers]:
        moments: list[int] = []
        innermost: list[int] = []
        #: Open intervals with their ends, in the order of their starts.
        opened: dict[int, int] = {}
        closing: list[tuple[int, int, int]] = []
        parents = self.parents
        for place, (number, start, end) in enumerate(
            zip(order.tolist(), self._starts[order].tolist(), self._ends[order].tolist(), strict=True)
        ):
            while closing and closing[0][0] <= start:
                self._close(closing, opened, moments, innermost)
            parents[number] = next((n for n, until in reversed(opened.items()) if end <= until + _ROUNDED_NS), -1)
            opened[number] = end
            # If several end together, the innermost first.
            heappush(closing, (end, -place, number))
            moments.append(start)
            innermost.append(number)
        while closing:
            self._close(closing, opened, moments, innermost)
        return np.array(moments, np.int64), np.array(innermost, np.int64)

    def _close(
        self, closing: list[tuple[int, int, int]], opened: dict[int, int], moments: list[int], innermost: list[int]
    ) -> None:
        end, _, number = heappop(closing)
        self.crossing += number != next(reversed(opened))
        del opened[number]
        moments.append(end)
        innermost.append(next(reversed(opened), -1))

    def at(self, threads: Numbers, moments: Numbers) -> Numbers:
        """The innermost interval on these threads at these moments; -1: none."""
        result = np.full(len(moments), -1, np.int64)
        for thread, (changes, innermost) in self._changes.items():
            here = np.flatnonzero(threads == thread)
            if len(here):
                place = np.searchsorted(changes, moments[here], "right")
                result[here] = np.where(place > 0, innermost[place - 1], -1)
        return result


class Forest:
    """Nested numbers in depth-first order: all numbers inside `i` are at the places `first[i]` up to `last[i]`.

    `outermost` are, by name, the numbers that have no number of the same name around them.
    """

    def __init__(self, parents: Numbers, names: Numbers) -> None:
        count = len(parents)
        inside: list[list[int]] = [[] for _ in range(count)]
        roots: list[int] = []
        for number, parent in enumerate(parents.tolist()):
            (inside[parent] if parent >= 0 else roots).append(number)
        self.first: Numbers = np.zeros(count, np.int64)
        self.last: Numbers = np.zeros(count, np.int64)
        outermost: dict[int, list[int]] = {}
        named, around = names.tolist(), dict[int, int]()
        place = 0
        #: Numbers to enter, and, as ~number, to leave.
        todo = roots[::-1]
        while todo:
            number = todo.pop()
            if number < 0:
                number = ~number
                self.last[number] = place
                around[named[number]] -= 1
                continue
            self.first[number] = place
            place += 1
            if not around.setdefault(named[number], 0):
                outermost.setdefault(named[number], []).append(number)
            around[named[number]] += 1
            todo.append(~number)
            todo.extend(reversed(inside[number]))
        self.outermost: Mapping[int, list[int]] = outermost
