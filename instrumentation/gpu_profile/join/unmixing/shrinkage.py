"""Least squares in which groups of unknowns are shrunk towards zero as far as the data allow. Pure.

Each group's unknowns are taken for draws from a normal distribution around 0 whose variance is found from the data: the
evidence is maximised by MacKay's fixed point (*Bayesian interpolation*, Neural Computation 4 (1992), 415, eq. 4.11).
A group that the data do not call for ends with a variance of next to nothing, as if it were not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.probes import ProbeGroup

#: Of two models, one is ruled out by the windows if its evidence is so much worse (twice a natural logarithm).
CERTAIN: Final = 20.0
_ROUNDS: Final = 40
#: What a rate varies by has no larger standard deviation than this many times the mean of the signal: the slope of a
#: region that works in its first third alone is twice its rate.
_LARGEST: Final = 2.0
#: The fixed point has been reached if no variance moves by more than this share.
_STEADY: Final = 0.01
#: A variance that keeps rising or falling moves further each time, in its logarithm: by so many times more than before,
#: at most by so many times what the fixed point says, of which no more than that counts.
_LONGER: Final = 1.5
_LONGEST: Final = 6.0
_FARTHEST: Final = 20.0
#: A direction with less than this share of the strongest one's strength is rounding.
_ROUNDING: Final = 1e-11
_TINY: Final = 1e-300
#: Eigenvalues below this share of the largest, for each unknown, are rounding: as `numpy.linalg.lstsq` takes them.
_EPSILON: Final = float(np.finfo(np.float64).eps)
#: What is held at 0, as a multiple of what the windows say of it.
_HELD: Final = 1e12


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """A solution, the covariance of its errors, the variance of one window's error, and that of each group's unknowns.

    Of unknowns that no window had, the solution and the covariance are 0. `evidence` is minus twice the logarithm of
    how likely the values are under all solutions, but for a constant (MacKay, eq. 4.8): the less, the better.
    """

    solution: Floats
    covariance: Floats
    noise: float
    variances: Mapping[ProbeGroup, float]
    evidence: float
    #: By the places of some unknowns: those that are known at all, and the root of the inverse of their covariance.
    _roots: dict[tuple[int, ...], tuple[Ints, Floats]] = field(default_factory=dict, init=False, repr=False)

    def due_to(self, places: Ints, along: Floats) -> float:
        """The part of the variance in a direction that would be gone if the unknowns at `places` were known; `along` is
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
    gram: Floats, moment: Floats, square: float, n: int, groups: Mapping[ProbeGroup, Ints],
    mean: float, start: Mapping[ProbeGroup, float] | None = None, least: float = 0.0,
) -> Posterior:  # fmt: skip
    """Solve the normal equations of `n` rows, whose values are `mean` on average and whose squares add up to `square`.

    `groups` are the places of the unknowns that are shrunk, `start` variances to begin with. The noise is held to be
    no less than `least`.
    """
    used = np.diag(gram) > 0
    own = {group: places[used[places]] for group, places in groups.items() if used[places].any()}
    # The unknowns that are shrunk come first, group by group, and then the free ones.
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

    # The unknowns of a group are rates of one kind and have one variance, however strongly the windows show each. To
    # begin with, it explains a tenth of the noise.
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
        # Never less than rounding: where nothing is noise, two columns that are alike would be one equation.
        each = np.maximum(np.repeat(variances, sizes) * strength, _TINY)
        precision[:m] = _within(noise / each, _ROUNDING, _HELD)
        whole[...] = inner
        diagonal += precision
        inverse = np.linalg.inv(whole).astype(np.float64, copy=False)
        solution = inverse @ right
        told = sizes - np.add.reduceat(precision[:m] * inverse.diagonal()[:m], starts)
        squares = np.add.reduceat(solution[:m] ** 2 / strength, starts)
        new = _within(squares / np.maximum(told, 1e-6), _TINY, most)
        matters = told * squares * strengths > 1e-6 * noise * sizes
        moved = float(np.abs(new / variances - 1).max(where=matters, initial=0.0))
        step, before = _within(np.log(new) - np.log(variances), -_FARTHEST, _FARTHEST), step
        stride = np.where(step * before > 0, np.minimum(stride * _LONGER, _LONGEST), 1.0)
        variances = _within(new * np.exp((stride - 1) * step), _TINY, most)
        left = float(square - 2 * solution @ right + solution @ inner @ solution)
        old, noise = noise, max(floor, left / max(1.0, n - free - float(np.maximum(told, 0.0).sum())))
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
    places: Ints, found: Posterior, gram: Floats, moment: Floats, square: float, n: int,
    groups: Mapping[ProbeGroup, Ints], mean: float, certain: float = CERTAIN, least: float = 0.0,
) -> Posterior:  # fmt: skip
    """What `shrink` finds if the unknowns at `places` are 0; `found`, what it found with them, if they are 0 there too
    or the windows rule it out: by an evidence of `certain`. The other arguments are those of `shrink`."""
    if not found.solution[places].any():
        return found
    other = shrink(omitted(places, gram), moment, square, n, groups, mean, found.variances, least)
    return other if other.evidence - found.evidence < certain else found


def omitted(places: Ints, gram: Floats) -> Floats:
    """The sums of products without some unknowns."""
    gram = gram.copy()
    gram[places], gram[:, places] = 0.0, 0.0
    return gram


def _within(values: Floats, low: float, high: float | Floats) -> Floats:
    """What `np.clip` does, for few values in a fraction of its time."""
    result: Floats = np.minimum(np.maximum(values, low), high)
    return result


def _left(gram: Floats, moment: Floats, square: float) -> float:
    """The sum of squares that no solution explains."""
    if not len(gram):
        return square
    return float(square - np.linalg.solve(gram + _ROUNDING * np.eye(len(gram)), moment) @ moment)
