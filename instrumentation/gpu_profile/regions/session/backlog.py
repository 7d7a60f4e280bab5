"""Executions from their beginning until every pool has taken them in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.ledger import FARTHEST
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.windows.activities import NamedActivities
from gpu_profile.regions.execution import Execution, resolve_together
from gpu_profile.regions.streams import resolving

#: The longest chain of ended ancestors that an execution keeps alive.
MOST_DEEP: Final = 1_000
#: Distinct names of devices that are kept.
MOST_NAMES: Final = 1_000


class EndedExecutions(NamedTuple):
    """Ended executions as columns, with their intervals on the host in ns.

    Many rows may share one execution without times, if they differ in nothing else.
    """

    executions: Sequence[Execution]
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, executions: Sequence[Execution]) -> EndedExecutions:
        """Executions with times of their own."""
        starts, ends = [e.start_ns for e in executions], [e.end_ns for e in executions]
        return cls(executions, np.array(starts, np.int64), np.array(ends, np.int64))

    def skipped(self, first_ns: int, last_ns: int, ahead_ns: int) -> EndedExecutions:
        """The same with starts that are `ahead_ns` later for executions that started by `first_ns` and ended from
        `last_ns` on: the clock was set ahead meanwhile. Notes it in them too."""
        during = (self.starts <= first_ns) & (self.ends >= last_ns)
        for i in np.flatnonzero(during).tolist():
            if self.executions[i].end_ns:
                self.executions[i].skipped_ns += ahead_ns
        return self._replace(starts=np.where(during, self.starts + ahead_ns, self.starts))

    def separate(self) -> Iterator[Execution]:
        """One execution with times for each row."""
        for execution, start_ns, end_ns in zip(self.executions, self.starts.tolist(), self.ends.tolist(), strict=True):
            yield execution if execution.end_ns else execution.at(start_ns, end_ns)


class ForeignExecutions(NamedTuple):
    """Executions that ended in other processes: rows as in `EndedExecutions`, with increasing `numbers`.

    `nested`: executions with times that replace the ones of rows, by number. Only these have parents.
    """

    executions: Sequence[Execution]
    starts: Ints
    ends: Ints
    numbers: Ints
    nested: Sequence[tuple[int, Execution]]


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
        #: Executions of other processes. Any thread may append some. A backlog has only such executions, or none.
        self.foreign: deque[ForeignExecutions] = deque()
        #: The numbers of the rows of `ended`, if these came in `foreign`.
        self._numbers: Ints = np.zeros(0, np.int64)
        #: Executions during which the clock was set back, until they have ended.
        self._moved: set[Execution] = set()
        #: The names of devices that executions have used so far.
        self.named: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self.running) + len(self.behind) + len(self.ended)

    def all_executions(self) -> list[Execution]:
        """All executions."""
        ended = EndedExecutions(self.ended, self.starts, self.ends).separate() if len(self._numbers) else self.ended
        return [*ended, *self.behind, *self.running]

    def collect(self, began: deque[Execution]) -> EndedExecutions:
        """Take in the executions of `began` and `foreign`; returns those that have ended since the last call."""
        if self.foreign:
            return self._collect_foreign()
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
        rows = EndedExecutions.of(ended)
        for i, execution in enumerate(ended) if self._moved else ():
            if execution in self._moved:
                self._moved.remove(execution)
                rows.starts[i] = execution.begun_ns
        # Without a known step: a clock that is set by less than is noticed.
        for i in np.flatnonzero(rows.ends < rows.starts).tolist():
            rows.ends[i] = rows.starts[i]
            ended[i].end_ns = ended[i].start_ns
        self._add(rows)
        return rows

    def set_back(self, before_ns: int, now_ns: int, set_ns: int, began: Sequence[Execution]) -> None:
        """Note in executions that run, or are in `began`, that the clock was set by `set_ns`, which is negative.

        It was set between the times `before_ns` and `now_ns`. The running ones began before the step, the others did if
        their start is in the future now. An execution ended after the step if its end is not later than either time.
        """
        latest_ns = min(before_ns, now_ns)
        for execution in chain(self.running, (each for each in began if each.start_ns > now_ns)):
            if execution.start_ns and execution.end_ns <= latest_ns:
                execution.skipped_ns += set_ns
                self._moved.add(execution)

    def restart(self) -> EndedExecutions:
        """Remove and return all ended executions: their times pass again."""
        return self.remove_joined(FARTHEST, FARTHEST, -FARTHEST)

    def _collect_foreign(self) -> EndedExecutions:
        blocks = [self.foreign.popleft() for _ in range(len(self.foreign))]
        executions = list(chain.from_iterable(block.executions for block in blocks))
        starts, ends = (np.concatenate(column) for column in zip(*(block[1:3] for block in blocks), strict=True))
        numbers = np.concatenate([block.numbers for block in blocks])
        names = {execution.device for execution in dict.fromkeys(executions)} - self.named - {None}
        self.named.update(islice(names, MOST_NAMES - len(self.named)))
        self._append(executions, starts, ends)
        self._numbers = np.concatenate((self._numbers, numbers))
        nested = [each for block in blocks for each in block.nested]
        places = np.searchsorted(self._numbers, np.array([number for number, _ in nested], np.int64)).tolist()
        for (number, execution), i in zip(nested, places, strict=True):
            if i < len(self.ended) and self._numbers[i] == number:  # else every pool has taken it in
                self.ended[i] = execution
        return EndedExecutions(executions, starts, ends)

    def _add(self, rows: EndedExecutions) -> None:
        new: list[Execution] = []
        for execution in rows.executions:
            parent = execution.parent
            if parent is not None and parent.end_ns:
                _cut_ancestors(execution)
            if execution.stream is not None and not self._marked(execution):
                execution.stream = None
            (new if execution.stream is None else self.behind).append(execution)
        if not self.behind:
            self._append(new, rows.starts, rows.ends)
            return
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
        self._append(new, np.array(starts, np.int64), np.array(ends, np.int64))

    def _append(self, executions: Sequence[Execution], starts: Ints, ends: Ints) -> None:
        if executions:
            self.ended += executions
            self.starts, self.ends = np.concatenate((self.starts, starts)), np.concatenate((self.ends, ends))

    def activities(self, here: Callable[[Hashable], bool], since_ns: int, until_ns: int) -> NamedActivities:
        """The executions that were active on one device in `[since_ns, until_ns)`. Running ones end at `until_ns`.

        `here` returns whether an execution's `device` includes that device.
        """
        chosen = np.flatnonzero((self.ends > since_ns) & (self.starts < until_ns))
        every = len(chosen) == len(self.ended)
        present = list(self.ended) if every else [self.ended[i] for i in chosen.tolist()]
        starts, ends = self.starts[chosen], self.ends[chosen]
        # Executions of other processes share few objects: without a loop in Python.
        distinct = dict.fromkeys(present) if len(self._numbers) else present
        if not all(map(here, {execution.device for execution in distinct})):
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

    def remove_joined(self, until_ns: int, latest_ns: int, abandoned_ns: int) -> EndedExecutions:
        """Remove and return the executions that ended by `until_ns`: every pool has taken them in.

        Also executions that ended after `latest_ns`: the clock was set back and no sample will cover them. Also
        executions that ended before `abandoned_ns` with marks that their stream has still not passed.
        """
        gone = (self.ends <= until_ns) | (self.ends > latest_ns)
        left = ~gone
        # Rows are nearly in the order of their ends: all before `first` are gone, and all from `end` on stay.
        first, end = _first(left), len(gone) - _first(gone[::-1])
        mixed = self.ended[first:end]
        removed = [*self.ended[:first], *compress(mixed, gone[first:end].tolist())]
        result = EndedExecutions(removed, self.starts[gone], self.ends[gone])
        self.ended = [*compress(mixed, left[first:end].tolist()), *self.ended[end:]]
        self.starts, self.ends = self.starts[left], self.ends[left]
        if len(self._numbers):
            self._numbers = self._numbers[left]
        if self.behind:
            abandoned = [execution for execution in self.behind if execution.end_ns < abandoned_ns]
            self.behind = [execution for execution in self.behind if execution.end_ns >= abandoned_ns]
            result = EndedExecutions.of([*result.separate(), *abandoned])
        return result

    def drop(self, most: int) -> int:
        """Drop the oldest of `ended` and of `behind` beyond `most` in each; returns how many were dropped."""
        over = max(0, len(self.ended) - most)
        if over:
            del self.ended[:over]
            self.starts, self.ends, self._numbers = self.starts[over:], self.ends[over:], self._numbers[over:]
        waiting = max(0, len(self.behind) - most)
        del self.behind[:waiting]
        return over + waiting


def _first(chosen: npt.NDArray[np.bool_]) -> int:
    """The first row that is chosen, or the number of rows."""
    return int(np.argmax(chosen)) if chosen.any() else len(chosen)


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
