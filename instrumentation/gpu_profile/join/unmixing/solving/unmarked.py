"""Executions without a mark, by the pauses that look like them, and their effect on the equations. Pure.

A program may run a region's work without the region, in another path of its code. The time of such an execution counts
as outside all regions. Its pause shows by its length that there was one. The region remains open if several have
executions of this length. So the share of each of these in the window has an error: its possible time minus the mean
possible time of all of them. As with errors of stamps, least squares takes that for information (`stamps`): that the
rates of these regions are equal. It matters where the shares hardly vary otherwise, as in a loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.rate import Z95

#: Pauses are counted by length in this many classes per factor of two, from the resolution of clocks to 16 s.
_PER_OCTAVE: Final = 8
_CLASSES: Final = 24 * _PER_OCTAVE
_LEAST_NS: Final = 1_000.0
_LOGS: Final[Floats] = math.log(_LEAST_NS) + math.log(2) / _PER_OCTAVE * np.arange(0.5, _CLASSES)
_LENGTHS: Final[Floats] = np.exp(_LOGS)
#: Cube roots of lengths with a gamma distribution are nearly normal (Wilson and Hilferty, PNAS 17 (1931), 684).
_ROOTS: Final[Floats] = np.cbrt(_LENGTHS)
_POWERS: Final[Floats] = np.stack((_ROOTS**0, _ROOTS, _ROOTS**2))
#: The variance of a logarithm within a class.
_WITHIN: Final = (math.log(2) / _PER_OCTAVE) ** 2 / 12
#: The density of logarithms of pauses of any length. All densities lack a normal one's factor 1/√2π.
_ANY: Final = math.sqrt(2 * math.pi) / (_LOGS[-1] - _LOGS[0])
#: The share of pauses with an execution, and that of pauses of any length, before the first of the rounds.
_EXPECTED: Final = 0.05
_ROUNDS: Final = 30
#: An execution's length is within this many standard deviations of its region's mean length.
_FARTHEST: Final = 3.0
#: The standard deviation of a normal distribution as a share of the distance between its quartiles.
_BY_QUARTILES: Final = 0.7413
#: Pauses are evaluated again when their number has grown by this factor.
_GROWTH: Final = 1.25
#: Windows per unknown that a family's bound needs.
_WINDOWS_PER_UNKNOWN: Final = 4


class UnmarkedExecutions:
    """Pauses that contain an execution without a mark, and the errors of the shares of the regions that it may be of.

    A pause is an ordinary one, an execution between two usual ones, or of any length. The logarithms of the lengths of
    a region's executions are normal, and so are the cube roots of ordinary pauses. Expectation maximisation over all
    pauses gives the parameters of the latter and the three shares. So pauses that any smooth distribution explains are
    no executions: waits of a host, pauses at a loop's end.
    """

    def __init__(self) -> None:
        #: By column: the number of executions, and the sums of their lengths' logarithms and of the squares.
        self._executions: Floats = np.zeros((3, 1))
        self._pauses = np.zeros(_CLASSES, np.uint32)
        #: By column: the expected sum of the squares of its missing executions' lengths per time, in ns.
        self._squares: Floats = np.zeros(1)
        #: By column: the expected time of its missing executions, as a share of the time of all pauses.
        self.shares: Floats = np.zeros(1)
        self._evaluated, self._elapsed_ns = 0.0, 0
        #: The expected number of executions without a mark, as of the last evaluation.
        self.count = 0.0
        #: By leading signal: its number of windows, and for each possible timing the steady rates by column, and by how
        #: much the rate outside regions may exceed its own.
        self._outside: dict[Signal, tuple[int, list[tuple[Floats, float]]]] = {}

    def take(self, pauses: Ints, lengths: Floats, columns: Ints, elapsed_ns: int) -> None:
        """Add a slice of time: its pauses, and the lengths of its executions in ns with the column of each."""
        self._elapsed_ns += elapsed_ns
        count = max(self._executions.shape[1], int(columns.max(initial=0)) + 1)
        self._executions = np.pad(self._executions, ((0, 0), (0, count - self._executions.shape[1])))
        logs = np.log(np.maximum(lengths, _LEAST_NS))
        self._executions += [np.bincount(columns, weights, count) for weights in (None, logs, logs**2)]
        octaves = np.log2(np.maximum(pauses, _LEAST_NS) / _LEAST_NS)
        classes = np.minimum((_PER_OCTAVE * octaves).astype(np.int64), _CLASSES - 1)
        self._pauses += np.bincount(classes, minlength=_CLASSES).astype(np.uint32)

    @property
    def squares(self) -> Floats:
        """By column: the expected sum of the squares of its missing executions' lengths per time, in ns."""
        if self._pauses.sum() > _GROWTH * self._evaluated:
            self._evaluate()
        return self._squares

    def _evaluate(self) -> None:
        n, executions = self._pauses.astype(np.float64), self._executions[0]
        self._evaluated = float(n.sum())
        low, usual, high = _LENGTHS[n.cumsum().searchsorted(np.array((0.25, 0.5, 0.75)) * self._evaluated)]
        regions = np.flatnonzero(executions > 1)
        likely = self._with_executions(regions, usual, _BY_QUARTILES * (high - low))
        either, chances = likely.sum(axis=1), np.zeros((2, _CLASSES))
        # Pauses longer than any execution are no sample of the ordinary ones.
        sampled = np.where(np.maximum(high, _LENGTHS[either > 0].max(initial=0.0)) < _LENGTHS, 0.0, n)
        densities, shares = np.stack((either, np.full(_CLASSES, _ANY))), np.full(2, _EXPECTED)
        for _ in range(_ROUNDS):
            mean, variance = _moments(_POWERS @ (sampled * (1 - chances.sum(axis=0))))
            variance += _WITHIN * mean**2 / 9
            ordinary = np.exp(-((_ROOTS - mean) ** 2) / (2 * variance)) / math.sqrt(variance) * _ROOTS / 3
            parts = shares[:, None] * densities
            chances = parts / np.maximum(parts.sum(axis=0) + (1 - shares.sum()) * ordinary, 1e-300)
            shares = chances @ n / self._evaluated
        self.count, inside = float(n @ chances[0]), np.maximum(_LENGTHS - 2 * usual, 0.0)
        self._squares, self.shares = np.zeros((2, len(executions)))
        times = n * chances[0] * inside / np.maximum(either, 1e-300)
        self._squares[regions] = (times * inside) @ likely / max(1, self._elapsed_ns)
        self.shares[regions] = times @ likely / float(n @ _LENGTHS)

    def _with_executions(self, regions: Ints, usual_ns: float, spread_ns: float) -> Floats:
        """The densities of logarithms of pauses with an execution of each region, each times its share of executions.

        The others in such a pause are usual: `usual_ns` with standard deviation `spread_ns`. The sum is log-normal with
        the right mean and variance."""
        n = self._executions[0, regions]
        means, variances = _moments(self._executions[:, regions])
        lengths = np.exp(means + (variances + _WITHIN) / 2)
        sums = lengths + 2 * usual_ns
        variances = np.log1p((lengths**2 * np.expm1(variances + _WITHIN) + 2 * spread_ns**2) / sums**2) + _WITHIN
        far = (_LOGS[:, None] - np.log(sums) + variances / 2) ** 2 / variances
        # An execution between two pauses makes none that is shorter than the usual one.
        possible = (far < _FARTHEST**2) & (usual_ns < _LENGTHS)[:, None]
        densities: Floats = possible * np.exp(-far / 2) / np.sqrt(variances) * n / max(1.0, float(n.sum()))
        return densities

    def bound_by(self, lead: Signal, equations: Equations, others: Sequence[Floats], cut_off: float) -> None:
        """Bound the share of executions without a mark by a family's rates outside regions.

        The work of such an execution is in the windows of every sensor: a GPU that is not busy in pauses runs none
        there, whatever power it draws. `others` are the steady rates by column under each other timing that the windows
        do not rule out. Readings omit up to `cut_off`.
        """
        n = equations.n
        before, timings = self._outside.get(lead, (0, []))
        enough = n >= _WINDOWS_PER_UNKNOWN * equations.columns
        if not enough or (before <= n < _GROWTH * before and len(timings) == 1 + len(others)):
            return
        rates, doubt = steady_rates(equations.steady())
        self._outside[lead] = n, [(each, Z95 * doubt + cut_off) for each in (rates, *others)]

    @property
    def elsewhere(self) -> float:
        """The largest share of these executions that the windows of all sensors allow."""
        shares = (max(share_outside(self.shares, *each) for each in timings) for _, timings in self._outside.values())
        return min(shares, default=1.0)

    def merge(self, column: int, into: int) -> None:
        """Merge a column into another."""
        self._outside.clear()  # the rates are by column
        if max(column, into) < len(self._squares):
            for sums in (self._squares, self.shares):
                sums[into] += sums[column]
                sums[column] = 0.0
        if column < self._executions.shape[1]:
            self._executions[:, column] = 0.0


