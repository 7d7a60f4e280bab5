"""Executions from their beginning until every pool has taken them in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.activities import NamedActivities
from gpu_profile.regions.execution import Execution, resolve_together
from gpu_profile.regions.streams import resolving

#: The longest chain of ended ancestors that an execution keeps alive.
MOST_DEEP: Final = 1_000
#: Distinct names of devices that are kept.
MOST_NAMES: Final = 1_000


class Backlog:
    """Running executions, and ended ones that wait for samples. Not thread-safe.

    `marked` returns whether an execution's marks are on its devices: it may name other devices than its stream's.

    At 30,000 executions a second, reading the attributes of each again and again would take too long. So the intervals
    of ended executions are kept in the arrays `starts` and `ends`.
    """

    def __init__(self, marked: Callable[[Execution], bool] = lambda _: True) -> None:
        self._marked = marked
        #: Running executions, in the order in which they began.
        self.running: list[Execution] = []
        #: Ended executions with marks that their stream has not passed.
        self.behind: list[Execution] = []
        #: Ended executions with an interval, in ns: `starts` and `ends`.
        self.ended: list[Execution] = []
        self.starts: Ints = np.zeros(0, np.int64)
        self.ends: Ints = np.zeros(0, np.int64)
        #: The names of devices that executions have used so far.
        self.named: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self.running) + len(self.behind) + len(self.ended)

    def all_executions(self) -> list[Execution]:
        """All executions."""
        return [*self.ended, *self.behind, *self.running]

    def collect(self, began: deque[Execution]) -> list[Execution]:
        """Take in the executions of `began`; returns the executions that have ended since the last call."""
        running = self.running
        while began:
            running.append(began.popleft())
        # Of all running executions, not only new ones: an execution is queued a moment before its device is set.
        names = {execution.device for execution in running} - self.named - {None}
        self.named.update(islice(names, MOST_NAMES - len(self.named)))
        still: list[Execution] = []
        ended: list[Execution] = []
        for execution in running:
            (ended if execution.end_ns else still).append(execution)
        self.running = still
        self._add(ended)
        return ended

    def _add(self, executions: Iterable[Execution]) -> None:
        new: list[Execution] = []
        for execution in executions:
            parent = execution.parent
            if parent is not None and parent.end_ns:
                _cut_ancestors(execution)
            if execution.stream is not None and not self._marked(execution):
                execution.stream = None
            (new if execution.stream is None else self.behind).append(execution)
        starts, ends = [e.start_ns for e in new], [e.end_ns for e in new]
        still: list[Execution] = []
        with resolving({id(execution.stream): execution.stream for execution in self.behind}.values()):
            pending = resolve_together(self.behind)
            for execution in self.behind:
                start, end = execution.on_device_ns
                if start is None or end is None:
                    interval = None if id(execution) in pending else execution.interval()
                    if interval is None:
                        still.append(execution)
                        continue
                    start, end = interval.start_ns, interval.end_ns
                new.append(execution)
                starts.append(start)
                ends.append(end)
        self.behind = still
        if new:
            self.ended += new
            self.starts = np.concatenate((self.starts, np.array(starts, np.int64)))
            self.ends = np.concatenate((self.ends, np.array(ends, np.int64)))

    def activities(self, here: Callable[[Hashable], bool], since_ns: int, until_ns: int) -> NamedActivities:
        """The executions that were active on one device in `[since_ns, until_ns)`. Running ones end at `until_ns`.

        `here` returns whether an execution's `device` includes that device.
        """
        chosen = np.flatnonzero((self.ends > since_ns) & (self.starts < until_ns))
        every = len(chosen) == len(self.ended)
        present = list(self.ended) if every else [self.ended[i] for i in chosen.tolist()]
        starts, ends = self.starts[chosen], self.ends[chosen]
        if self.named or not here(None):
            keep = [i for i, execution in enumerate(present) if here(execution.device)]
            present, starts, ends = [present[i] for i in keep], starts[keep], ends[keep]
        active = [
            (execution, times[0], until_ns if times[1] is None else times[1])
            for execution in (*self.behind, *self.running)
            if here(execution.device) and (times := execution.active()) is not None
        ]
        active = [row for row in active if row[1] < until_ns and row[2] > since_ns]
        if active:
            present += [row[0] for row in active]
            starts = np.concatenate((starts, np.array([row[1] for row in active], np.int64)))
            ends = np.concatenate((ends, np.array([row[2] for row in active], np.int64)))
        return NamedActivities([execution.name for execution in present], starts, ends, _parents(present))

    def remove_joined(self, until_ns: int, latest_ns: int, abandoned_ns: int) -> list[Execution]:
        """Remove and return the executions that ended by `until_ns`: every pool has taken them in.

        Also executions that ended after `latest_ns`: the clock was set back and no sample will cover them. Also
        executions that ended before `abandoned_ns` with marks that their stream has still not passed.
        """
        gone = (self.ends <= until_ns) | (self.ends > latest_ns)
        result: list[Execution] = []
        if gone.all():
            result, self.ended = self.ended, []
        elif gone.any():
            result = [self.ended[i] for i in np.flatnonzero(gone).tolist()]
            self.ended = [self.ended[i] for i in np.flatnonzero(~gone).tolist()]
        self.starts, self.ends = self.starts[~gone], self.ends[~gone]
        if self.behind:
            result += [execution for execution in self.behind if execution.end_ns < abandoned_ns]
            self.behind = [execution for execution in self.behind if execution.end_ns >= abandoned_ns]
        return result

    def drop(self, most: int) -> int:
        """Drop the oldest of `ended` and of `behind` beyond `most` in each; returns how many were dropped."""
        over = max(0, len(self.ended) - most)
        if over:
            del self.ended[:over]
            self.starts, self.ends = self.starts[over:], self.ends[over:]
        waiting = max(0, len(self.behind) - most)
        del self.behind[:waiting]
        return over + waiting


def _cut_ancestors(execution: Execution) -> None:
    """Drop a chain of `MOST_DEEP` ended ancestors: executions that each outlive their parent would grow it for ever."""
    ancestor, depth = execution.parent, 0
    while ancestor is not None and ancestor.end_ns and depth < MOST_DEEP:
        ancestor, depth = ancestor.parent, depth + 1
    if depth == MOST_DEEP:
        execution.parent = None


def _parents(present: list[Execution]) -> Ints:
    """For each execution the index of its nearest ancestor in `present`, -1 for none."""
    around = [execution.parent for execution in present]
    result = np.full(len(present), -1, np.int64)
    if around.count(None) == len(around):
        return result
    place = {id(execution): i for i, execution in enumerate(present)}
    for i, parent in enumerate(around):
        if parent is None:
            continue
        key = id(parent) if id(parent) in place else parent.nearest(place)
        if key is not None:
            result[i] = place[key]
    return result
