"""The parts of executions that no window shows, and how far rates are uncertain because of them. Pure.

A sensor may measure only a part of the time, such as 25 of every 100 ms (Yang et al., "Part-time Power Measurements",
SC24). Then a loop in step with it shows the same parts of its executions in every window. The mean of the windows is
the mean of these parts. Nothing reveals the power in the other parts, so only physics bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import POWER_SOURCES, Kind, Signal
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, Fit
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.piece_sums import inside, order_of
from gpu_profile.join.unmixing.windows.sensor import USUAL_NS, Sensor

#: An execution is divided into this many equal parts.
_PARTS: Final = 32
#: A part is seen if windows show at least this share of the mean part's time. Ours.
_SEEN: Final = 0.25
#: Windows of this share of the time between readings miss too little to matter. Ours.
_WHOLE: Final = 0.9
#: Of a counter's growth over more periods than this, the last ones count.
_MOST_PERIODS: Final = 16
#: Executions are in step with the windows if no window ends within this share of the possible times after a start ...
_UNVISITED: Final = 0.125
#: ... and if that happens by chance with at most this probability.
_BY_CHANCE: Final = 1e-3
#: Windows are counted up to this number.
_ENOUGH: Final = 10_000
#: Signals of sensors that may measure a part of the time.
_PART_TIME: Final = frozenset({*POWER_SOURCES, UTILIZATION})
#: Executions around window edges that are counted at once, to limit the memory.
_AT_ONCE: Final = 16_384

Bools = npt.NDArray[np.bool_]
_Number = TypeVar("_Number", np.float64, np.uint16)


class UnseenParts:
    """The time of executions in a part-time sensor's windows, by column and by part of the execution.

    No time is counted for a sensor that measures all of the time. `whole`: a counter of this board does, as far as its
    readings do not contradict that. The windows are also counted by the time from a start to their end, unless the
    timing was `expected` before any reading.
    """

    def __init__(self, *, whole: bool = False, expected: bool = False) -> None:
        self._whole, self._expected, self._counts = whole, expected, False
        self._sensor: Sensor | None = None
        #: By column: the ns of each part in windows, the number of window edges in executions, and the ns of these.
        self._shown: Floats = np.zeros((1, _PARTS + 2))
        self._settled: Floats = self._shown
        #: By column: the length of a turn in ns, and the number of windows that ended in each part of one.
        self._turns_ns, self._ended = np.zeros(1), np.zeros((1, _PARTS), np.uint16)
        self._ended_before = self._ended
        #: The best timing, and the columns in step with its windows.
        self._timing, self._in_step = Sensor(), np.zeros(1, bool)

    def renew(
        self, lead: Signal, timings: Sequence[Sensor], windows: Windows, active: ActiveTime, columns: int
    ) -> None:
        """Count anew, after the settled windows, the time in `windows`, which fit these `timings`.

        The first timing is the best one. The length is its window, or that of another one of a known board if it is
        shorter. So a counter may measure a part of each period, unless its readings or its board rule that out. Windows
        in step with executions rule out none, so it may be the shortest window of all boards.
        """
        self._shown, self._sensor, self._counts = self._settled.copy(), None, lead.kind is Kind.COUNTER
        self._timing, self._ended = timings[0], _grown(self._ended_before, columns).copy()
        starts = [active.starts[active.alone == column] for column in range(columns)]
        self._turns_ns = np.array([np.median(np.diff(each)) if len(each) > 1 else 0.0 for each in starts])
        self._visit(windows, active)
        # No board is known whose utilisation is of a part of the time, so a part that merely fits counts for nothing.
        some = [each for each in (timings[:1] if lead is UTILIZATION else timings) if each.length_ns]
        if self._in_step.any() and lead in _PART_TIME:
            some.append(Sensor(window_ns=min(USUAL_NS)))
        ruled_out = self._whole and not timings[0].length_ns
        if ruled_out or not some or len(windows.ends) < 2:
            return
        likely = [each for each in some if each.usual or each is timings[0]]
        part = min(likely or some, key=lambda each: each.length_ns)
        # A reader that is faster than the sensor gets each window several times.
        if part.length_ns < _WHOLE * max(part.period_ns, float(np.median(np.diff(windows.ends)))):
            timing = timings[0] if timings[0].period_ns or timings[0].window_ns else part
            self._sensor = timing._replace(window_ns=part.length_ns, smooth=False)
            self._show(windows, active, columns)

    def add(self, windows: Windows, active: ActiveTime, columns: int) -> None:
        """Count the time in these windows."""
        if self._in_step.any():
            self._visit(windows, active)
        self._show(windows, active, columns)

    def _visit(self, windows: Windows, active: ActiveTime) -> None:
        """Count the windows by the time from the latest start of each column's executions to their end."""
        moments = np.unique(self._timing.placed(windows.ends).moments(windows.ends))
        if len(moments) > 1 and not self._expected:
            turns = np.minimum(self._turns_ns, np.median(np.diff(moments)))
            early = (active.starts < moments[-1]) & (active.alone < len(turns))
            starts, column = active.starts[early], active.alone[early].astype(np.int64)
            following = moments.searchsorted(starts)
            _, latest = np.unique((column * len(moments) + following)[::-1], return_index=True)
            starts, column, following = (each[::-1][latest] for each in (starts, column, following))
            since = moments[following] - starts
            near = since < turns[column]
            part = (since[near] / turns[column[near]] * _PARTS).astype(np.int64)
            ended = self._ended.astype(np.int64)
            np.add.at(ended, (column[near], part), 1)
            self._ended = np.minimum(ended, _ENOUGH).astype(np.uint16)
        self._in_step = _in_step(self._ended)

    def in_step(self, columns: int) -> Bools:
        """By column: whether its executions are in step with the windows; for the time outside, whether any are."""
        result = np.zeros(columns, bool)
        result[: len(self._in_step)] = self._in_step[:columns]
        result[0] = result.any()
        return result

    def _show(self, windows: Windows, active: ActiveTime, columns: int) -> None:
        if self._sensor is None or not len(windows.ends):
            return
        sensor = self._sensor.placed(windows.ends)
        ends = sensor.moments(windows.ends)
        if self._counts and sensor.period_ns:
            # A counter's growth over several periods has a window in each of them.
            periods = np.rint((ends - sensor.moments(windows.starts)) / sensor.period_ns)
            many = np.clip(periods, 1, _MOST_PERIODS).astype(np.int64)
            back = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
            ends = np.repeat(ends, many) - back * sensor.period_ns
        moments = np.concatenate((ends - sensor.window_ns, ends))
        signs = np.repeat((-1.0, 1.0), len(ends))
        self._shown = _grown(self._shown, columns)
        self._shown[:columns, :_PARTS] += (active.until(moments, columns) @ signs)[:, None] / _PARTS
        order = order_of(moments)
        which, at = inside(active.starts, active.ends, moments[order])
        moments, signs, many = moments[order], signs[order], np.bincount(at)
        for i in range(0, len(at), _AT_ONCE):
            piece, place = which[i : i + _AT_ONCE], at[i : i + _AT_ONCE]
            since, lengths = moments[place] - active.starts[piece], active.ends[piece] - active.starts[piece]
            # `until` has the elapsed time in equal parts. It belongs to the parts that have elapsed.
            elapsed = np.clip(since / lengths * _PARTS - np.arange(_PARTS)[:, None], 0.0, 1.0) * lengths - since
            moved = np.vstack((elapsed / _PARTS / many[place] * signs[place], np.ones(len(place)), lengths))
            column = np.where(many[place] > 1, active.shared[piece], active.alone[piece])
            np.add.at(self._shown, column, moved.T)

    def skip(self, ahead_ns: int) -> None:
        """Move the timing this much later: the clock was set."""
        self._timing = self._timing.shifted(ahead_ns)
        self._sensor = self._sensor and self._sensor.shifted(ahead_ns)

    def settle(self) -> None:
        """Keep the windows so far when the next search finds another timing."""
        self._settled, self._ended_before = self._shown.copy(), self._ended.copy()

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another, and free it."""
        size = max(column, into) + 1
        self._shown, self._settled = _grown(self._shown, size), _grown(self._settled, size)
        self._ended, self._ended_before = _grown(self._ended, size), _grown(self._ended_before, size)
        for sums in (self._shown, self._settled, self._ended, self._ended_before):
            sums[into] += sums[column]
            sums[column] = 0
        self._in_step = _in_step(self._ended)

    def share(self, weights: Floats) -> float:
        """The share of a mixture of columns, `weights` that add up to 1, that no window shows.

        Chance leaves out parts of few executions too, but favours none: of `n` executions' time, about `exp(-n)`.
        """
        # Of no other columns: a device may have many more regions than the few of a mixture.
        used = np.flatnonzero(weights[: len(self._shown)])
        shown, weights = self._shown[used], weights[used]
        parts, cuts, lengths = shown[:, :_PARTS], shown[:, _PARTS], shown[:, -1]
        time = np.maximum(parts.sum(axis=1), 1.0)
        missing = np.clip(1 - parts * (_PARTS / _SEEN) / time[:, None], 0.0, 1.0).mean(axis=1)
        by_chance = np.exp(-time * cuts / np.maximum(lengths, 1.0))
        return float(weights @ np.maximum(0.0, np.where(cuts > 0, missing - by_chance, 0.0)))

    def widened(self, fit: Fit, weights: Floats) -> Rate:
        """The rate of a mixture of columns, for any possible power in the parts that no window shows."""
        rate, share = fit.rate(weights), self.share(weights)
        return rate.beside(share * max(rate.value, fit.most - rate.value), fit.mean, LOCK_STEP) if share else rate


def _grown(sums: npt.NDArray[_Number], columns: int) -> npt.NDArray[_Number]:
    """The sums by column, with zeros for further columns."""
    more = columns - len(sums)
    return np.pad(sums, ((0, more), (0, 0))) if more > 0 else sums


def _in_step(ended: npt.NDArray[np.uint16]) -> Bools:
    """By column: whether no window ended in a longer part of each turn than chance leaves out."""
    n, twice = ended.sum(axis=1), np.hstack((ended, ended)) > 0
    place = np.arange(2 * _PARTS)
    latest = np.maximum.accumulate(np.where(twice, place, 0), axis=1)
    longest = (place - latest)[:, _PARTS:].max(axis=1) / _PARTS
    # Of n ends at random, about n * (1 - x) ** (n - 1) are followed by none in the share x (Stevens, 1939).
    by_chance = n * np.maximum(0.0, 1 - longest) ** np.maximum(0.0, n - 1)
    result: Bools = (longest >= _UNVISITED) & (n > 0) & (by_chance < _BY_CHANCE)
    return result
