"""Least squares that shrinks groups of unknowns towards zero as far as the data allow. Pure.

Each group's unknowns are treated as draws from a normal distribution around 0. Its variance is estimated from the data:
MacKay's fixed point maximises the evidence (*Bayesian interpolation*, Neural Computation 4 (1992), 415, eq. 4.11).
A group without support in the data gets a variance of nearly 0, as if it were absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
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
    gram: Floats, moment: Floats, square: float, n: int, groups: Mapping[Group, Ints],
    mean: float, start: Mapping[Group, float] | None = None, least: float = 0.0,
) -> Posterior:  # fmt: skip
    """Solve the normal equations of `n` rows whose values have this `mean` and whose squares add up to `square`.

    `groups` gives the places of the unknowns to shrink, and `start` the variances to begin with. The noise is at least
    `least`.
    """
    used = np.diag(gram) > 0
    own = {group: places[used[places]] for group, places in groups.items() if used[places].any()}
    # The shrunk unknowns come first, group by group, and then the free ones.
    shrunk = np.concatenate([*own.values(), np.zeros(0, np.int64)])
    rest = used.copy()
    rest[shrunk] = False
    kept, m, free = np.concatenate((shrunk, np.flatnonzero(rest))), len(shrunk), int(rest.sum())
    inner = gram[kept[:, None], kept]
    scale = 1 / np.sqrt(inner.diagonal())
    inner *= scale[:, None]
    inner *= scale
    right = moment[kept] * scale
    sizes = np.array([len(each) for each in own.values()], np.int64)
    starts = np.cumsum(sizes) - sizes
    floor = max(_TINY, 1e-12 * square / max(n, 1), least)
    noise = max(floor, _left(inner[m:, m:], right[m:], square) / max(1, n - free))

    # The unknowns of a group are rates of one kind and share one variance, however strongly the windows determine each.
    # The start value explains a tenth of the noise.
    strength = 1 / scale[:m] ** 2
    strengths = np.add.reduceat(strength, starts)
    given = np.array([(start or {}).get(group, 0.0) for group in own])
    most = np.array([1 / _TINY if group is ProbeGroup.TIMING else max(_TINY, (_LARGEST * mean) ** 2) for group in own])
    variances = _within(np.where(given > 0, given, 0.1 * noise * n / strengths), _TINY, most)
    precision = np.full(len(kept), _ROUNDING)
    step, stride = np.zeros(len(own)), np.ones(len(own))
    whole = np.empty_like(inner)
    diagonal = whole.reshape(-1)[:: len(kept) + 1]
    for _ in range(_ROUNDS if own else 2):
        # Never below rounding: without noise, two equal columns would make the equations singular.
        each = np.maximum(np.repeat(variances, sizes) * strength, _TINY)
        precision[:m] = _within(noise / each, _ROUNDING, _HELD)
        whole[...] = inner
        diagonal += precision
        inverse = np.linalg.inv(whole).astype(np.float64, copy=False)
        solution = inverse @ right
        determined = sizes - np.add.reduceat(precision[:m] * inverse.diagonal()[:m], starts)
        squares = np.add.reduceat(solution[:m] ** 2 / strength, starts)
        new = _within(squares / np.maximum(determined, 1e-6), _TINY, most)
        matters = determined * squares * strengths > 1e-6 * noise * sizes
        moved = float(np.abs(new / variances - 1).max(where=matters, initial=0.0))
        step, before = _within(np.log(new) - np.log(variances), -_FARTHEST, _FARTHEST), step
        stride = np.where(step * before > 0, np.minimum(stride * _LONGER, _LONGEST), 1.0)
        variances = _within(new * np.exp((stride - 1) * step), _TINY, most)
        left = float(square - 2 * solution @ right + solution @ inner @ solution)
        old, noise = noise, max(floor, left / max(1.0, n - free - float(np.maximum(determined, 0.0).sum())))
        if max(moved, abs(noise / old - 1)) < _STEADY:
            break
    penalty = float(precision @ solution**2)
    evidence = n * np.log(noise) + (left + penalty) / noise - float(np.linalg.slogdet(inverse)[1])
    evidence -= float(np.log(precision[:m]).sum())
    covariance = np.zeros((len(gram), len(gram)))
    covariance[kept[:, None], kept] = noise * inverse * scale[:, None] * scale
    result = np.zeros(len(gram))
    result[kept] = solution * scale
    return Posterior(result, covariance, noise, dict(zip(own, variances.tolist(), strict=True)), float(evidence))


def shrink_without(
    places: Ints, full: Posterior, gram: Floats, moment: Floats, square: float, n: int,
    groups: Mapping[Group, Ints], mean: float, certain: float = CERTAIN, least: float = 0.0,
) -> Posterior:  # fmt: skip
    """The result of `shrink` with the unknowns at `places` fixed at 0, or `full`, its result with them free: if they
    are 0 there too, or if the evidence of `full` is better by `certain`. The other arguments are passed to `shrink`."""
    if not full.solution[places].any():
        return full
    other = shrink(omitted(places, gram), moment, square, n, groups, mean, full.variances, least)
    return other if other.evidence - full.evidence < certain else full


def changes_without(
    some: Sequence[tuple[Ints, float]], full: Posterior, gram: Floats, moment: Floats, square: float, n: int,
    groups: Mapping[Group, Ints], mean: float, least: float = 0.0,
) -> Floats:  # fmt: skip
    """The changes of the solution without the unknowns at some places, each pair `(places, certain)` as in
    `shrink_without`: `[pairs, unknowns]`."""
    rest = gram, moment, square, n, groups, mean
    others = [shrink_without(places, full, *rest, certain, least) for places, certain in some]
    return np.array([other.solution - full.solution for other in others]).reshape(-1, len(gram))


def omitted(places: Ints, gram: Floats) -> Floats:
    """The sums of products without some unknowns."""
    gram = gram.copy()
    gram[places], gram[:, places] = 0.0, 0.0
    return gram


def _within(values: Floats, low: float, high: float | Floats) -> Floats:
    """Equals `np.clip`, at a fraction of its cost for few values."""
    result: Floats = np.minimum(np.maximum(values, low), high)
    return result


def _left(gram: Floats, moment: Floats, square: float) -> float:
    """The least sum of squared residuals of any solution."""
    if not len(gram):
        return square
    return float(square - np.linalg.solve(gram + _ROUNDING * np.eye(len(gram)), moment) @ moment)
