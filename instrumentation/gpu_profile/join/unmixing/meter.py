"""Long executions by what the energy counter grew by during each, with nothing unmixed: a second witness. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.activities import Activities
from gpu_profile.units import NS_PER_S

#: Executions at least this long are also told by what the energy counter grew by from their beginning to their end, if
#: its rows cover this much of them.
_LONG_NS: Final = 2 * NS_PER_S
_COVERED: Final = 0.95
#: Its rows are waited for no longer than this.
_LATE_NS: Final = 10 * NS_PER_S


class Metered(NamedTuple):
    """Executions of 2 s or more by what the energy counter grew by from the beginning to the end of each.

    Nothing is unmixed. `half_width_j` is what the counter's rows that hold a beginning or an end may have of the time
    before or after: nothing tells how much.
    """

    executions: int = 0
    total_s: float = 0.0
    energy_j: float = 0.0
    half_width_j: float = 0.0

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.energy_j / self.total_s

    @property
    def power_half_width_w(self) -> float:
        """How far that may be off."""
        return self.half_width_j / self.total_s

    def and_others(self, others: Metered) -> Metered:
        """These executions and others."""
        return Metered(
            self.executions + others.executions,
            self.total_s + others.total_s,
            self.energy_j + others.energy_j,
            self.half_width_j + others.half_width_j,
        )


class Meter:
    """The energy counter of one device, beside its long executions."""

    def __init__(self, timeline: Timeline) -> None:
        #: By column.
        self.metered: dict[int, Metered] = {}
        self._timeline = timeline
        #: Executions that wait for the counter: column, start and end.
        self._waiting: list[tuple[int, int, int]] = []

    def note(self, activities: Activities, since_ns: int, until_ns: int) -> None:
        """Wait for the counter's rows of the long executions that ended after `since_ns`, and by `until_ns`."""
        if self._timeline.column(rows.ENERGY) is None:
            return
        long = activities.ends - activities.starts >= _LONG_NS
        if not long.any():
            return
        chosen = np.flatnonzero(long & (activities.ends > since_ns) & (activities.ends <= until_ns))
        found = (part[chosen].tolist() for part in (activities.columns, activities.starts, activities.ends))
        self._waiting += zip(*found, strict=True)

    def read(self, now_ns: int, *, final: bool) -> None:
        """Read the counter for the executions whose rows have come, or will not come any more."""
        column = self._timeline.column(rows.ENERGY)
        mark = column.watermark_ns if column is not None else None
        waiting, self._waiting = self._waiting, []
        for region, start, end in waiting:
            if column is None or mark is None:
                continue
            if mark < end and now_ns < end + _LATE_NS and not final:
                self._waiting.append((region, start, end))
                continue
            mass, covered, _, _, edge_ns = column.extent(start, end)
            if covered < _COVERED * (end - start):
                continue
            joules, seconds = column.signal.base(mass), (end - start) / NS_PER_S
            edges_s = 2 * max(edge_ns, column.signal.refresh_ns) / NS_PER_S
            before = self.metered.get(region, Metered())
            this = Metered(1, seconds, joules * (end - start) / covered, joules / seconds * edges_s)
            self.metered[region] = before.and_others(this)

    def merge(self, column: int, into: int) -> None:
        """Make a column's executions those of another."""
        if column in self.metered:
            self.metered[into] = self.metered.pop(column).and_others(self.metered.get(into, Metered()))