def steady_rates(sums: NormalEquations) -> tuple[Floats, float]:
    """The steady rates by column that solve the equations, and the standard error of the first one."""
    gram, moment, square, n, _ = sums
    rates = np.linalg.lstsq(gram, moment, rcond=None)[0].astype(np.float64)
    left = max(square - float(rates @ moment), 1e-300)
    # The variance is negative by rounding if all windows have the same shares.
    return rates, math.sqrt(max(0.0, left / n * float(np.linalg.pinv(gram, hermitian=True)[0, 0])))


def share_outside(pausing: Floats, rates: Floats, doubt: float) -> float:
    """The share of the executions without a mark, with shares `pausing` of the time outside regions, that these rates
    allow. `doubt` may be added to the rate outside regions."""
    count = min(len(pausing), len(rates))
    work = float(pausing[:count] @ np.maximum(rates[:count], 0.0))
    return min(1.0, (max(0.0, float(rates[0])) + doubt) / max(work, 1e-300)) if pausing.any() else 1.0


def _moments(sums: Floats) -> tuple[Floats, Floats]:
    """Means and variances by the numbers of values, their sums, and the sums of squares."""
    n, total, squares = sums
    least = np.maximum(n, 1e-300)
    means = total / least
    return means, np.maximum(0.0, squares / least - means**2)
