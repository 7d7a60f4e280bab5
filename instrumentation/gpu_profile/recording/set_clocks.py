"""Moves times from before a clock was set back to the clock's last setting. Pure.

A sampler reads a signal again and again, so the ends of its readings go back only where the clock was set back. Other
times of the host are in the order of writing too, apart from a few executions that waited for a profiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.recording.columns import Column
from gpu_profile.recording.records import SpanRecord
from gpu_profile.units import NS_PER_S, si

#: The fewest readings by one setting. With fewer, readings are in no order. Ours.
_FEWEST: Final = 8
#: Readings that come again have more than this share of equal times. Ours.
_AGAIN: Final = 0.5
#: Readings just after each other may have stamps in another order by less than this: a call takes as long. Ours.
_IN_ORDER_NS: Final = 1_000_000
#: Executions may end this long after the last reading by a setting. Ours.
_LATER_NS: Final = NS_PER_S
_EVER: Final = 1 << 62
#: A way back counts as this many times as long: the order of writing is nearly that of time, and readings are in order.
_BACK, _NEVER_BACK = 3, 1 << 30


class ClockSetting(NamedTuple):
    """The time that a clock showed by one setting, in ns, and how far this setting is ahead of the last one."""

    first_ns: int
    last_ns: int
    ahead_ns: int


@dataclass(frozen=True, slots=True)
class SetClock:
    """A host's clock that was set back: its settings in their order, and the usual time between two readings in ns."""

    settings: Sequence[ClockSetting]
    usual_ns: int

    @property
    def text(self) -> str:
        """The sizes of the steps, and the change of the times before."""
        by = [earlier.ahead_ns - later.ahead_ns for earlier, later in pairwise(self.settings)]
        steps = " and ".join(f"{each / NS_PER_S:,.3f} s" for each in by)
        within = si(self.usual_ns / NS_PER_S, "s", 2)
        return f"its clock was set back by {steps}: earlier times are as if it had been set before, within {within}"

    def ahead(self, ends: Iterable[int], *, polled: bool = False) -> list[int]:
        """How far each end is ahead of the last setting, in ns. The ends are in the order of writing.

        An end is by the setting that brings it nearest to the one before. The setting of the first end is the one with
        the shortest way through all ends; of several such settings, the last. Times of `polled` readings never go back,
        and lie within the sampled time.
        """
        written = list(ends)
        ways = [self._way(written, first, polled=polled) for first in reversed(self.settings)]
        return min(ways, key=lambda way: way[0])[1]

    def _way(self, ends: Sequence[int], first: ClockSetting, *, polled: bool) -> tuple[int, list[int]]:
        """The sum of all distances, and how far each end is ahead, if the first one is by a setting."""
        length, before_ns, ahead = 0, ends[0] - first.ahead_ns if ends else 0, list[int]()
        later_ns, back = (self.usual_ns // 2, _NEVER_BACK) if polled else (_LATER_NS, _BACK)
        last = self.settings[-1]
        for end in ends:
            shown = [each for each in self.settings if each.first_ns - later_ns <= end <= each.last_ns + later_ns]
            gone = [(end - each.ahead_ns - before_ns, each.ahead_ns) for each in shown or [last]]
            distance, ahead_ns = min((each if each >= 0 else -back * each, ahead_ns) for each, ahead_ns in gone)
            length += distance
            ahead.append(ahead_ns)
            before_ns = end - ahead_ns
        return length, ahead

    def span(self, span: SpanRecord, ahead_ns: int) -> SpanRecord:
        """An execution with an end that is ahead of the last setting. Its start may be by an earlier setting."""
        end_ns = span.end_ns - ahead_ns
        starts = (
            span.start_ns - each.ahead_ns
            for each in self.settings
            if each.first_ns - self.usual_ns <= span.start_ns <= each.last_ns + _LATER_NS
        )
        start_ns = max((start for start in starts if start <= end_ns), default=span.start_ns - ahead_ns)
        marks = tuple(
            mark._replace(start_ns=mark.start_ns - ahead_ns, end_ns=mark.end_ns - ahead_ns)
            for mark in span.device_intervals
        )
        return span._replace(start_ns=start_ns, end_ns=end_ns, device_intervals=marks)


def set_clock(polled: Iterable[Column]) -> SetClock | None:
    """The clock behind the ends of polled readings, each in the order of writing; None if it was not set back."""
    ends = max(polled, key=len, default=np.zeros(0, np.int64))
    steps = np.diff(ends)
    back = np.flatnonzero(steps < -_IN_ORDER_NS) + 1
    if not len(back) or not (steps > 0).any():
        return None
    parts = np.split(ends, back)
    # A driver that delivers its readings again repeats their times. By chance, a few times in whole ms are equal too.
    repeated = any(np.isin(earlier[earlier >= later[0]], later).mean() > _AGAIN for earlier, later in pairwise(parts))
    if repeated or min(map(len, parts)) < _FEWEST:
        return None
    usual_ns = int(np.median(steps[steps > 0]))
    # Before the first reading and after the last one, there is only one setting.
    firsts = [-_EVER, *(int(part[0]) for part in parts[1:])]
    lasts = [*(int(part[-1]) for part in parts[:-1]), _EVER]
    by = [int(earlier[-1]) + usual_ns - int(later[0]) for earlier, later in pairwise(parts)]
    ahead = [sum(by[place:]) for place in range(len(parts))]
    return SetClock([*map(ClockSetting, firsts, lasts, ahead)], usual_ns)
