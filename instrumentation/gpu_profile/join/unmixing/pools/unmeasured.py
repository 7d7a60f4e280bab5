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
    """Active time between the sensor's windows, by column, of the family of `lead`.

    A mean describes the sensor's own window only. Executions that are short compared with the time between two windows
    have others like them. Longer ones have none: the program may have stopped with the sampler. So pieces of at least
    half of the usual time between readings count.
    """

    def __init__(self, lead: Signal) -> None:
        self._framed = lead.kind is Kind.WINDOW_MEAN and lead.tier is not Tier.GPM
        #: The time of long pieces between windows, by column in ns.
        self._ns: Floats = np.zeros(1)
        #: Rows to be counted: the time of the earlier reading, the row's end, and the usual time between readings.
        self._waiting: list[tuple[int, int, int]] = []

    def note(self, since_ns: int, ends: Ints, usual_ns: int) -> None:
        """Queue the rows with time before their windows. The first one comes after a reading at `since_ns`."""
        before = np.append(since_ns, ends[:-1])
        for at in np.flatnonzero(ends - before > _MISSING * usual_ns).tolist() if self._framed and usual_ns else ():
            self._waiting.append((int(before[at]), int(ends[at]), usual_ns))

    @property
    def since_ns(self) -> int | None:
        """The time from which queued rows need active time; None without any."""
        return self._waiting[0][0] if self._waiting else None

    def count(self, active: ActiveTime, columns: int, window_ns: int) -> None:
        """Add up the active time of the queued rows. Readings are means over `window_ns`."""
        waiting, self._waiting = self._waiting, []
        for before, end, usual in waiting:
            self._ns = sized(self._ns, max(columns, len(self._ns)))
            self._ns[:columns] += active.spent(before, end - max(usual, window_ns), columns, least_ns=usual // 2)

    def widened(self, rate: Rate, fit: Fit, weights: Floats, active_s: Floats) -> Rate:
        """The rate of a mixture of columns, for any power up to the busiest window's in the time that no reading
        describes. `active_s` is each column's active time."""
        columns = len(weights)
        unseen = np.minimum(1.0, sized(self._ns, columns) / np.maximum(sized(active_s, columns) * NS_PER_S, 1.0))
        if not (share := float(weights @ unseen)):
            return rate
        farthest = max(rate.value, fit.highest - rate.value)
        return rate.beside(share * farthest, fit.mean, f"no samples describe {share:.0%} of its time")

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        self._ns = sized(self._ns, 1 + max(column, into, len(self._ns) - 1))
        self._ns[into] += self._ns[column]
        self._ns[column] = 0.0

    def skip(self, ahead_ns: int) -> None:
        """Move the queued rows this much later: the clock was set."""
        self._waiting = [(before + ahead_ns, end + ahead_ns, usual) for before, end, usual in self._waiting]


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
