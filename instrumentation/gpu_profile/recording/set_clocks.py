"""Moves times from before a clock was set to the clock's last setting. Pure.

Recordings have the moments at which their clocks were set. Older ones show it by the order of readings: a sampler reads
a signal again and again, so their ends go back only where the clock was set back. Other times of the host are in the
order of writing too, apart from a few executions that waited for a profiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.clock import Moment
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
#: Settings of a clock differ by more than this. Ours.
_LEAST_NS: Final = 1_000_000
_EVER: Final = 1 << 62
#: A way back counts as this many times as long: the order of writing is nearly that of time, and readings are in order.
_BACK, _NEVER_BACK = 3, 1 << 30


class ClockSetting(NamedTuple):
    """The time that a clock showed by one setting, in ns, and how far this setting is ahead of the last one."""

    first_ns: int
    last_ns: int
    ahead_ns: int


class _ShownExecution(NamedTuple):
    """An execution as the clock showed it, in ns. `set_ns` as of a `SpanRecord`."""

    start_ns: int
    end_ns: int
    set_ns: int = 0

    def fit(self, before: ClockSetting, after: ClockSetting) -> bool:
        """Whether the start and the end can be by these settings."""
        if self.set_ns:
            return abs(before.ahead_ns - after.ahead_ns + self.set_ns) <= _LEAST_NS
        return self.start_ns - before.ahead_ns <= self.end_ns - after.ahead_ns


@dataclass(frozen=True, slots=True)
class SetClock:
    """A host's clock that was set: its settings in their order.

    `usual_ns` is the usual time between two readings that show the settings; 0 if moments show them.
    """

    settings: Sequence[ClockSetting]
    usual_ns: int = 0

    @property
    def text(self) -> str:
        """The sizes of the steps, and the change of the times before."""
        by = [earlier.ahead_ns - later.ahead_ns for earlier, later in pairwise(self.settings)]
        steps = [f"{'back' if each > 0 else 'ahead'} by {abs(each) / NS_PER_S:,.3f} s" for each in by]
        # The line is short, and most clocks are set once.
        sizes = " and ".join(steps[:2]) + (f" and {len(by) - 2} times more" if len(by) > 2 else "")
        within = f", within {si(self.usual_ns / NS_PER_S, 's', 2)}" if self.usual_ns else ""
        return f"its clock was set {sizes}: earlier times are as if it had been set before{within}"

    def process(self, start_ns: int, spans: Sequence[SpanRecord]) -> tuple[int, list[SpanRecord]]:
        """How far the start of a process is ahead of the last setting, in ns, and its executions by that setting.

        Executions are in the order of writing.
        """
        edges = [
            _ShownExecution(start_ns, start_ns),
            *(_ShownExecution(span.start_ns, span.end_ns, span.set_ns) for span in spans),
        ]
        first, *ahead = self._ahead(edges, polled=False)
        return first, list(map(self.span, spans, ahead))

    def ahead(self, ends: Iterable[int], *, polled: bool = False) -> list[int]:
        """How far each end is ahead of the last setting, in ns. The ends are in the order of writing.

        An end is by the setting that brings it nearest to the one before. The setting of the first end is the one with
        the shortest way through all ends; of several such settings, the last. Times of `polled` readings never go back,
        and lie within the sampled time.
        """
        return self._ahead([_ShownExecution(end, end) for end in ends], polled=polled)

    def _ahead(self, written: Sequence[_ShownExecution], *, polled: bool) -> list[int]:
        possible = self._possible(written[0], self._slack_ns(polled=polled)) if written else self.settings
        ways = [self._way(written, first, polled=polled) for first in reversed(possible)]
        return min(ways, key=lambda way: way[0])[1]

    def _way(self, written: Sequence[_ShownExecution], first: ClockSetting, *, polled: bool) -> tuple[int, list[int]]:
        """The sum of all distances, and how far each end is ahead, if the first one is by a setting."""
        length, before_ns, ahead = 0, written[0].end_ns - first.ahead_ns if written else 0, list[int]()
        slack_ns, back = self._slack_ns(polled=polled), _NEVER_BACK if polled else _BACK
        for edges in written:
            end = edges.end_ns
            gone = [(end - each.ahead_ns - before_ns, each.ahead_ns) for each in self._possible(edges, slack_ns)]
            distance, ahead_ns = min((each if each >= 0 else -back * each, ahead_ns) for each, ahead_ns in gone)
            length += distance
            ahead.append(ahead_ns)
            before_ns = end - ahead_ns
        return length, ahead

    def _slack_ns(self, *, polled: bool) -> int:
        return (self.usual_ns // 2 if polled else _LATER_NS) if self.usual_ns else 0

    def _possible(self, edges: _ShownExecution, slack_ns: int) -> Sequence[ClockSetting]:
        """The settings of an execution's end. If the clock was set back during it, only later ones than the start's."""
        shown = self._shown(edges.end_ns, slack_ns)
        if edges.start_ns <= edges.end_ns and not edges.set_ns:
            return shown
        place = self.settings.index
        later = [each for each in shown if any(edges.fit(one, each) for one in self.settings[: place(each)])]
        return later or shown

    def _shown(self, end_ns: int, slack_ns: int) -> Sequence[ClockSetting]:
        """The settings by which the clock can have shown this time; the last one if there is none."""
        shown = [each for each in self.settings if each.first_ns - slack_ns <= end_ns <= each.last_ns + slack_ns]
        return shown or self.settings[-1:]

    def span(self, span: SpanRecord, ahead_ns: int) -> SpanRecord:
        """An execution with an end that is ahead of the last setting. Its start may be by an earlier setting."""
        end_ns = span.end_ns - ahead_ns
        marks = tuple(
            mark._replace(
                start_ns=self._start(mark.start_ns, mark.end_ns - ahead_ns, ahead_ns), end_ns=mark.end_ns - ahead_ns
            )
            for mark in span.device_intervals
        )
        known_ns = span.start_ns + span.set_ns - ahead_ns
        start_ns = known_ns if span.set_ns else self._start(span.start_ns, end_ns, ahead_ns)
        return span._replace(start_ns=start_ns, end_ns=end_ns, device_intervals=marks)

    def _start(self, shown_ns: int, end_ns: int, ahead_ns: int) -> int:
        """The latest start by the last setting that the clock can have shown as `shown_ns`, and not after `end_ns`.

        The end is ahead of the last setting by `ahead_ns`: the start is by the same setting or an earlier one.
        """
        ends = [each.ahead_ns for each in self.settings]
        starts = (
            shown_ns - each.ahead_ns
            for each in self.settings[: len(ends) - ends[::-1].index(ahead_ns)]
            if each.first_ns - self.usual_ns <= shown_ns <= each.last_ns + self._slack_ns(polled=False)
        )
        return max((start for start in starts if start <= end_ns), default=shown_ns - ahead_ns)


def recorded_clock(moments: Iterable[Moment]) -> SetClock | None:
    """The clock behind moments that one or more processes of a machine recorded; None if it was not set."""
    ordered = sorted(set(moments), key=lambda moment: moment.elapsed_ns + moment.suspended_ns)
    steps = [pair for pair in pairwise(ordered) if abs(pair[1].setting_ns - pair[0].setting_ns) > _LEAST_NS]
    if not steps:
        return None
    # Between two moments, either setting is possible.
    firsts = [-_EVER, *(before.now_ns + after.setting_ns - before.setting_ns for before, after in steps)]
    lasts = [*(after.now_ns + before.setting_ns - after.setting_ns for before, after in steps), _EVER]
    last = steps[-1][1].setting_ns
    ahead = [*(before.setting_ns - last for before, _ in steps), 0]
    return SetClock([*map(ClockSetting, firsts, lasts, ahead)])


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
