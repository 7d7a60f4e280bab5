"""Executions on a device, and the stretches of time in which each of them was the innermost one. Pure.

At every moment the device's time belongs, in equal parts, to the activities that run without a running descendant
(*exclusive*). Their shares and the time outside all of them add up to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Ints

#: The longest chain of ancestors: a cycle of parents is a caller's mistake that must not hang a service.
MOST_DEEP: Final = 1000


class DeviceExecution(NamedTuple):
    """One execution on one device: its time there, its region, and the execution that it ran inside.

    `end_ns` is None while it runs.
    """

    key: Hashable
    parent: Hashable | None
    region: str
    start_ns: int
    end_ns: int | None


class Activities(NamedTuple):
    """Many activities as columns of int64, in any order.

    `parents` holds the index of the activity around each, -1 for none; `columns` numbers their regions.
    """

    starts: Ints
    ends: Ints
    parents: Ints
    columns: Ints

    @classmethod
    def of(cls, activities: Iterable[DeviceExecution], column: Callable[[str], int], until_ns: int) -> Activities:
        """From one object per activity. Running ones end at `until_ns`. Of several with one key, the last counts."""
        return NamedActivities.of(activities, until_ns).numbered(column)

    @classmethod
    def joined(cls, some: Sequence[Activities]) -> Activities:
        """Several sets of activities as one."""
        if len(some) == 1:
            return some[0]
        starts, ends, parents, columns = map(np.concatenate, zip(*some, strict=True))
        if (parents >= 0).any():
            counts = [len(each.starts) for each in some]
            parents = np.where(parents >= 0, parents + np.repeat(np.cumsum([0, *counts[:-1]]), counts), -1)
        return cls(starts, ends, parents, columns)

    def during(self, start_ns: int, end_ns: int) -> Activities:
        """The activities that overlap `[start, end)`, cut to it. Parents become the nearest ancestors among them."""
        return self._cut(np.flatnonzero(self._overlap(slice(None), start_ns, end_ns)), start_ns, end_ns)

    def slices(self, edges: Sequence[int]) -> Iterator[Activities]:
        """The result of `during` for each stretch from one edge to the next, in a single pass."""
        if len(edges) == 2:
            yield self.during(*edges)
            return
        order = np.argsort(self.starts, kind="stable")
        began = np.searchsorted(self.starts[order], np.array(edges, np.int64)).tolist()
        running = order[: began[0]]
        for (a, b), (old, new) in zip(pairwise(edges), pairwise(began), strict=True):
            running = np.concatenate((running[self.ends[running] > a], order[old:new]))
            yield self._cut(np.sort(running[self._overlap(running, a, b)]), a, b)

    def _overlap(self, which: Ints | slice, start_ns: int, end_ns: int) -> npt.NDArray[np.bool_]:
        return np.maximum(self.starts[which], start_ns) < np.minimum(self.ends[which], end_ns)

    def _cut(self, chosen: Ints, start_ns: int, end_ns: int) -> Activities:
        """The activities at indices `chosen`, which must be all that overlap `[start, end)`, cut to it."""
        starts, ends = np.maximum(self.starts[chosen], start_ns), np.minimum(self.ends[chosen], end_ns)
        parents = self.parents[chosen]
        if len(chosen) < len(self.starts) and (parents >= 0).any():
            for _ in range(MOST_DEEP):
                gone = (parents >= 0) & ~self._overlap(parents, start_ns, end_ns)
                if not gone.any():
                    break
                parents = np.where(gone, self.parents[parents], parents)
            else:
                parents = np.where(gone, -1, parents)
            parents = np.where(parents >= 0, np.searchsorted(chosen, parents), -1)
        return Activities(starts, ends, parents, self.columns[chosen])

    def once(self) -> Activities:
        """Activities of one column without overlaps: each begins after the earlier ones of its column. Parents are
        dropped."""
        if (self.starts[1:] >= self.ends[:-1]).all():
            return self._replace(parents=np.full(len(self.starts), -1))
        order = np.lexsort((self.starts, self.columns))
        starts, ends, columns = self.starts[order], self.ends[order], self.columns[order]
        first = np.ones(len(order), bool)
        first[1:] = columns[1:] != columns[:-1]
        reached = _running_max(ends, first)
        starts[1:] = np.where(first[1:], starts[1:], np.maximum(starts[1:], reached[:-1]))
        left = ends > starts
        return Activities(starts[left], ends[left], np.full(int(left.sum()), -1), columns[left])

    def ancestors(self) -> Iterator[tuple[Ints, Ints]]:
        """Pairs of indices `(activity, ancestor)`, one generation after the other."""
        of = behind = np.nonzero(self.parents >= 0)[0]
        if not len(of):
            return
        at = self.parents[of]
        for generation in range(MOST_DEEP):
            if not len(of):
                return
            yield of, at
            # A second pointer at half the speed: a cycle meets it after at most one full turn (Floyd).
            on = (self.parents[at] >= 0) & (at != behind)
            of, at, behind = of[on], self.parents[at[on]], behind[on]
            if generation % 2:
                behind = self.parents[behind]


class NamedActivities(NamedTuple):
    """Many activities as columns of int64, in any order, with the names of their regions.

    `parents` holds the index of the activity around each, -1 for none.
    """

    regions: Sequence[str]
    starts: Ints
    ends: Ints
    parents: Ints

    @classmethod
    def of(cls, activities: Iterable[DeviceExecution], until_ns: int) -> NamedActivities:
        """From one object per activity. Running ones end at `until_ns`. Of several with one key, the last counts."""
        every = list(activities)
        if not every:
            return cls((), *(np.zeros(0, np.int64),) * 3)
        keys, parents, regions, starts, ends = zip(*every, strict=True)
        n = len(keys)
        if len(set(keys)) < n:
            # One execution may occur twice if a caller read it while it moved from running to ended.
            return cls.of(dict(zip(keys, every, strict=True)).values(), until_ns)
        if None in ends:
            ends = tuple(until_ns if end is None else end for end in ends)
        around = np.full(n, -1)
        if parents.count(None) < n:
            place: dict[Hashable, int] = dict(zip(keys, range(n), strict=True))
            place[None] = -1
            around = np.array([place.get(parent, -1) for parent in parents])
        return cls(regions, np.fromiter(starts, np.int64, n), np.fromiter(ends, np.int64, n), around)

    def numbered(self, column: Callable[[str], int]) -> Activities:
        """The activities with each region's column in place of its name."""
        # In order of appearance, so that the regions that get the last free columns do not depend on chance.
        columns = {region: column(region) for region in dict.fromkeys(self.regions)}
        numbers = np.fromiter(map(columns.__getitem__, self.regions), np.int64, len(self.regions))
        return Activities(self.starts, self.ends, self.parents, numbers)


