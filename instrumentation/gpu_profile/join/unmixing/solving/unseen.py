"""The parts of executions that no window shows, and how far rates are uncertain because of them. Pure.

A sensor may measure only a part of the time, such as 25 of every 100 ms (Yang et al., "Part-time Power Measurements",
SC24). Then a loop in step with it shows the same parts of its executions in every window. The mean of the windows is
the mean of these parts. Nothing reveals the power in the other parts, so only physics bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.catalogue import POWER_SOURCES, Kind, Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH, Rate, biased
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, Fit
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.piece_sums import inside, order_of
from gpu_profile.join.unmixing.windows.sensor import Sensor

#: An execution is divided into this many equal parts.
_PARTS: Final = 32
#: A part is seen if windows show at least this share of the mean part's time. Ours.
_SEEN: Final = 0.25
#: Windows of this share of the time between readings miss too little to matter. Ours.
_WHOLE: Final = 0.9
#: Of a counter's growth over more periods than this, the last ones count.
_MOST_PERIODS: Final = 16
#: Executions around window edges that are counted at once, to limit the memory.
_AT_ONCE: Final = 16_384


class UnseenParts:
    """The time of executions in a part-time sensor's windows, by column and by part of the execution.

    Nothing is counted for a sensor that measures all of the time. `whole`: a counter of this board does, as far as
    its readings do not contradict that.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole, self._counts = whole, False
        self._sensor: Sensor | None = None
        #: By column: the ns of each part in windows, the number of window edges in executions, and the ns of these.
        self._shown: Floats = np.zeros((1, _PARTS + 2))
        self._settled: Floats = self._shown

    def renew(
        self, lead: Signal, timings: Sequence[Sensor], windows: Windows, active: ActiveTime, columns: int
    ) -> None:
        """Count anew, after the settled windows, the time in `windows`, which fit these `timings`.

        The first timing is the best one. The length is the shortest window of all timings, if possible of a known
        board. So a counter may measure a part of each period, unless its readings or its board rule that out.
        """
        self._shown, self._sensor, self._counts = self._settled.copy(), None, lead.kind is Kind.COUNTER
        some = [each for each in timings if each.length_ns]
        ruled_out = self._whole and not timings[0].length_ns
        if lead not in POWER_SOURCES or ruled_out or not some or len(windows.ends) < 2:
            return
        part = min([each for each in some if each.usual] or some, key=lambda each: each.length_ns)
        # A reader that is faster than the sensor gets each window several times.
        if part.length_ns < _WHOLE * max(part.period_ns, float(np.median(np.diff(windows.ends)))):
            timing = timings[0] if timings[0].period_ns or timings[0].window_ns else part
            self._sensor = timing._replace(window_ns=part.length_ns, smooth=False)
            self.add(windows, active, columns)

    def add(self, windows: Windows, active: ActiveTime, columns: int) -> None:
        """Count the time in these windows."""
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

    def settle(self) -> None:
        """Keep the windows so far when the next search finds another timing."""
        self._settled = self._shown.copy()

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another, and free it."""
        self._shown, self._settled = (_grown(each, max(column, into) + 1) for each in (self._shown, self._settled))
        for shown in (self._shown, self._settled):
            shown[into] += shown[column]
            shown[column] = 0.0

    def share(self, weights: Floats) -> float:
        """The share of a mixture of columns, `weights` that add up to 1, that no window shows.

        Chance leaves out parts of few executions too, but favours none: of `n` executions' time, about `exp(-n)`.
        """
        shown = _grown(self._shown, len(weights))[: len(weights)]
        parts, cuts, lengths = shown[:, :_PARTS], shown[:, _PARTS], shown[:, -1]
        time = np.maximum(parts.sum(axis=1), 1.0)
        missing = np.clip(1 - parts * (_PARTS / _SEEN) / time[:, None], 0.0, 1.0).mean(axis=1)
        by_chance = np.exp(-time * cuts / np.maximum(lengths, 1.0))
        return float(weights @ np.maximum(0.0, np.where(cuts > 0, missing - by_chance, 0.0)))

    def widened(self, fit: Fit, weights: Floats) -> Rate:
        """The rate of a mixture of columns, for any possible power in the parts that no window shows."""
        rate, share = fit.rate(weights), self.share(weights)
        if not share or rate.reason:
            return rate
        half_width = biased(rate.half_width, share * max(rate.value, fit.most - rate.value))
        reason = "" if half_width <= WIDEST_HALF_WIDTH * max(rate.value, fit.mean) else LOCK_STEP
        return rate._replace(half_width=half_width, reason=reason)


def _grown(shown: Floats, columns: int) -> Floats:
    """The sums by column, with zeros for further columns."""
    more = columns - len(shown)
    return np.pad(shown, ((0, more), (0, 0))) if more > 0 else shown
