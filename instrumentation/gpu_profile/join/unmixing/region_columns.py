"""Which region's time it was, slice by slice: columns for the equations, and how long each was active. Pure.

Column 0 is nobody's time. Every region has one for the time in which nothing else was active, and another, once there
was such time, for what it shared with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.active_time import ActiveTime, Columns, concurrency
from gpu_profile.join.unmixing.activities import Activities, Named, Pieces, pieces
from gpu_profile.join.unmixing.stamps import Stamps
from gpu_profile.units import NS_PER_S

#: At most this many regions per device have equations of their own; the rest are pooled under `OTHER`.
MOST_REGIONS: Final = 64
OTHER: Final = "other"
#: Of regions without equations of their own, this many are watched, in case they become busy.
_MOST_WATCHED: Final = 256
#: A region takes another's place once it was active for this many times as long: its own past is lost to `OTHER`.
_BUSIER: Final = 2.0


class RegionColumns:
    """The regions of one device: their columns, and their active time so far."""

    def __init__(self) -> None:
        self.stamps = Stamps()
        #: The pieces of the recent past are complete from here on.
        self.since_ns = 0
        self._recent = _nothing()
        self._fresh: list[tuple[Pieces, Columns, Columns]] = []
        self._index: dict[str, int] = {}
        self._watched: dict[str, int] = {}
        #: The column of a column's shared time, 0 for none (yet), and whether it is such a column itself.
        self._shared = np.zeros(1, np.int64)
        self._is_shared = np.zeros(1, bool)
        self._active_ns: Floats = np.zeros(1)
        #: How long the activities of each region lasted in all, by its column: decides who has equations.
        self._lasted_ns: Floats = np.zeros(1)
        #: For every region (by its column) the time of every column inside it.
        self._inside: Floats = np.zeros((1, 1))
        #: For every column of shared time, its part of that time by the columns that it was shared with, itself too.
        self._together: Floats = np.zeros((1, 1))

    # ------------------------------------------------------------------ names

    @property
    def columns(self) -> int:
        """Columns so far, nobody's included."""
        return len(self._active_ns)

    def name(self, region: str, *, new: bool = True) -> str:
        """The name that a region is pooled under: its own, or `OTHER`."""
        if region in self._index or (new and len(self._index) - (OTHER in self._index) < MOST_REGIONS):
            return region
        return OTHER

    def column(self, region: str, *, new: bool = True) -> int:
        """The column of a region's time alone; -1 if it has none and `new` is not asked for."""
        found = self._index.get(region, -1)
        if found < 0:
            name = self.name(region, new=new)
            found = self._index.get(name, -1)
            if found < 0 and new:
                found = self._index[name] = self._grow(shared=False)
        return found

    def _grow(self, *, shared: bool) -> int:
        self._shared = np.append(self._shared, 0)
        self._is_shared = np.append(self._is_shared, shared)
        self._active_ns = np.append(self._active_ns, 0.0)
        self._lasted_ns = np.append(self._lasted_ns, 0.0)
        self._inside = np.pad(self._inside, (0, 1))
        self._together = np.pad(self._together, (0, 1))
        return len(self._active_ns) - 1

    def own(self, region: str) -> list[int]:
        """The columns of a region by itself."""
        column = self._index.get(region)
        return [] if column is None else [c for c in (column, int(self._shared[column])) if c]

    def regions(self) -> list[list[int]]:
        """The columns of every region."""
        return [self.own(name) for name in self._index]

    def is_shared(self, columns: int) -> npt.NDArray[np.bool_]:
        """Which of the first columns are of time that is shared."""
        return self._is_shared[:columns]

    # ------------------------------------------------------------------ taking in

    def watch(self, activities: Named, since_ns: int, until_ns: int) -> None:
        """Note how long activities of regions without equations of their own last.

        A bounded list on which whatever is frequent stays: Misra and Gries, *Finding repeated elements*, 1982.
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
        """Take in a slice of time; `activities` are cut to it. Without its edges, nothing is learnt of their stamps."""
        found = pieces(activities)
        alone = activities.columns[found.owners]
        time = ActiveTime.of(found, alone, alone)
        alone_ns, shared_ns = time.lengths()
        if shared_ns.any():
            for column in np.unique(alone[shared_ns > 0]).tolist():
                if not self._shared[column]:
                    self._shared[column] = self._grow(shared=True)
        shared, columns = self._shared[alone], self.columns
        active_ns = np.bincount(alone, alone_ns, columns)
        if shared_ns.any() or (activities.parents >= 0).any():
            active_ns += np.bincount(shared, shared_ns, columns)
            self._nest(activities, found.owners, time)
            if shared_ns.any():
                self._share(found, shared)
        else:
            diagonal = np.arange(columns)
            self._inside[diagonal, diagonal] += active_ns
        self._active_ns += active_ns
        lasted_ns = np.maximum(activities.ends - activities.starts, 0)
        self._lasted_ns += np.bincount(activities.columns, lasted_ns, columns)
        self._fresh.append((found, alone.astype(np.int16), shared.astype(np.int16)))
        if between is not None:
            self.stamps.take(activities, found, alone, columns, between)

    def _share(self, found: Pieces, shared: Ints) -> None:
        """Note which columns shared time with which."""
        columns, place = np.unique(shared, return_inverse=True)
        times, count = concurrency(found)
        changes = np.zeros((len(columns), len(times)))
        for moments, sign in ((found.starts, 1.0), (found.ends, -1.0)):
            np.add.at(changes, (place, np.searchsorted(times, moments)), sign)
        parts = np.cumsum(changes, axis=1)[:, :-1] / np.maximum(count[:-1], 1)
        lengths = np.where(count[:-1] > 1, np.diff(times), 0)
        self._together[np.ix_(columns, columns)] += (parts * lengths) @ parts.T

    def _nest(self, activities: Activities, owners: Ints, time: ActiveTime) -> None:
        """Note what ran inside what, while both ran: each region once, also where it is inside itself."""
        count, columns = len(activities.starts), self.columns
        by_alone, by_shared = (np.bincount(owners, each, count).astype(np.float64) for each in time.lengths())
        cells, times = [], []

        def add(region: Ints, own: Ints, alone_ns: Floats, shared_ns: Floats) -> None:
            cells.append(region * columns + own)
            times.append(alone_ns)
            if len(time.times):
                cells.append(region * columns + self._shared[own])
                times.append(shared_ns)

        add(activities.columns, activities.columns, by_alone, by_shared)
        met: dict[int, set[int]] = {}
        #: Of what ran inside a region for a part of its time only, that part.
        parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for of, at in activities.ancestors():
            region = activities.columns[at]
            starts = np.maximum(activities.starts[of], activities.starts[at])
            ends = np.minimum(activities.ends[of], activities.ends[at])
            whole = (starts == activities.starts[of]) & (ends == activities.ends[of])
            fresh = np.ones(len(of), bool)
            for i, (activity, name, all_) in enumerate(zip(of.tolist(), region.tolist(), whole.tolist(), strict=True)):
                names = met.setdefault(activity, {int(activities.columns[activity])})
                fresh[i] = all_ and name not in names
                if fresh[i]:
                    names.add(name)
                elif name not in names:
                    parts.setdefault((activity, name), []).append((int(starts[i]), int(ends[i])))
            inner = of[fresh]
            add(region[fresh], activities.columns[inner], by_alone[inner], by_shared[inner])
        apart = list(_apart({both: some for both, some in parts.items() if both[1] not in met[both[0]]}))
        if apart:
            of, region, starts, ends = np.array(apart, np.int64).T
            which, mine = _matches(of, owners)
            starts, ends = np.maximum(time.starts[mine], starts[which]), np.minimum(time.ends[mine], ends[which])
            both_run = starts < ends
            which, starts, ends = which[both_run], starts[both_run], ends[both_run]
            add(region[which], activities.columns[of[which]], *time.within(starts, ends))
        self._inside += np.bincount(np.concatenate(cells), np.concatenate(times), columns**2).reshape(columns, columns)

    @property
    def fresh(self) -> int:
        """Slices that `recent` has not brought together yet."""
        return len(self._fresh)

    def recent(self, before_ns: int, most: int) -> ActiveTime:
        """The pieces of active time since a moment, or since later if more than about `most` are of it."""
        kept = self._recent
        keep = kept.ends > before_ns
        if len(keep) and not keep[0]:
            kept = kept._replace(
                alone=kept.alone[keep], shared=kept.shared[keep], starts=kept.starts[keep], ends=kept.ends[keep]
            )
        founds, alones, shareds = zip(*self._fresh, strict=True) if self._fresh else ((), (), ())
        self._fresh = []
        starts = np.concatenate([kept.starts, *(found.starts for found in founds)])
        ends = np.concatenate([kept.ends, *(found.ends for found in founds)])
        alone, shared = np.concatenate([kept.alone, *alones]), np.concatenate([kept.shared, *shareds])
        if len(starts) > most:
            before_ns = max(before_ns, int(starts[-most]))
            # What began earlier and still runs then is needed too.
            keep = ends > before_ns
            starts, ends, alone, shared = starts[keep], ends[keep], alone[keep], shared[keep]
        self.since_ns = max(self.since_ns, before_ns)
        self._recent = ActiveTime.of(Pieces(alone, starts, ends), alone, shared)
        return self._recent

    def restart(self, since_ns: int) -> None:
        """Time goes on from an earlier moment than it had reached."""
        self._recent, self._fresh = _nothing(), []
        self.since_ns = since_ns

    def swap(self) -> tuple[str, str, list[tuple[int, int]]] | None:
        """Let the busiest region without equations take the place of a much less busy one, if there is such a pair.

        Returns (who left, who came, columns that became part of others).
        """
        if not self._watched:
            return None
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
            for rows in (self._together, self._together.T):
                rows[into] += rows[gone]
                rows[gone] = 0.0
            self._active_ns[into] += self._active_ns[gone]
            self._active_ns[gone] = 0.0
        # What was inside both is in the sum twice.
        self._inside[other] = np.minimum(self._inside[other], self._active_ns)
        recent = self._recent
        self._recent = recent._replace(alone=_moved(recent.alone, moves), shared=_moved(recent.shared, moves))
        self._fresh = [(found, _moved(alone, moves), _moved(shared, moves)) for found, alone, shared in self._fresh]
        self._index[comes] = column
        # Each goes on with the time that it is known for: who just came is not the first to leave.
        del self._watched[comes]
        self._lasted_ns[column], self._watched[leaves] = lasted_ns
        return leaves, comes, moves

    # ------------------------------------------------------------------ answers

    def inside(self, region: str) -> Floats:
        """Active ns of every column while `region`, or what is inside it, was active."""
        column = self._index.get(region)
        return np.zeros(1) if column is None else self._inside[column]

    def joint(self) -> Floats:
        """Whose rates make up the device's while a column is active, `[columns, columns]`: rows add up to 1.

        A column that is active alone is the device. While several are, the device's rate is the mean of theirs: the
        equations tell that mean, and not which of two that are always active together has which part of it.
        """
        result = np.eye(self.columns)
        times = self._together.sum(axis=1)
        met = times > 0
        result[met] = self._together[met] / times[met, None]
        return result

    def active_s(self, region: str) -> float:
        """Seconds in which the region itself was the innermost."""
        return float(self._active_ns[self.own(region)].sum()) / NS_PER_S

    def active(self, elapsed_ns: int) -> Floats:
        """Exclusive active time of every column in s, after that much time in all."""
        total = self._active_ns / NS_PER_S
        total[0] = max(0.0, elapsed_ns / NS_PER_S - float(total[1:].sum()))
        return total


def _apart(parts: Mapping[tuple[int, int], list[tuple[int, int]]]) -> Iterator[tuple[int, int, int, int]]:
    """Stretches of time by key, without what an earlier one of the same key has already."""
    for (activity, region), stretches in parts.items():
        reached = None
        for start, end in sorted(stretches):
            since = start if reached is None else max(start, reached)
            if since < end:
                yield activity, region, since, end
                reached = end


def _matches(wanted: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Every pair of indices of equal ones."""
    order = np.argsort(values, kind="stable")
    first, last = (np.searchsorted(values[order], wanted, side=side) for side in ("left", "right"))
    counts = last - first
    which = np.repeat(np.arange(len(wanted)), counts)
    return which, order[np.arange(len(which)) + (first + counts - np.cumsum(counts))[which]]


def _moved(columns: Columns, moves: Iterable[tuple[int, int]]) -> Columns:
    moved = columns.copy()
    for gone, into in moves:
        moved[columns == gone] = into
    return moved


def _nothing() -> ActiveTime:
    empty, none = np.zeros(0, np.int64), np.zeros(0, np.int16)
    return ActiveTime.of(Pieces(empty, empty, empty), none, none)
