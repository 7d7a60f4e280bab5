"""Exclusive active time per column as a function of time. Sensor windows are matched with it. Pure."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.activities import Pieces
from gpu_profile.join.unmixing.probes import FADES_NS, PHASES, TAIL_NS, Gaps, ProbeKind, faded, phases

#: Indices of columns: two bytes each, because there are many pieces.
Columns = npt.NDArray[np.integer[Any]]
_MS: Final = 1_000_000
#: After this time, a tail has faded.
_TAILS_REACH_NS: Final = round(12 * TAIL_NS)
#: The largest table of sums over pieces, to limit its memory.
_MOST_CELLS: Final = 1_000_000


class SampledTime(NamedTuple):
    """Active time at moments `step_ns` apart from `origin_ns` on, `[columns, moments]`, interpolated linearly.

    Less exact than `ActiveTime`, at a tenth of its cost for many windows.
    """

    origin_ns: int
    step_ns: int
    sums: Floats

    def until(self, moments: Ints, columns: int) -> Floats:
        """Like `ActiveTime.until`."""
        place = np.clip((moments - self.origin_ns) / self.step_ns, 0.0, self.sums.shape[1] - 1.001)
        low = place.astype(np.int64)
        part = place - low
        sums = self.sums[:columns]
        result: Floats = sums[:, low] * (1.0 - part) + sums[:, low + 1] * part
        return result


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
        reached = np.maximum.accumulate(ends)
        if not (reached[:-1] > starts[1:]).any():
            return cls(alone, shared, starts, ends, reached, np.zeros(0, np.int64), none, none)
        times, count = concurrency(pieces)
        lengths, count = np.diff(times), count[:-1]
        alone_ns = np.concatenate(([0.0], np.cumsum(np.where(count == 1, lengths, 0))))
        shared_ns = np.concatenate(([0.0], np.cumsum(np.where(count > 1, lengths / np.maximum(count, 1), 0.0))))
        return cls(alone, shared, starts, ends, reached, times, alone_ns, shared_ns)

    def _between(self, start_ns: int, end_ns: int) -> ActiveTime:
        """The pieces that overlap the time between, and some more."""
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

    def sampled(self, start_ns: int, end_ns: int, step_ns: int, columns: int) -> SampledTime:
        """Sampled active time for moments between two times."""
        moments = np.arange(start_ns, end_ns + 2 * step_ns, step_ns)
        return SampledTime(start_ns, step_ns, self.until(moments, columns))

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

    def varied(self, moments: Ints, slots: Ints) -> tuple[Floats, dict[ProbeKind, Floats]]:
        """At each moment: the share of the device of each column, `[columns, moments]`, and by kind of probe the
        integrals of the variation up to the moment, `[slots, moments]`.

        `slots` is the place of each column's probes, -1 for none.
        """
        count, kinds = int(slots.max(initial=-1)) + 1, (*PHASES, ProbeKind.START, ProbeKind.LENGTH)
        running, integrals = np.zeros((len(slots), len(moments))), np.zeros((len(kinds), count, len(moments)))
        if len(moments) and len(self.starts):
            self._vary(moments, slots, running, integrals)
        return running, dict(zip(kinds, integrals, strict=True))

    def _vary(self, moments: Ints, slots: Ints, running: Floats, integrals: Floats) -> None:
        """Compute the arrays of `varied`."""
        order = np.argsort(moments, kind="stable")
        running[:, order], integrals[:, :, order] = self._varied(moments[order], slots, *integrals.shape[:2])

    def _varied(self, moments: Ints, slots: Ints, kinds: int, count: int) -> tuple[Floats, Floats]:
        """The arrays of `varied` at sorted moments."""
        running, integrals = np.zeros((len(slots), len(moments))), np.zeros((kinds, count, len(moments)))
        some = self._between(int(moments[0]), int(moments[-1]))
        which, moment = _inside(some.starts, some.ends, moments)
        many = np.bincount(moment, minlength=len(moments))
        column = np.where(many[moment] > 1, some.shared[which], some.alone[which])
        np.add.at(running, (column, moment), 1.0 / many[moment])
        logs = _logs(some.ends - some.starts)
        near = [(part - moments[0]).astype(np.float64) for part in (some.starts, some.ends, moments)]
        variants = [(some.alone, near)]
        if len(self.times):
            variants = [
                (column, [self._counted(part, counted) for part in (some.starts, some.ends, moments)])
                for column, counted in ((some.alone, self.alone_ns), (some.shared, self.shared_ns))
            ]
        for column, (began, ended, at) in variants:
            slot = slots[column]
            probed = (slot >= 0) & (ended > began)
            starts, ends, slot = began[probed], ended[probed], slot[probed]
            which, moment = _inside(starts, ends, at)
            whole = (ends - starts)[which]
            passed = (at[moment] - starts[which]) / whole
            if not count:
                continue
            means, part = faded(ends - starts, FADES_NS) / (ends - starts), at[moment] - starts[which]
            # A variation around the mean of an execution is visible only while the execution runs.
            around = np.vstack((whole * phases(passed), faded(part, FADES_NS) - part * means[which]))
            cells = (np.arange(len(around))[:, None] * count + slot[which]) * len(moments) + moment
            sums = np.bincount(cells.ravel(), around.ravel(), len(around) * count * len(moments))
            integrals[:-1] += sums.reshape(len(around), count, len(moments))
            integrals[-2:] += _passed(starts, ends, at, slot, count, np.stack((means, logs[probed])))
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
        ends = slot * span + np.clip(some.ends - origin, 0, span - 1)
        ends = np.append(-span, np.sort(ends[slot >= 0])).astype(np.float64)
        at = (np.arange(count)[:, None] * span + (moments - origin)).astype(np.float64)
        before = np.append(0.0, np.cumsum(faded(np.diff(ends), TAIL_NS)))
        latest = np.searchsorted(ends, at.ravel(), side="right").reshape(at.shape) - 1
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

    def until(self, moments: Ints, columns: int) -> Floats:
        """Active ns of each column up to each moment: `[columns, len(moments)]`.

        The origin is arbitrary: use differences only.
        """
        result = np.zeros((columns, len(moments)))
        if len(moments):
            order = np.argsort(moments, kind="stable")
            result[:, order] = self._until(moments[order], columns)
        return result

    def _until(self, moments: Ints, columns: int) -> Floats:
        """The result of `until` at sorted moments."""
        some = self._between(int(moments[0]), int(moments[-1]))
        if not len(self.times):
            # Relative to a near origin, sums of moments keep their digits.
            starts, ends, at = ((part - moments[0]).astype(np.float64) for part in (some.starts, some.ends, moments))
            whole: Floats = _passed(starts, ends, at, some.alone, columns, np.ones((1, len(starts))))[0]
            return whole
        result = np.zeros((columns, len(moments)))
        for column, counted in ((some.alone, self.alone_ns), (some.shared, self.shared_ns)):
            starts, ends, at = (self._counted(part, counted) for part in (some.starts, some.ends, moments))
            result += _passed(starts, ends, at, column, columns, np.ones((1, len(starts))))[0]
        return result

    def tabled(self, columns: int) -> ActiveTime:
        """The same active time with tables of sums, unless these are too large or pieces overlap.

        The tables are for the search for a timing. They cost more than a few lookups.
        """
        some = 0 < len(self.starts) * columns <= _MOST_CELLS and not len(self.times)
        return TabledTime(*self) if some and not isinstance(self, TabledTime) else self


class TabledTime(ActiveTime):
    """Active time without overlapping pieces, with tables of sums over pieces, by the number that have begun.

    Made by `ActiveTime.tabled`. The tables have columns times pieces cells, and live as long as this object.
    """

    def until(self, moments: Ints, columns: int) -> Floats:
        """Like `ActiveTime.until`. `columns` must be at least the pieces' number of columns."""
        result = np.zeros((columns, len(moments)))
        begun, at, since = self._place(moments)
        which = begun[at] - 1
        np.take(self._before, begun, axis=1, out=result[: len(self._before)], mode="clip")
        result[self.alone[which], at] -= self._lengths[which] - since
        return result

    def _vary(self, moments: Ints, slots: Ints, running: Floats, integrals: Floats) -> None:
        begun, at, since = self._place(moments)
        which = begun[at] - 1
        column = self.alone[which]
        running[column, at] = 1.0
        slot = slots[column]
        probed = slot >= 0
        at, which, slot, since = at[probed], which[probed], slot[probed], since[probed]
        whole = self._lengths[which]
        fades, logs, sums = self._of_slots(slots)
        for each, weighted in zip(integrals[-2:], sums, strict=True):
            # The table includes all of a piece that has begun.
            np.take(weighted, begun, axis=1, out=each, mode="clip")
        integrals[:-2, slot, at] = whole * phases(since / whole)
        integrals[-2, slot, at] += faded(since, FADES_NS) - fades[which]
        integrals[-1, slot, at] -= logs[which] * (whole - since)

    def _place(self, moments: Ints) -> tuple[Ints, Ints, Floats]:
        """The number of pieces that began before each moment, the indices of the moments inside a piece, and the ns
        since the beginning of that piece."""
        begun = np.searchsorted(self.starts, moments)
        at = np.flatnonzero(self._ended[begun] > moments)
        return begun, at, (moments[at] - self.starts[begun[at] - 1]).astype(np.float64)

    @cached_property
    def _ended(self) -> Ints:
        """The end of the latest piece, by the number that have begun."""
        return np.append(np.iinfo(np.int64).min, self.ends)

    @cached_property
    def _lengths(self) -> Floats:
        return (self.ends - self.starts).astype(np.float64)

    @cached_property
    def _before(self) -> Floats:
        """Active ns of each column in all pieces that have begun: `[columns, pieces + 1]`."""
        return _summed(self.alone, self._lengths, int(self.alone.max()) + 1)

    @cached_property
    def _tables(self) -> dict[bytes, tuple[Floats, Floats, tuple[Floats, Floats]]]:
        return {}

    def _of_slots(self, slots: Ints) -> tuple[Floats, Floats, tuple[Floats, Floats]]:
        """By piece: the integral of its start effect, and the logarithm of its length. By slot and number of begun
        pieces: the sums of that integral, and of the logarithm times the length."""
        key = slots.tobytes()
        if key not in self._tables:
            fades, logs = faded(self._lengths, FADES_NS), _logs(self.ends - self.starts)
            slot, count = slots[self.alone], int(slots.max(initial=-1)) + 1
            sums = _summed(slot, fades, count), _summed(slot, logs * self._lengths, count)
            self._tables[key] = fades, logs, sums
        return self._tables[key]


