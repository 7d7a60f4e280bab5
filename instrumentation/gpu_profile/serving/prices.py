"""The prices of terms, from windows of energy and from durations, and how far each may be off. Pure."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.equations import Equations
from gpu_profile.join.unmixing.shrinkage import shrink, shrink_without
from gpu_profile.join.unmixing.unmix import WINDOWS_PER_RATE, Z95, t95
from gpu_profile.serving.terms import DURATION, GROUPS, TERMS

#: No half-width is below this share of its value: terms approximate the cost of an iteration.
LEAST_WIDTH: Final = 0.005
_FEWEST_BLOCKS: Final = 6
_RIDGE: Final = 1e-9


class Prices:
    """Prices per unit of each unknown: power outside iterations in W, and then the terms' in J.

    `offsets[alternatives, 1 + TERMS]` are the changes of the prices under each other model that windows do not rule
    out.
    """

    def __init__(self, equations: Equations, lag_offsets: Floats) -> None:
        self.n = equations.n
        square, mean = float(equations.square[0]), abs(float(equations.sum[0])) / max(1, equations.n)
        groups = {group: places + 1 for group, places in GROUPS.items()}
        sums = equations.gram, equations.moment[:, 0], square, equations.n
        posterior = shrink(*sums, groups, mean)
        self.solution, self.covariance, self.noise = posterior.solution, posterior.covariance, posterior.noise
        self.variances = posterior.variances
        simpler = [shrink_without(places, posterior, *sums, groups, mean) for places in groups.values()]
        self.offsets: Floats = np.concatenate((
            lag_offsets, np.array([other.solution - self.solution for other in simpler]).reshape(-1, len(self.solution))
        ))  # fmt: skip
        self._scores = self._clustered(equations)

    def _clustered(self, equations: Equations) -> Floats:
        """By how much each block of windows moves the solution: covers errors that neighbouring windows share."""
        equations.refer(self.solution[:, None], equations.seen)
        sums = equations.blocks()[:, :, 0]
        if len(sums) < _FEWEST_BLOCKS or not 0 < self.noise < math.inf:
            return np.zeros((0, len(self.solution)))
        scores: Floats = sums @ self.covariance / self.noise
        apart: Floats = (scores - scores.mean(axis=0)) * math.sqrt(len(sums) / (len(sums) - 1))
        return apart

    @property
    def enough(self) -> bool:
        """Whether there are enough windows for any price."""
        return self.n >= WINDOWS_PER_RATE * len(self.solution)

    @property
    def outside_w(self) -> float:
        """The power outside iterations in W."""
        return max(0.0, float(self.solution[0]))

    def half_widths(self, terms: Floats, joules: Floats) -> Floats:
        """The half-widths of the energy of several sums of terms, `terms[rows, TERMS]`, in J."""
        along = np.column_stack((np.zeros(len(terms)), terms))
        drawn = Z95 * np.sqrt(np.maximum(np.einsum("rk,kl,rl->r", along, self.covariance, along), 0.0))
        if blocks := len(self._scores):
            drawn = np.maximum(drawn, t95(blocks - 1) * np.sqrt(((along @ self._scores.T) ** 2).sum(axis=1)))
        others = np.abs(along @ self.offsets.T).max(axis=1, initial=0.0)
        result: Floats = np.maximum(drawn + others, LEAST_WIDTH * np.abs(joules))
        return result


class DurationModel:
    """Predicts the duration of an iteration from its other terms, from sums over all iterations so far."""

    def __init__(self) -> None:
        self.n = 0
        self._gram: Floats = np.zeros((TERMS, TERMS))
        self._moment: Floats = np.zeros(TERMS)

    def add(self, values: Floats, seconds: Floats) -> None:
        """Add iterations with these terms, `values[n, TERMS]`, and durations in s."""
        values = values.copy()
        values[:, DURATION] = 0.0
        self.n += len(values)
        self._gram += values.T @ values
        self._moment += values.T @ seconds

    @property
    def prices(self) -> Floats:
        """Seconds per unit of each term: `[TERMS]`. 0 before the first iteration."""
        size = np.sqrt(self._gram.diagonal())
        used = size > 0
        result = np.zeros(TERMS)
        if used.any():
            scale = size[used]
            gram = self._gram[np.ix_(used, used)] / scale[:, None] / scale + _RIDGE * np.eye(len(scale))
            result[used] = np.linalg.solve(gram, self._moment[used] / scale) / scale
        return result
