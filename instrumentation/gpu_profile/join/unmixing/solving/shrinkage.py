"""Least squares that shrinks groups of unknowns towards zero as far as the data allow. Pure.

Each group's unknowns are treated as draws from a normal distribution around 0. Its variance is estimated from the data:
MacKay's fixed point maximises the evidence (*Bayesian interpolation*, Neural Computation 4 (1992), 415, eq. 4.11).
A group without support in the data gets a variance of nearly 0, as if it were absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.windows.probes import ProbeGroup

#: A group of unknowns: `ProbeGroup`, or another enumeration.
Group = TypeVar("Group", bound=StrEnum)
#: Of two models, the one with the worse evidence is ruled out at this difference (twice a natural logarithm).
CERTAIN: Final = 20.0
_ROUNDS: Final = 40
#: The variation of a rate has at most this standard deviation, in means of the signal: the slope of a region that works
#: only in its first third is twice its rate.
_LARGEST: Final = 2.0
#: The fixed point is reached if no variance changes by more than this share.
_STEADY: Final = 0.01
#: A variance that keeps rising or falling takes longer steps in its logarithm: longer by this factor each time, up to
#: this multiple of the fixed point's step, which is itself clipped.
_LONGER: Final = 1.5
_LONGEST: Final = 6.0
_FARTHEST: Final = 20.0
#: A direction with less than this share of the strongest direction's strength is rounding.
_ROUNDING: Final = 1e-11
_TINY: Final = 1e-300
#: Eigenvalues below this share of the largest, times the number of unknowns, are rounding, as in `numpy.linalg.lstsq`.
_EPSILON: Final = float(np.finfo(np.float64).eps)
#: The highest prior precision of an unknown, as a multiple of the windows' information on it.
_HELD: Final = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """A solution, the covariance of its errors, the variance of one window's error, and each group's variance.

    The solution and the covariance are 0 for unknowns that occur in no window. `evidence` is minus twice the log
    likelihood of the values under all solutions, up to a constant (MacKay, eq. 4.8): less is better.
    """

    solution: Floats
    covariance: Floats
    noise: float
    variances: Mapping[Any, float]
    evidence: float
    #: By places of unknowns: the places with a variance, and the root of the inverse of their covariance.
    _roots: dict[tuple[int, ...], tuple[Ints, Floats]] = field(default_factory=dict, init=False, repr=False)

    def due_to(self, places: Ints, along: Floats) -> float:
        """The part of the variance in a direction that would vanish if the unknowns at `places` were given. `along` is
        the covariance of all unknowns with that direction."""
        key = tuple(places.tolist())
        if key not in self._roots:
            used = places[self.covariance[places, places] > 0]
            strengths, axes = np.linalg.eigh(self.covariance[used[:, None], used])
            strong = strengths > len(used) * _EPSILON * strengths.max(initial=0.0)
            self._roots[key] = used, axes[:, strong] / np.sqrt(strengths[strong])
        used, root = self._roots[key]
        part = along[used] @ root
        return float(part @ part)


def shrink(
    sums: NormalEquations, groups: Mapping[Group, Ints], start: Mapping[Group, float] | None = None, least: float = 0.0
) -> Posterior:
    """Solve normal equations, with groups of unknowns shrunk.

    `groups` gives the places of the unknowns to shrink, and `start` the variances to begin with. The noise is at least
    `least`.
    """
    ordered = _Ordered(sums, groups)
    floor = max(_TINY, 1e-12 * sums.square / max(sums.n, 1), least)
    noise = max(floor, ordered.left_by_free / max(1, sums.n - ordered.free))
    # The start value explains a tenth of the noise.
    given = np.array([(start or {}).get(group, 0.0) for group in ordered.groups])
    variances = ordered.possible(np.where(given > 0, given, 0.1 * noise * sums.n / ordered.strengths))
    pace = _Pace(len(variances))
    for _ in range(_ROUNDS if ordered.groups else 2):
        solved = ordered.solved(variances, noise)
        new = ordered.possible(solved.squares / np.maximum(solved.determined, 1e-6))
        matters = solved.determined * solved.squares * ordered.strengths > 1e-6 * noise * ordered.sizes
        moved = float(np.abs(new / variances - 1).max(where=matters, initial=0.0))
        variances = ordered.possible(pace.further(variances, new))
        determined = float(np.maximum(solved.determined, 0.0).sum())
        old, noise = noise, max(floor, solved.left / max(1.0, sums.n - ordered.free - determined))
        if max(moved, abs(noise / old - 1)) < _STEADY:
            break
    return ordered.posterior(solved, noise, variances)


class _Solved(NamedTuple):
    """A solution of `_Ordered` equations for given variances: the prior precision of each unknown, the inverse of the
    matrix, the sum of squared residuals. By group: how many unknowns the data determine, and the sum of squares."""

    solution: Floats
    precision: Floats
    inverse: Floats
    left: float
    determined: Floats
    squares: Floats


class _Ordered:
    """Normal equations of the unknowns that occur in a row: the shrunk ones first, group by group, then the `free`
    ones. Their columns are scaled to length 1.

    By group: its `sizes`, and the `strengths` of its unknowns, which are the squares of the columns' lengths.
    """

    def __init__(self, sums: NormalEquations, groups: Mapping[Any, Ints]) -> None:
        self._sums = sums
        used = np.diag(sums.gram) > 0
        self.groups = {group: places[used[places]] for group, places in groups.items() if used[places].any()}
        shrunk = np.concatenate([*self.groups.values(), np.zeros(0, np.int64)])
        rest = used.copy()
        rest[shrunk] = False
        self._shrunk, self.free = len(shrunk), int(rest.sum())
        self._places = np.concatenate((shrunk, np.flatnonzero(rest)))
        self._gram = sums.gram[self._places[:, None], self._places]
        self._scale = scale = 1 / np.sqrt(self._gram.diagonal())
        self._gram *= scale[:, None]
        self._gram *= scale
        self._moment = sums.moment[self._places] * scale
        self.sizes = np.array([len(each) for each in self.groups.values()], np.int64)
        self._starts = np.cumsum(self.sizes) - self.sizes
        self._strength = 1 / scale[: self._shrunk] ** 2
        self.strengths: Floats = np.add.reduceat(self._strength, self._starts)
        largest = max(_TINY, (_LARGEST * sums.mean) ** 2)
        self._most = np.array([1 / _TINY if group is ProbeGroup.TIMING else largest for group in self.groups])
        self._matrix = np.empty_like(self._gram)

    @property
    def left_by_free(self) -> float:
        """The sum of squared residuals without the shrunk unknowns."""
        gram, moment = self._gram[self._shrunk :, self._shrunk :], self._moment[self._shrunk :]
        if not len(gram):
            return self._sums.square
        return float(self._sums.square - np.linalg.solve(gram + _ROUNDING * np.eye(len(gram)), moment) @ moment)

    def possible(self, variances: Floats) -> Floats:
        """Variances by group, from almost 0 to the largest that rates have."""
        return _within(variances, _TINY, self._most)

    def solved(self, variances: Floats, noise: float) -> _Solved:
        """The solution with these variances by group, and with this variance of a row's error.

        The unknowns of a group are rates of one kind and share one variance, however strongly the windows determine
        each."""
        # Never below rounding: without noise, two equal columns would make the equations singular.
        explained = np.maximum(np.repeat(variances, self.sizes) * self._strength, _TINY)
        precision = np.full(len(self._places), _ROUNDING)
        precision[: self._shrunk] = _within(noise / explained, _ROUNDING, _HELD)
        self._matrix[...] = self._gram
        diagonal = self._matrix.reshape(-1)[:: len(precision) + 1]
        diagonal += precision
        inverse = np.linalg.inv(self._matrix).astype(np.float64, copy=False)
        solution, m = inverse @ self._moment, self._shrunk
        left = float(self._sums.square - 2 * solution @ self._moment + solution @ self._gram @ solution)
        open_ = np.add.reduceat(precision[:m] * inverse.diagonal()[:m], self._starts)
        squares = np.add.reduceat(solution[:m] ** 2 / self._strength, self._starts)
        return _Solved(solution, precision, inverse, left, np.subtract(self.sizes, open_), squares)

    def posterior(self, solved: _Solved, noise: float, variances: Floats) -> Posterior:
        """The result in the units and the order of the unknowns."""
        solution, precision, inverse, left, *_ = solved
        evidence = self._sums.n * np.log(noise) + (left + float(precision @ solution**2)) / noise
        evidence -= float(np.linalg.slogdet(inverse)[1])
        evidence -= float(np.log(precision[: self._shrunk]).sum())
        result, covariance = np.zeros(len(self._sums.moment)), np.zeros_like(self._sums.gram)
        result[self._places] = solution * self._scale
        covariance[self._places[:, None], self._places] = noise * inverse * self._scale[:, None] * self._scale
        of = dict(zip(self.groups, variances.tolist(), strict=True))
        return Posterior(result, covariance, noise, of, float(evidence))


class _Pace:
    """Lengthens the steps, in their logarithm, of variances that keep rising or falling."""

    def __init__(self, size: int) -> None:
        self._step, self._stride = np.zeros(size), np.ones(size)

    def further(self, old: Floats, new: Floats) -> Floats:
        """Values beyond `new`, the next ones of the fixed point after `old`."""
        step, before = _within(np.log(new) - np.log(old), -_FARTHEST, _FARTHEST), self._step
        self._stride = np.where(step * before > 0, np.minimum(self._stride * _LONGER, _LONGEST), 1.0)
        self._step = step
        further: Floats = new * np.exp((self._stride - 1) * step)
        return further


def changes_without(
    some: Sequence[tuple[Ints, float]], full: Posterior, sums: NormalEquations, groups: Mapping[Group, Ints],
    least: float = 0.0,
) -> Floats:  # fmt: skip
    """The changes of the solution if the unknowns at some places are 0: `[pairs, unknowns]`, by pair `(places,
    certain)`. There is none if `full`, the result of `shrink` with them, has an evidence that is better by `certain`.
    The other arguments are those of `shrink`."""
    changes = np.zeros((len(some), len(sums.moment)))
    for i, (places, certain) in enumerate(some):
        if full.solution[places].any():
            other = shrink(sums.without(places), groups, full.variances, least)
            if other.evidence - full.evidence < certain:
                changes[i] = other.solution - full.solution
    return changes


def _within(values: Floats, low: float, high: float | Floats) -> Floats:
    """Equals `np.clip`, at a fraction of its cost for few values."""
    result: Floats = np.minimum(np.maximum(values, low), high)
    return result