def _summed(rows: Columns, values: Floats, count: int) -> Floats:
    """Cumulative sums of the values by row, -1 for none: `[count, values + 1]`."""
    result = np.zeros((count, len(values) + 1))
    some = np.flatnonzero(rows >= 0)
    result[rows[some], some + 1] = values[some]
    return np.cumsum(result, axis=1, out=result)


def _logs(lengths: Ints) -> Floats:
    """Logarithms of lengths in ms. Lengths below 1 ms count as 1 ms: stamp errors affect them as much as the program
    does."""
    logs: Floats = np.log(np.maximum(lengths, _MS) / _MS)
    return logs


def _inside(starts: Ints | Floats, ends: Ints | Floats, at: Ints | Floats) -> tuple[Ints, Ints]:
    """Every pair of a piece and one of the sorted moments within it."""
    first, last = np.searchsorted(at, starts, side="right"), np.searchsorted(at, ends)
    count = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(starts)), count)
    return which, np.arange(len(which)) + np.repeat(first - np.cumsum(count) + count, count)


def _passed(starts: Floats, ends: Floats, at: Floats, column: Columns, columns: int, weights: Floats) -> Floats:
    """By column: the sum over its pieces of the elapsed part at each sorted moment, times the piece's weight. One
    result per row of the weights: `[rows, columns, moments]`."""
    edges = np.concatenate((starts, ends))
    width = len(at) + 1
    row = column.astype(np.int64) * width
    cells = np.searchsorted(at, edges, side="right") + np.concatenate((row, row))
    result = np.empty((len(weights), columns, len(at)))
    for each, weight in zip(result, weights, strict=True):
        sign = np.concatenate((weight, -weight))
        # Pieces that run at a moment count from their start, ended ones with their whole length.
        open_ = np.bincount(cells, sign, columns * width).reshape(columns, width)[:, :-1]
        times = np.bincount(cells, sign * edges, columns * width).reshape(columns, width)[:, :-1]
        np.subtract(at * np.cumsum(open_, axis=1), np.cumsum(times, axis=1), out=each)
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
