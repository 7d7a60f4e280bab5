"""Exclusive active time per column as a function of time. Sensor windows are matched with it. Pure."""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.windows.activities import Pieces, concurrency
from gpu_profile.join.unmixing.windows.piece_sums import (
    Columns,
    cumulative,
    first_moments,
    inside,
    order_of,
    passed,
    sum_begun,
)
from gpu_profile.join.unmixing.windows.probes import FADES_NS, TAIL_NS, VARIED, Gaps, ProbeKind, faded, phases

_MS: Final = 1_000_000
#: After this time, a tail has faded.
_TAILS_REACH_NS: Final = round(12 * TAIL_NS)
#: The largest table of sums over pieces, to limit its memory.
_MOST_CELLS: Final = 1_000_000


class ActiveTime(NamedTuple):
    """Pieces of activities' time on one device, in order of start.

    A piece counts for the column `alone` while nothing else is active, and else for `shared`, in equal parts with the
    others: on a full device, each gets less than it would alone. `reached` is the latest end so far. `times` are the
    moments at which the number of active pieces changes. `alone_ns` and `shared_ns` are the integrals at these moments
    of the parts of a piece that is always active. All three are empty if no pieces overlap.
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
    def of(cls, pieces: Pieces, alone: Columns, shared: Columns) -> ActiveTime:
        """From pieces and the two columns of each."""
        starts, ends, none = pieces.starts, pieces.ends, np.zeros(0)
        if (ends[:-1] <= starts[1:]).all():
            # Each piece ends before the next one, so the latest ends need no memory of their own.
            return cls(alone, shared, starts, ends, ends, np.zeros(0, np.int64), none, none)
        reached = np.maximum.accumulate(ends)
        times, count = concurrency(pieces)
        lengths, count = np.diff(times), count[:-1]
        alone_ns = np.concatenate(([0.0], np.cumsum(np.where(count == 1, lengths, 0))))
        shared_ns = np.concatenate(([0.0], np.cumsum(np.where(count > 1, lengths / np.maximum(count, 1), 0.0))))
        return cls(alone, shared, starts, ends, reached, times, alone_ns, shared_ns)

    def _between(self, start_ns: int, end_ns: int) -> ActiveTime:
        """The pieces that overlap the time between, and some more."""
        high = int(self.starts.searchsorted(end_ns))
        low = int(self.reached.searchsorted(start_ns, side="right"))
        if low == 0 and high == len(self.starts):
            return self
        cut = slice(low, high)
        pieces = self.alone[cut], self.shared[cut], self.starts[cut], self.ends[cut], self.reached[cut]
        return ActiveTime(*pieces, *self[5:])

    def _around(self, moments: Ints) -> ActiveTime:
        """The pieces that overlap the time of the moments, and some more."""
        return self._between(int(moments.min()), int(moments.max()))

    def lengths(self) -> tuple[Floats, Floats]:
        """Each piece's time alone and shared, in ns."""
        return self.within(self.starts, self.ends)

    def within(self, starts: Ints, ends: Ints) -> tuple[Floats, Floats]:
        """The time alone and shared, in ns, of pieces that are active between each two moments."""
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

    def spent(self, start_ns: int, end_ns: int, columns: int, least_ns: int = 1) -> Floats:
        """Active ns of each column between two moments, in pieces with at least `least_ns` of that time."""
        some = self._between(start_ns, end_ns)
        starts, ends = np.maximum(some.starts, start_ns), np.minimum(some.ends, end_ns)
        long = ends - starts >= least_ns
        alone, shared = self.within(starts[long], ends[long])
        column, ns = np.concatenate((some.alone[long], some.shared[long])), np.concatenate((alone, shared))
        return np.bincount(column, ns, columns).astype(np.float64)

    def smoothed(self, moments: Ints, columns: int, constant_ns: int) -> Floats:
        """Each column's share of the device at the sorted `moments`, weighted by an exponential with this time
        constant: `[columns, len(moments)]`."""
        result = np.zeros((columns, len(moments)))
        if not len(moments):
            return result
        # Earlier time has a weight below a millionth.
        edges = np.concatenate(([moments[0] - 14 * constant_ns], moments))
        some = self._between(int(edges[0]), int(edges[-1]))
        variants: list[tuple[Columns, Floats | None]] = [(some.alone, None)]
        if len(self.times):
            variants = [(some.alone, self.alone_ns), (some.shared, self.shared_ns)]
        new = np.zeros((columns, len(moments)))
        for column, counted in variants:
            # Every part of a piece between two moments, assigned to the later one.
            first = np.maximum(np.searchsorted(edges, some.starts, side="right"), 1)
            last = np.minimum(np.searchsorted(edges, some.ends, side="left"), len(edges) - 1)
            parts = np.maximum(last - first + 1, 0)
            which = np.repeat(np.arange(len(some.starts)), parts)
            at = np.arange(len(which)) + np.repeat(first - np.cumsum(parts) + parts, parts)
            starts = np.maximum(some.starts[which], edges[at - 1])
            ends = np.minimum(some.ends[which], edges[at])
            weight = np.exp((ends - edges[at]) / constant_ns) - np.exp((starts - edges[at]) / constant_ns)
            if counted is not None:
                lengths = np.maximum(ends - starts, 1)
                weight = weight * (self._counted(ends, counted) - self._counted(starts, counted)) / lengths
            np.add.at(new, (column[which], at - 1), weight)
        kept = np.exp(-np.diff(edges) / constant_ns)
        level = np.zeros(columns)
        for i, share in enumerate(kept.tolist()):
            level = level * share + new[:, i]
            result[:, i] = level
        return result

    def typical_ns(self, columns: int) -> Floats:
        """The mean length of each column's pieces, weighted by their length; 0 without pieces."""
        column = np.concatenate((self.alone, self.shared))
        lengths = np.tile((self.ends - self.starts).astype(np.float64), 2)
        weighted, whole = (np.bincount(column, lengths**power, columns)[:columns] for power in (2, 1))
        result: Floats = weighted / np.maximum(whole, 1.0)
        return result

    @property
    def gaps(self) -> Gaps:
        """The pauses between pieces."""
        return Gaps.between(self.starts, self.reached)

    def varied(
        self, moments: Ints, slots: Ints, placed: Placed | None = None
    ) -> tuple[Floats, dict[ProbeKind, Floats]]:
        """At each moment: the share of the device of each column, `[columns, moments]`, and by kind of probe the
        integrals of the variation up to the moment, `[slots, moments]`.

        `slots` is the place of each column's probes, -1 for none. `placed` is the result of `placed` for the moments.
        """
        count = int(slots.max(initial=-1)) + 1
        running, integrals = np.zeros((len(slots), len(moments))), np.zeros((len(VARIED), count, len(moments)))
        placed = placed or self.placed(moments)
        if placed and len(self.times):
            placed.pieces._vary_shared(moments, slots, running, integrals)
        elif placed:
            placed.pieces._vary(placed, slots, running, integrals)
        return running, dict(zip(VARIED, integrals, strict=True))

    def _vary(self, placed: Placed, slots: Ints, running: Floats, integrals: Floats) -> None:
        """Compute the arrays of `varied` for pieces that do not overlap."""
        at, which, since = placed.at, placed.which, placed.since
        column = self.alone[which]
        running[column, at] = 1.0
        slot = slots[column]
        probed = slot >= 0
        at, which, slot, since = at[probed], which[probed], slot[probed], since[probed]
        # The sums include all of a piece that has begun.
        lengths, fades, logs = self._sum(slots, placed, integrals[-2:])
        whole = lengths[which]
        integrals[:-2, slot, at] = whole * phases(since / whole)
        integrals[-2, slot, at] += faded(since, FADES_NS) - fades[which]
        integrals[-1, slot, at] -= logs[which] * (whole - since)

    def _sum(self, slots: Ints, placed: Placed, out: Floats) -> tuple[Floats, Floats, Floats]:
        """The measures of the pieces. By slot, over pieces that have begun: the sums of the start effect's integral and
        of the logarithm of the length times the length, in `out[2, slots, moments]`."""
        lengths, fades, logs = measures = self._measures
        sums, probed = np.empty((2, len(slots), out.shape[2])), slots >= 0
        sum_begun(self.alone, (fades, logs * lengths), placed.first, placed.rank, sums)
        out[:, slots[probed]] = sums[:, probed]
        return measures

    def placed(self, moments: Ints) -> Placed | None:
        """The places of moments among the pieces; None if there are no pieces near them."""
        some = self._around(moments) if len(moments) else self
        if not len(moments) or not len(some.starts):
            return None
        if len(self.times):
            return Placed(some)
        begun = some.starts.searchsorted(moments)
        at = ((some.ends[begun - 1] > moments) & (begun > 0)).nonzero()[0]
        which = begun[at] - 1
        since = (moments[at] - some.starts[which]).astype(np.float64)
        return Placed(some, begun, *some._first_moments(begun), at, which, since)

    def _first_moments(self, begun: Ints) -> tuple[Ints, Ints | None]:
        return first_moments(begun, len(self.starts))

    @property
    def _measures(self) -> tuple[Floats, Floats, Floats]:
        """By piece: its length, the integral of its start effect, and the logarithm of its length."""
        lengths = (self.ends - self.starts).astype(np.float64)
        return lengths, faded(lengths, FADES_NS), _logs(lengths)

    def _vary_shared(self, moments: Ints, slots: Ints, running: Floats, integrals: Floats) -> None:
        """Compute the arrays of `varied` for pieces that overlap."""
        order = order_of(moments)
        running[:, order], integrals[:, :, order] = self._varied_shared(moments[order], slots, *integrals.shape[:2])

    def _varied_shared(self, moments: Ints, slots: Ints, kinds: int, count: int) -> tuple[Floats, Floats]:
        """The arrays of `varied` at sorted moments, for pieces that overlap."""
        running, integrals = np.zeros((len(slots), len(moments))), np.zeros((kinds, count, len(moments)))
        which, moment = inside(self.starts, self.ends, moments)
        many = np.bincount(moment, minlength=len(moments))
        column = np.where(many[moment] > 1, self.shared[which], self.alone[which])
        np.add.at(running, (column, moment), 1.0 / many[moment])
        logs = _logs(self.ends - self.starts)
        for column, counted in ((self.alone, self.alone_ns), (self.shared, self.shared_ns)) if count else ():
            began, ended, at = (self._counted(part, counted) for part in (self.starts, self.ends, moments))
            slot = slots[column]
            probed = (slot >= 0) & (ended > began)
            starts, ends, slot = began[probed], ended[probed], slot[probed]
            which, moment = inside(starts, ends, at)
            whole = (ends - starts)[which]
            share = (at[moment] - starts[which]) / whole
            means, part = faded(ends - starts, FADES_NS) / (ends - starts), at[moment] - starts[which]
            # A variation around the mean of an execution is visible only while the execution runs.
            around = np.vstack((whole * phases(share), faded(part, FADES_NS) - part * means[which]))
            cells = (np.arange(len(around))[:, None] * count + slot[which]) * len(moments) + moment
            sums = np.bincount(cells.ravel(), around.ravel(), len(around) * count * len(moments))
            integrals[:-1] += sums.reshape(len(around), count, len(moments))
            integrals[-2:] += passed(starts, ends, at, slot, count, np.stack((means, logs[probed])))
        return running, integrals

    def tails(self, moments: Ints, slots: Ints) -> Floats:
        """The integral, up to each moment, of an effect that is 1 at the end of a column's latest piece and then fades:
        `[slots, moments]`. `slots` is the place of each column, -1 for none.

        The origin is arbitrary: use differences only.
        """
        count = int(slots.max(initial=-1)) + 1
        if not len(moments):
            return np.zeros((count, 0))
        origin, latest_ns = int(moments.min()) - _TAILS_REACH_NS, int(moments.max())
        some, span = self._between(origin, latest_ns), latest_ns - origin + 1
        slot = slots[some.alone]
        # The columns' times are concatenated for a single search. A tail of one column has faded before the moments of
        # the next one begin.
        ends = (slot * span + np.minimum(np.maximum(some.ends - origin, 0), span - 1))[slot >= 0].astype(np.float64)
        ends = np.append(ends, -float(span))
        ends.sort()
        at = (np.arange(count)[:, None] * span + (moments - origin)).astype(np.float64)
        before = np.zeros(len(ends))
        faded(ends[1:] - ends[:-1], TAIL_NS).cumsum(out=before[1:])
        latest = ends.searchsorted(at, side="right") - 1
        integrals: Floats = before[latest] + faded(at - ends[latest], TAIL_NS)
        return integrals

    def tail_means(self, slots: Ints) -> Floats:
        """The mean of `tails` over the time of each column, the one outside regions first: `[columns, slots]`."""
        moments, place = np.unique(np.concatenate((self.starts, self.ends)), return_inverse=True)
        sums = self.tails(moments, slots)
        starts, ends = np.split(place, 2)
        lengths = np.maximum(self.ends - self.starts, 1)
        time, mass = np.zeros(len(slots)), np.zeros((len(slots), len(sums)))
        for column, counted in zip((self.alone, self.shared), self.lengths(), strict=True):
            time += np.bincount(column, counted, len(slots))
            np.add.at(mass, column, ((sums[:, ends] - sums[:, starts]) * (counted / lengths)).T)
        if len(moments):
            time[0] = moments[-1] - moments[0] - time[1:].sum()
            mass[0] = sums[:, -1] - sums[:, 0] - mass[1:].sum(axis=0)
        means: Floats = mass / np.maximum(time, 1.0)[:, None]
        return means

    def until(self, moments: Ints, columns: int, placed: Placed | None = None) -> Floats:
        """Active ns of each column up to each moment: `[columns, len(moments)]`.

        The origin is arbitrary: use differences only. `placed` is the result of `placed` for the moments.
        """
        result = np.zeros((columns, len(moments)))
        placed = placed or self.placed(moments)
        if placed and len(self.times):
            order = order_of(moments)
            result[:, order] = placed.pieces._until_shared(moments[order], columns)
        elif placed:
            some, at, which = placed.pieces, placed.at, placed.which
            lengths = some._sum_lengths(placed, result)
            result[some.alone[which], at] -= lengths[which] - placed.since
        return result

    def _sum_lengths(self, placed: Placed, out: Floats) -> Floats:
        """The lengths of pieces; their sums by column, over pieces that have begun, in `out[columns, moments]`."""
        lengths = (self.ends - self.starts).astype(np.float64)
        sum_begun(self.alone, (lengths,), placed.first, placed.rank, out[None])
        return lengths

    def _until_shared(self, moments: Ints, columns: int) -> Floats:
        """The result of `until` at sorted moments, for pieces that overlap."""
        result = np.zeros((columns, len(moments)))
        for column, counted in ((self.alone, self.alone_ns), (self.shared, self.shared_ns)):
            starts, ends, at = (self._counted(part, counted) for part in (self.starts, self.ends, moments))
            result += passed(starts, ends, at, column, columns, np.ones((1, len(starts))))[0]
        return result

    def tabled(self, columns: int) -> ActiveTime:
        """The same active time with tables of sums, unless these are too large or pieces overlap.

        The tables are for the search for a timing. They cost more than a few lookups.
        """
        some = 0 < len(self.starts) * columns <= _MOST_CELLS and not len(self.times)
        return TabledTime(*self) if some and not isinstance(self, TabledTime) else self


