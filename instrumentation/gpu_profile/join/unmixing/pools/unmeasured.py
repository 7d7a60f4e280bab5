"""The active time that a family's readings do not measure: a starved sampler leaves it out. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_profile.catalogue import Kind, Signal, Tier
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations, sized
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.unmix import UNSTEADY, Fit
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.units import NS_PER_S

#: A reading is missing before another one that comes this many usual times after the one before.
_MISSING: Final = 1.5


class Unmeasured:
    """Active time without measurement, by column, of the family of `lead`.

    `missed_s` is the time without any row: it has no part of the measured total. A mean describes the sensor's own
    window only. Executions that are short compared with the time between two windows have others like them. Longer ones
    have none: the program may have stopped with the sampler. So `widened` counts pieces of at least half of the usual
    time between readings.
    """

    def __init__(self, lead: Signal) -> None:
        self._framed = lead.kind is Kind.WINDOW_MEAN and lead.tier is not Tier.GPM
        #: The time without rows, and the time of long pieces between windows, by column in ns.
        self._ns: Floats = np.zeros((2, 1))
        #: Rows to be counted: the time of the earlier reading, the row's start and end, and the usual time between
        #: readings.
        self._waiting: list[tuple[int, int, int, int]] = []

    def note(self, since_ns: int, starts: Ints, ends: Ints, usual_ns: int) -> None:
        """Queue the rows with time before their windows. The first one comes after a reading at `since_ns`."""
        before = np.append(since_ns, ends[:-1])
        apart = starts > before
        if self._framed and usual_ns:
            apart |= ends - before > _MISSING * usual_ns
        for at in np.flatnonzero(apart).tolist():
            self._waiting.append((int(before[at]), int(starts[at]), int(ends[at]), usual_ns))

    @property
    def since_ns(self) -> int | None:
        """The time from which queued rows need active time; None without any."""
        return self._waiting[0][0] if self._waiting else None

    def count(self, active: ActiveTime, columns: int, window_ns: int) -> None:
        """Add up the active time of the queued rows. Readings are means over `window_ns`."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._grow(columns)
        for before, start, end, usual in waiting:
            missed = active.spent(before, start, columns)
            missed[0] = max(0.0, start - before - float(missed.sum()))
            self._ns[0, :columns] += missed
            if self._framed and usual:
                until = end - max(usual, window_ns)
                self._ns[1, :columns] += active.spent(before, until, columns, least_ns=usual // 2)

    def missed_s(self, columns: int) -> Floats:
        """The active time of the first columns that no row covers, in s."""
        return sized(self._ns[0], columns) / NS_PER_S

    def widened(self, rate: Rate, fit: Fit, weights: Floats, active_s: Floats) -> Rate:
        """The rate of a mixture of columns, for any power up to the busiest window's in the time that no reading
        describes. `active_s` is each column's active time."""
        columns = len(weights)
        unseen = np.minimum(1.0, sized(self._ns[1], columns) / np.maximum(sized(active_s, columns) * NS_PER_S, 1.0))
        if not (share := float(weights @ unseen)):
            return rate
        farthest = max(rate.value, fit.highest - rate.value)
        return rate.beside(share * farthest, fit.mean, f"no samples describe {share:.0%} of its time")

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        self._grow(max(column, into) + 1)
        self._ns[:, into] += self._ns[:, column]
        self._ns[:, column] = 0.0

    def skip(self, ahead_ns: int) -> None:
        """Move the queued rows this much later: the clock was set."""
        self._waiting = [
            (b + ahead_ns, start + ahead_ns, end + ahead_ns, each) for b, start, end, each in self._waiting
        ]

    def _grow(self, columns: int) -> None:
        self._ns = np.pad(self._ns, ((0, 0), (0, max(0, columns - self._ns.shape[1]))))


def beside_left_out(
    rate: Rate, fit: Fit, equations: Equations, output: int, windows: int, covered_s: Floats, mean: float | None
) -> Rate:
    """A rate of a signal, if the windows without equations may all be of its columns.

    Windows that may be on either side of a sensor's renewal have none. They may come all at once, and then the program
    may have been another. `windows` have this `mean` in all, and columns are active in them for `covered_s`. Windows
    without equations make the mean differ from that of the fitted rates.
    """
    left_out = windows - equations.distinct
    if mean is None or left_out <= 0:
        return rate
    near = float(equations.left_out(output) @ equations.total[len(equations.probes) :]) / windows
    differs = abs(mean - near - float(covered_s @ fit.rates) / max(float(covered_s.sum()), 1e-9))
    bias = min(differs, left_out / windows * fit.highest) * max(1.0, rate.value / max(fit.mean, 1e-9))
    return rate.beside(bias, fit.mean, UNSTEADY)
