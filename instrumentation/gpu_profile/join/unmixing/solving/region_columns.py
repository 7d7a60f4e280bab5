"""Exclusive active time per region, slice by slice: the columns of the equations. Pure.

Column 0 is the time outside regions. Every region has a column for the time in which it alone was active. It has a
second column once it has shared time with others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, KeysView, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.concurrent_time import ConcurrentTime
from gpu_profile.join.unmixing.solving.nesting import time_inside
from gpu_profile.join.unmixing.solving.stamps import Stamps
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Activities, NamedActivities, Pieces, pieces
from gpu_profile.join.unmixing.windows.piece_sums import Columns
from gpu_profile.units import NS_PER_S

#: At most this many regions per device have equations of their own; the rest are pooled under `OTHER`.
MOST_REGIONS: Final = 64
OTHER: Final = "other"
#: This many regions without equations of their own are watched, in case they become busy.
_MOST_WATCHED: Final = 256
#: A region replaces another one once it was active for this many times as long. Its earlier time stays in `OTHER`.
_BUSIER: Final = 2.0
#: The pieces of an execution that is cut at the edges of slices are joined if it has a length between these. Shorter
#: executions are rarely cut.
_JOINED_NS: Final = NS_PER_S // 20, NS_PER_S


class RegionColumns:
    """The regions of one device: their columns, and their active time so far."""

    def __init__(self) -> None:
        self.stamps = Stamps()
        #: The recent pieces are complete from here on.
        self.since_ns = 0
        self._recent = _nothing()
        self._fresh: list[tuple[Pieces, Columns, Columns]] = []
        #: Slices that are in no sum yet.
        self._queue: list[tuple[Activities, tuple[int, int] | None]] = []
        #: The edges of the fresh slices, which cut executions into pieces.
        self._edges: list[int] = []
        self._index: dict[str, int] = {}
        self._watched: dict[str, int] = {}
        #: By column: the column of its shared time, 0 before there is one; and whether it is such a column itself.
        self._shared = np.zeros(1, np.int64)
        self._is_shared = np.zeros(1, bool)
        self._active_ns: Floats = np.zeros(1)
        #: By a region's column: the total length of its activities, which decides which regions have equations.
        self._lasted_ns: Floats = np.zeros(1)
        #: By a region's column: the time of every column inside the region.
        self._inside: Floats = np.zeros((1, 1))
        self._together = ConcurrentTime()

    # ------------------------------------------------------------------ names

    @property
    def columns(self) -> int:
        """Columns so far, the one outside regions included."""
        self._settle()
        return len(self._active_ns)

    @property
    def names(self) -> KeysView[str]:
        """The regions with columns."""
        return self._index.keys()

    def name(self, region: str, *, new: bool = True) -> str:
        """The name under which a region is pooled: its own, or `OTHER`."""
        if region in self._index or (new and len(self._index) - (OTHER in self._index) < MOST_REGIONS):
            return region
        return OTHER

    def column(self, region: str, *, new: bool = True) -> int:
        """The column of a region's time alone. If it has none: a new one with `new`, else -1."""
        column = self._index.get(region, -1)
        if column < 0:
            name = self.name(region, new=new)
            column = self._index.get(name, -1)
            if column < 0 and new:
                column = self._index[name] = self._grow(shared=False)
        return column

    def _grow(self, *, shared: bool) -> int:
        self._shared = np.append(self._shared, 0)
        self._is_shared = np.append(self._is_shared, shared)
        self._active_ns = np.append(self._active_ns, 0.0)
        self._lasted_ns = np.append(self._lasted_ns, 0.0)
        self._inside = np.pad(self._inside, (0, 1))
        return len(self._active_ns) - 1

    def own(self, region: str) -> list[int]:
        """The columns of a region's own time, without the regions inside it."""
        self._settle()
        column = self._index.get(region)
        return [] if column is None else [c for c in (column, int(self._shared[column])) if c]

    def regions(self) -> list[list[int]]:
        """The columns of every region."""
        return [self.own(name) for name in self._index]

    def is_shared(self, columns: int) -> npt.NDArray[np.bool_]:
        """Which of the first columns are columns of shared time."""
        self._settle()
        return self._is_shared[:columns]

    # ------------------------------------------------------------------ taking in

    def watch(self, activities: NamedActivities, since_ns: int, until_ns: int) -> None:
        """Add up the activity lengths of regions without equations of their own.

        A bounded list that keeps whatever is frequent: Misra and Gries, *Finding repeated elements*, 1982.
        """
        if len(self._index) < MOST_REGIONS:
            return
        lengths = np.minimum(activities.ends, until_ns) - np.maximum(activities.starts, since_ns)
        for region, active_ns in zip(activities.regions, lengths.tolist(), strict=True):
            if active_ns <= 0 or region == OTHER or self.name(region) != OTHER:
                continue
            self._watched[region] = self._watched.get(region, 0) + active_ns
            if len(self._watched) > _MOST_WATCHED:
                middle = sorted(self._watched.values())[_MOST_WATCHED // 2]
                self._watched = {name: ns - middle for name, ns in self._watched.items() if ns > middle}

    def take(self, activities: Activities, between: tuple[int, int] | None = None) -> None:
        """Add a slice of time, later than earlier ones; `activities` are cut to it. Stamp errors need its edges,
        `between`."""
        self._queue.append((activities, between))

    def _settle(self) -> None:
        """Add the queued slices to the sums, all at once: for few activities, numpy's cost per call dominates."""
        if not self._queue:
            return
        queue, self._queue = self._queue, []
        activities = Activities.joined([present for present, _ in queue])
        innermost = pieces(activities)
        alone = activities.columns[innermost.owners]
        time = ActiveTime.of(innermost, alone, alone)
        alone_ns, shared_ns = time.lengths()
        overlap = len(time.times) > 0
        if overlap:
            # In order of appearance: the number of slices changes nothing.
            for column in dict.fromkeys(alone[shared_ns > 0].tolist()):
                if not self._shared[column]:
                    self._shared[column] = self._grow(shared=True)
        shared, columns = self._shared[alone], self.columns
        lasted_ns = active_ns = np.bincount(alone, alone_ns, columns)
        if overlap or (activities.parents >= 0).any():
            active_ns = active_ns + np.bincount(shared, shared_ns, columns)
            lasted_ns = np.bincount(activities.columns, np.maximum(activities.ends - activities.starts, 0), columns)
            self._inside += time_inside(activities, innermost.owners, time, self._shared)
            if overlap:
                self._together.add(innermost, shared, self.columns)
        else:
            self._inside.flat[:: columns + 1] += active_ns
        self._active_ns += active_ns
        self._lasted_ns += lasted_ns
        self._fresh.append((innermost, alone.astype(np.int16), shared.astype(np.int16)))
        for present, between in queue:
            if between is not None:
                self._edges.append(between[0])
                self.stamps.take(present, innermost, alone, columns, between)

    @property
    def fresh(self) -> int:
        """Slices that `recent` has not merged yet."""
        return len(self._fresh) + len(self._queue)

    def recent(self, before_ns: int, most: int) -> ActiveTime:
        """The pieces of active time since a time, or since a later one if there are more than about `most`."""
        self._settle()
        self.forget(before_ns)
        kept, fresh, self._fresh = self._recent, self._fresh, []
        slices, alones, shareds = zip(*fresh, strict=True) if fresh else ((), (), ())
        starts = np.concatenate([kept.starts, *(piece.starts for piece in slices)])
        ends = np.concatenate([kept.ends, *(piece.ends for piece in slices)])
        alone, shared = np.concatenate([kept.alone, *alones]), np.concatenate([kept.shared, *shareds])
        starts, ends, alone, shared = _joined(starts, ends, alone, shared, self._edges)
        self._edges = []
        if len(starts) > most:
            before_ns = max(before_ns, int(starts[-most]))
            # Pieces that began earlier and still run then are needed too.
            keep = ends > before_ns
            starts, ends, alone, shared = starts[keep], ends[keep], alone[keep], shared[keep]
        self.since_ns = max(self.since_ns, before_ns)
        self._recent = ActiveTime.of(Pieces(np.arange(len(starts)), starts, ends), alone, shared)
        return self._recent

    def forget(self, before_ns: int) -> None:
        """Drop the recent pieces from before a time."""
        kept = self._recent
        keep = kept.ends > before_ns
        if len(keep) and not keep[0]:
            left = Pieces(keep.nonzero()[0], kept.starts[keep], kept.ends[keep])
            self._recent = ActiveTime.of(left, kept.alone[keep], kept.shared[keep])
        self.since_ns = max(self.since_ns, before_ns)

    def skip(self, ahead_ns: int) -> None:
        """Move the recent pieces this much later: the clock was set."""
        recent = self.recent(self.since_ns, sys.maxsize)
        pieces = Pieces(np.arange(len(recent.starts)), recent.starts + ahead_ns, recent.ends + ahead_ns)
        self._recent, self.since_ns = ActiveTime.of(pieces, recent.alone, recent.shared), self.since_ns + ahead_ns

    def swap(self) -> tuple[str, str, list[tuple[int, int]]] | None:
        """Replace the least busy region by a much busier one without equations, if there is such a pair.

        Returns the names of the replaced region and of its successor, and the merged columns as (column, into).
        """
        if not self._watched:
            return None
        self._settle()
        comes = max(self._watched, key=self._watched.__getitem__)
        leaves = min((n for n in self._index if n != OTHER), key=lambda n: float(self._lasted_ns[self._index[n]]))
        lasted_ns = self._watched[comes], int(self._lasted_ns[self._index[leaves]])
        if lasted_ns[0] < _BUSIER * lasted_ns[1]:
            return None
        column, other = self._index.pop(leaves), self.column(OTHER)
        moves = [(column, other)]
        if self._shared[column]:
            if not self._shared[other]:
                self._shared[other] = self._grow(shared=True)
            moves.append((int(self._shared[column]), int(self._shared[other])))
        self._inside[other] += self._inside[column]
        self._inside[column] = 0.0
        for gone, into in moves:
            self.stamps.merge(gone, into)
            self._inside[:, into] += self._inside[:, gone]
            self._inside[:, gone] = 0.0
            self._together.merge(gone, into)
            self._active_ns[into] += self._active_ns[gone]
            self._active_ns[gone] = 0.0
        # Time inside both regions is in the sum twice.
        self._inside[other] = np.minimum(self._inside[other], self._active_ns)
        recent = self._recent
        self._recent = recent._replace(alone=_moved(recent.alone, moves), shared=_moved(recent.shared, moves))
        self._fresh = [(piece, _moved(alone, moves), _moved(shared, moves)) for piece, alone, shared in self._fresh]
        self._index[comes] = column
        # Both keep their recorded lengths, so that the new region is not the first to be replaced.
        del self._watched[comes]
        self._lasted_ns[column], self._watched[leaves] = lasted_ns
        return leaves, comes, moves

    # ------------------------------------------------------------------ answers

    def inside(self, region: str) -> Floats:
        """Active ns of every column while `region`, or a region inside it, was active."""
        self._settle()
        column = self._index.get(region)
        return np.zeros(1) if column is None else self._inside[column]

    def joint(self, chosen: Ints | None = None) -> Floats:
        """The matrix from columns' rates to the device's rate while a column is active, `[columns, columns]`; of the
        `chosen` columns `[chosen, columns]`."""
        return self._together.joint(np.arange(self.columns) if chosen is None else chosen, self.columns)

    def centres(self, chosen: Ints) -> Floats:
        """The centres of the probes `BESIDE` of the `chosen` columns, as in `ConcurrentTime.centres`."""
        return self._together.centres(chosen, self.columns)

    def active_s(self, region: str) -> float:
        """Seconds in which the region itself was the innermost one."""
        own = self.own(region)
        return float(self._active_ns[own].sum()) / NS_PER_S

    def active(self, elapsed_ns: int) -> Floats:
        """Exclusive active time of every column in s, after `elapsed_ns` in all."""
        self._settle()
        total = self._active_ns / NS_PER_S
        total[0] = max(0.0, elapsed_ns / NS_PER_S - float(total[1:].sum()))
        return total


def _joined(
    starts: Ints, ends: Ints, alone: Columns, shared: Columns, edges: Sequence[int]
) -> tuple[Ints, Ints, Columns, Columns]:
    """The pieces, in order of start. Pieces of one execution are joined if one of the sorted `edges` of slices cut it.

    Power may vary over an execution, so its pieces are no executions.
    """
    gone: list[int] = []
    for edge in reversed(edges):
        i = first = int(starts.searchsorted(edge))
        before = (ends[:first] == edge).nonzero()[0].tolist()
        while before and i < len(starts) and starts[i] == edge:
            for at in before:
                if alone[at] == alone[i] and _JOINED_NS[0] <= ends[i] - starts[at] <= _JOINED_NS[1]:
                    ends[at], shared[at] = ends[i], shared[i]
                    gone.append(i)
                    before.remove(at)
                    break
            i += 1
    if not gone:
        return starts, ends, alone, shared
    return np.delete(starts, gone), np.delete(ends, gone), np.delete(alone, gone), np.delete(shared, gone)


def _moved(columns: Columns, moves: Iterable[tuple[int, int]]) -> Columns:
    moved = columns.copy()
    for gone, into in moves:
        moved[columns == gone] = into
    return moved


def _nothing() -> ActiveTime:
    empty, none = np.zeros(0, np.int64), np.zeros(0, np.int16)
    return ActiveTime.of(Pieces(empty, empty, empty), none, none)
