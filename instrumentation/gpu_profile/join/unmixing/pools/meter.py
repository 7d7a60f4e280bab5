"""Long executions measured by the energy counter's growth during each, without unmixing: a second witness. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.contrast import WindowContrast, contrast
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.units import NS_PER_S

#: The shortest execution that the energy counter measures by itself, and the least share of it that the counter's rows
#: must cover.
_LONG_NS: Final = 2 * NS_PER_S
_COVERED: Final = 0.95
#: The longest wait for its rows.
_LATE_NS: Final = 10 * NS_PER_S


class Metered(NamedTuple):
    """Executions of 2 s or more, measured by the energy counter's growth from the beginning to the end of each.

    Nothing is unmixed. `contrast` is how the windows inside them differ. `half_width_j` is the energy of the counter's
    rows that contain a beginning or an end: they also include time before or after, in an unknown proportion.
    """

    executions: int = 0
    total_s: float = 0.0
    energy_j: float = 0.0
    half_width_j: float = 0.0
    contrast: WindowContrast = WindowContrast()

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.energy_j / self.total_s

    @property
    def power_half_width_w(self) -> float:
        """The uncertainty of `power_w`."""
        return self.half_width_j / self.total_s

    def plus(self, others: Metered) -> Metered:
        """The sums over these executions and others."""
        return Metered(
            self.executions + others.executions,
            self.total_s + others.total_s,
            self.energy_j + others.energy_j,
            self.half_width_j + others.half_width_j,
            self.contrast.plus(others.contrast),
        )


class Meter:
    """The energy counter of one device, applied to long executions."""

    def __init__(self, timeline: Timeline) -> None:
        #: By column.
        self.metered: dict[int, Metered] = {}
        self._timeline = timeline
        #: Executions that wait for the counter: column, start and end.
        self._waiting: list[tuple[int, int, int]] = []

    def note(self, activities: Activities, since_ns: int, until_ns: int) -> None:
        """Queue the long executions that ended after `since_ns`, and by `until_ns`, until the counter's rows arrive."""
        if self._timeline.column(rows.ENERGY) is None:
            return
        long = activities.ends - activities.starts >= _LONG_NS
        if not long.any():
            return
        chosen = np.flatnonzero(long & (activities.ends > since_ns) & (activities.ends <= until_ns))
        ended = (part[chosen].tolist() for part in (activities.columns, activities.starts, activities.ends))
        self._waiting += zip(*ended, strict=True)

    def read(self, now_ns: int, *, final: bool) -> None:
        """Read the counter for the queued executions whose rows have arrived, or are overdue."""
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
            inside = contrast(self._timeline, Interval(start, end, "device"))
            this = Metered(1, seconds, joules * (end - start) / covered, joules / seconds * edges_s, inside)
            self.metered[region] = before.plus(this)

    def merge(self, column: int, into: int) -> None:
        """Merge a column's executions into another's."""
        if column in self.metered:
            self.metered[into] = self.metered.pop(column).plus(self.metered.get(into, Metered()))
