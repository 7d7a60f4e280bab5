"""Executions without a mark, by the pauses that look like them, and their effect on the equations. Pure.

A program may run a region's work without the region, in another path of its code. The time of such an execution counts
as outside all regions. Its pause shows that there was one, by its length. Which region's it was remains open if several
have executions of this length. So each of these has an error in its shares of the window: the time that it may have
had, minus the mean of what all of them may have had. As with errors of stamps, least squares takes that for information
(`stamps`): that the rates of these regions are equal. It matters where the shares hardly vary otherwise, as in a loop.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints

#: The share of executions without a mark before any pause is considered: in most programs there are none.
_EXPECTED: Final = 0.05
#: An execution's length is within this many standard deviations of its region's mean length.
_FARTHEST: Final = 3.0
#: Longer pauses are no sample of the ordinary ones between executions.
_ORDINARY_NS: Final = 20_000_000
#: Clocks are no better than this.
_LEAST_NS: Final = 1_000.0


class UnmarkedExecutions:
    """Pauses that contain an execution without a mark, and the errors of the shares of the regions that it may be of.

    A pause is an ordinary one, or an execution between two ordinary ones. Lengths are normal: the regions' by their
    executions, the ordinary pauses' by all pauses, each for as much as it is an ordinary one (expectation
    maximisation).
    """

    def __init__(self) -> None:
        #: The number of ordinary pauses, and the sums of their lengths and of the squares.
        self._ordinary: Floats = np.zeros(3)
        #: By column: the expected sum of the squares of its missing executions' lengths, in ns².
        self.squares: Floats = np.zeros(1)
        #: The expected number of executions without a mark, and the time that was looked at, in ns.
        self.count, self.elapsed_ns = 0.0, 0

    def take(self, pauses: Ints, lengths: Floats, elapsed_ns: int) -> None:
        """Add the pauses of a slice of time. `lengths` has the number of executions by column, the sums of their
        lengths in ns, and of the squares."""
        self.elapsed_ns += elapsed_ns
        every = pauses.astype(np.float64)
        own = every[every < _ORDINARY_NS]
        ordinary = self._ordinary + np.array((len(own), own.sum(), own @ own))
        self.squares = np.pad(self.squares, (0, len(lengths[0]) - len(self.squares)))
        if not ordinary[0]:
            return
        usual_ns, variance = _moments(ordinary[:, None])[:, 0]
        n, regions = lengths[0], np.flatnonzero(lengths[0] > 1)
        means, variances = _moments(lengths[:, regions]) + np.array([[2 * usual_ns], [2 * variance]])
        # An execution between two pauses makes none that is shorter than the mean.
        shortest = max(usual_ns, (means - _FARTHEST * np.sqrt(variances)).min(initial=np.inf))
        longer = every[every > shortest]
        if not len(longer):
            self._ordinary = ordinary
            return
        far = (longer[:, None] - means) ** 2 / variances
        likely = _EXPECTED * n[regions] * np.exp(-far / 2) / np.sqrt(variances) * (far < _FARTHEST**2)
        some = likely.any(axis=1)
        likely, longer = likely[some], longer[some]
        ordinarily = ordinary[0] * np.exp(-((longer - usual_ns) ** 2) / (2 * variance)) / math.sqrt(variance)
        unmarked = likely.sum(axis=1)
        of = likely / unmarked[:, None]
        chances = unmarked / (unmarked + ordinarily)
        moved = chances * np.maximum(longer - 2 * usual_ns, 0.0) ** 2
        self.squares[regions] += moved @ of
        self.count += float(chances.sum())
        left = np.where(longer < _ORDINARY_NS, chances, 0.0)
        self._ordinary = ordinary - np.array([left.sum(), left @ longer, left @ longer**2])

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        if max(column, into) < len(self.squares):
            self.squares[into] += self.squares[column]
            self.squares[column] = 0.0


def _moments(sums: Floats) -> Floats:
    """Means and variances `[2, columns]` by the numbers of values, their sums, and the sums of squares."""
    n, total, squares = sums
    means = total / n
    return np.stack((means, np.maximum(_LEAST_NS**2, squares / n - means**2)))