_NOWHERE: Final = np.zeros(0, np.int64)


class Placed(NamedTuple):
    """Moments among the `pieces` near them.

    If these do not overlap: the number of pieces that began before each moment, and without tables the result of
    `first_moments`. Then the indices of the moments inside a piece, the piece of each, and the ns since its beginning.
    """

    pieces: ActiveTime
    begun: Ints = _NOWHERE
    first: Ints = _NOWHERE
    rank: Ints | None = None
    at: Ints = _NOWHERE
    which: Ints = _NOWHERE
    since: Floats = _NOWHERE.astype(np.float64)


class TabledTime(ActiveTime):
    """Active time without overlapping pieces, with tables of sums over pieces, by the number that have begun.

    Made by `ActiveTime.tabled`. The tables have columns times pieces cells, and live as long as this object.
    """

    def _around(self, moments: Ints) -> ActiveTime:  # noqa: ARG002
        """All pieces, because the tables are of all."""
        return self

    def _first_moments(self, begun: Ints) -> tuple[Ints, Ints | None]:  # noqa: ARG002
        """Nothing: the tables need no order."""
        return _NOWHERE, None

    def _sum_lengths(self, placed: Placed, out: Floats) -> Floats:
        np.take(self._before, placed.begun, axis=1, out=out[: len(self._before)], mode="clip")
        return self._measures[0]

    def _sum(self, slots: Ints, placed: Placed, out: Floats) -> tuple[Floats, Floats, Floats]:
        for each, sums in zip(out, self._of_slots(slots), strict=True):
            np.take(sums, placed.begun, axis=1, out=each, mode="clip")
        return self._measures

    @cached_property
    def _measures(self) -> tuple[Floats, Floats, Floats]:
        return super()._measures

    @cached_property
    def _before(self) -> Floats:
        """Active ns of each column in all pieces that have begun: `[columns, pieces + 1]`."""
        return cumulative(self.alone, self._measures[0], int(self.alone.max()) + 1)

    @cached_property
    def _tables(self) -> dict[bytes, tuple[Floats, Floats]]:
        return {}

    def _of_slots(self, slots: Ints) -> tuple[Floats, Floats]:
        """The sums of `_sum` by slot and number of begun pieces."""
        key = slots.tobytes()
        if key not in self._tables:
            lengths, fades, logs = self._measures
            slot, count = slots[self.alone], int(slots.max(initial=-1)) + 1
            self._tables[key] = cumulative(slot, fades, count), cumulative(slot, logs * lengths, count)
        return self._tables[key]


def _logs(lengths: Ints | Floats) -> Floats:
    """Logarithms of lengths in ms. Lengths below 1 ms count as 1 ms: stamp errors affect them as much as the program
    does."""
    logs: Floats = np.log(np.maximum(lengths, _MS) / _MS)
    return logs
