"""Executions from their beginning until every pool has taken them in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.activities import Named
from gpu_profile.regions.execution import Execution, resolve_together
from gpu_profile.regions.streams import resolving

#: Executions that begin inside one another, each outliving the one before it, hold on to at most this many.
MOST_DEEP: Final = 1_000
#: Ways of naming devices that are kept.
MOST_NAMES: Final = 1_000


class Backlog:
    """What runs, and what has ended and waits for samples. One thread at a time.

    `marked` says whether an execution's marks are of what it runs on: one may name other devices than its stream's.

    At 30,000 executions a second there is no time to ask each one about itself again and again: once it is known when
    they were active, they are rows of columns.
    """

    def __init__(self, marked: Callable[[Execution], bool] = lambda _: True) -> None:
        self._marked = marked
        #: Those that run, in the order in which they began.
        self.running: list[Execution] = []
        #: Those that have ended, while their stream has not passed their marks.
        self.behind: list[Execution] = []
        #: Those that have ended and of which it is known when they were active: `starts` and `ends`, in ns.
        self.ended: list[Execution] = []
        self.starts: Ints = np.zeros(0, np.int64)
        self.ends: Ints = np.zeros(0, np.int64)
        #: What executions have named their devices by, so far.
        self.named: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self.running) + len(self.behind) + len(self.ended)

    def everyone(self) -> list[Execution]:
        """All of them."""
        return [*self.ended, *self.behind, *self.running]

    def collect(self, began: deque[Execution]) -> list[Execution]:
        """Take in what has begun; returns what has ended since the last time."""
        running = self.running
        while began:
            running.append(began.popleft())
        # Of all that run: an execution is queued a moment before its stream tells the device.
        names = {execution.device for execution in running} - self.named - {None}
        self.named.update(islice(names, MOST_NAMES - len(self.named)))
        still: list[Execution] = []
        found: list[Execution] = []
        for execution in running:
            (found if execution.end_ns else still).append(execution)
        self.running = still
        self._add(found)
        return found

    def _add(self, executions: Iterable[Execution]) -> None:
        new: list[Execution] = []
        for execution in executions:
            parent = execution.parent
            if parent is not None and parent.end_ns:
                _let_go_of_ancestors(execution)
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

    def activities(self, here: Callable[[Hashable], bool], since_ns: int, until_ns: int) -> Named:
        """When who was active on one device in `[since, until)`; what is active still ends at `until_ns`.

        `here` says whether an execution that names such devices is on that one.
        """
        chosen = np.flatnonzero((self.ends > since_ns) & (self.starts < until_ns))
        every = len(chosen) == len(self.ended)
        present = list(self.ended) if every else [self.ended[i] for i in chosen.tolist()]
        starts, ends = self.starts[chosen], self.ends[chosen]
        if self.named or not here(None):
            keep = [i for i, execution in enumerate(present) if here(execution.device)]
            present, starts, ends = [present[i] for i in keep], starts[keep], ends[keep]
        active = [
            (execution, known[0], until_ns if known[1] is None else known[1])
            for execution in (*self.behind, *self.running)
            if here(execution.device) and (known := execution.active()) is not None
        ]
        active = [row for row in active if row[1] < until_ns and row[2] > since_ns]
        if active:
            present += [row[0] for row in active]
            starts = np.concatenate((starts, np.array([row[1] for row in active], np.int64)))
            ends = np.concatenate((ends, np.array([row[2] for row in active], np.int64)))
        return Named([execution.name for execution in present], starts, ends, _parents(present))

    def let_go(self, until_ns: int, latest_ns: int, given_up_ns: int) -> list[Execution]:
        """Forget what every pool has taken in, up to `until_ns`; returns it.

        Also what ended after `latest_ns`, in what is the future since the clock was set back: no sample will cover it.
        And what ended before `given_up_ns` and whose stream has still not passed it.
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
            result += [execution for execution in self.behind if execution.end_ns < given_up_ns]
            self.behind = [execution for execution in self.behind if execution.end_ns >= given_up_ns]
        return result

    def drop(self, most: int) -> int:
        """Keep at most this many that have ended: the oldest go. How many went."""
        over = max(0, len(self.ended) - most)
        if over:
            del self.ended[:over]
            self.starts, self.ends = self.starts[over:], self.ends[over:]
        waiting = max(0, len(self.behind) - most)
        del self.behind[:waiting]
        return over + waiting


def _let_go_of_ancestors(execution: Execution) -> None:
    """A chain of executions that each outlived the one before it must not grow for ever."""
    ancestor, depth = execution.parent, 0
    while ancestor is not None and ancestor.end_ns and depth < MOST_DEEP:
        ancestor, depth = ancestor.parent, depth + 1
    if depth == MOST_DEEP:
        execution.parent = None


def _parents(present: list[Execution]) -> Ints:
    """The place of the nearest ancestor that is present, -1 for none."""
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