class Pieces(NamedTuple):
    """Stretches in which an activity was innermost, by start: `owners` are indices into the activities."""

    owners: Ints
    starts: Ints
    ends: Ints


def pieces(activities: Activities) -> Pieces:
    """The stretches in which each activity ran without a running descendant."""
    all_executions = np.arange(len(activities.starts))
    below = [(at, activities.starts[of], activities.ends[of]) for of, at in activities.ancestors()]
    if not below:
        return _by_start(all_executions, activities.starts, activities.ends)
    owners, starts, ends = (np.concatenate(part) for part in zip(*below, strict=True))
    # The part of a descendant outside its ancestor is ignored.
    starts = np.maximum(starts, activities.starts[owners])
    ends = np.minimum(ends, activities.ends[owners])
    inside = ends > starts
    owners, starts, ends = owners[inside], starts[inside], ends[inside]
    order = np.lexsort((starts, owners))
    owners, starts, ends = owners[order], starts[order], ends[order]
    # Between the descendants of one activity lie its own pieces: before each, from the furthest end so far.
    first = np.ones(len(owners), bool)
    first[1:] = owners[1:] != owners[:-1]
    reached = _running_max(ends, first)
    since = np.where(first, activities.starts[owners], np.concatenate(([0], reached[:-1])))
    last = np.ones(len(owners), bool)
    last[:-1] = first[1:]
    childless = np.ones(len(all_executions), bool)
    childless[owners] = False
    alone = all_executions[childless]
    return _by_start(
        np.concatenate((owners, owners[last], alone)),
        np.concatenate((since, reached[last], activities.starts[alone])),
        np.concatenate((starts, activities.ends[owners[last]], activities.ends[alone])),
    )


def _running_max(values: Ints, first: npt.NDArray[np.bool_]) -> Ints:
    """The running maximum, which restarts at every `first`."""
    if not len(values):
        return values
    low = int(values.min())
    width = int(values.max()) - low + 1
    if width * int(np.count_nonzero(first)) >= 1 << 62:
        # Over months with many ancestors, lifted values would overflow: ranks suffice, and are smaller.
        ranked, place = np.unique(values, return_inverse=True)
        return ranked[_running_max(place, first)]
    # Lifting each group above the earlier ones makes one running maximum serve all groups.
    lift = (np.cumsum(first) - 1) * width - low
    result: Ints = np.maximum.accumulate(values + lift) - lift
    return result


def _by_start(owners: Ints, starts: Ints, ends: Ints) -> Pieces:
    keep = ends > starts
    if not keep.all():
        owners, starts, ends = owners[keep], starts[keep], ends[keep]
    if len(starts) > 1 and (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        owners, starts, ends = owners[order], starts[order], ends[order]
    return Pieces(owners, starts, ends)


class Segment(NamedTuple):
    """A stretch of time with the same innermost activities; an empty tuple means outside all of them."""

    start_ns: int
    end_ns: int
    innermost: tuple[DeviceExecution, ...]


def segments(activities: Iterable[DeviceExecution], start_ns: int, end_ns: int) -> list[Segment]:
    """Cut `[start, end)` wherever the set of innermost activities changes. Covers all of it, oldest first."""
    by_key = {activity.key: activity for activity in activities}
    every = list(by_key.values())
    numbered = Activities.of(every, lambda _: 0, end_ns)
    # Cutting renumbers activities, so the column carries each original index.
    numbered = numbered._replace(columns=np.arange(len(every))).during(start_ns, end_ns)
    innermost = pieces(numbered)
    owners = numbered.columns[innermost.owners].tolist()
    edges = [(t, 1, k) for t, k in zip(innermost.starts.tolist(), owners, strict=True)]
    edges += [(t, 0, k) for t, k in zip(innermost.ends.tolist(), owners, strict=True)]
    edges.sort()
    result: list[Segment] = []
    active: dict[int, None] = {}
    at = start_ns
    for t, opens, k in edges:
        if t > at:
            result.append(Segment(at, t, tuple(every[i] for i in sorted(active))))
            at = t
        if opens:
            active[k] = None
        else:
            del active[k]
    if at < end_ns:
        result.append(Segment(at, end_ns, tuple(every[i] for i in sorted(active))))
    return result


def concurrency(pieces: Pieces) -> tuple[Ints, Ints]:
    """The moments at which the number of active pieces changes, and the number from each on."""
    times = np.concatenate((pieces.starts, pieces.ends))
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.where(order < len(pieces.starts), 1, -1))
    times = times[order]
    # Of several changes at one moment, the last one counts.
    final = np.ones(len(times), bool)
    final[:-1] = times[1:] != times[:-1]
    return times[final], count[final]
