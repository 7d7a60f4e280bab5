"""The prices of terms, from windows of energy and from durations, and how far each may be off. Pure."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.rate import Z95, t95
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN, changes_without, shrink
from gpu_profile.join.unmixing.solving.unmix import WINDOWS_PER_RATE
from gpu_profile.serving.pricing.seen_work import SeenWork
from gpu_profile.serving.pricing.terms import DURATION, GROUPS, TERMS

#: No half-width is below this share of its value: terms approximate the cost of an iteration.
LEAST_WIDTH: Final = 0.005
#: Up to this share of a window, time outside iterations has no energy of its own if its power is unclear.
LITTLE: Final = 0.01
_FEWEST_BLOCKS: Final = 6
#: The power outside iterations is clear from this half-width on, as a share of it.
_OUTSIDE_WIDTH: Final = 0.1
#: A price of time this many standard errors below 0 is none by chance.
_SURELY: Final = 4.0
_RIDGE: Final = 1e-9
#: The places of the groups' terms among the unknowns.
_PLACES: Final = {group: places + 1 for group, places in GROUPS.items()}
#: The latest iterations, which show whether others than the predicted ones run now, as of another language model. If
#: so, old iterations fade over more.
#: Above the first misfit, old iterations fade. Durations are unusual from the second one on, until it is below the
#: first one: a busy host stretches iterations by some 10 %.
_RECENT, _FADING, _STALE, _UNUSUAL = 500, 2000, 0.1, 0.15
#: An iteration counts as so many times as long as predicted at most, or as short.
_LONGEST: Final = 2.0
#: Iterations from which durations are predicted.
_LEARNED: Final = 500


def enough(equations: Equations) -> bool:
    """Whether there are enough windows for any price."""
    return equations.n >= WINDOWS_PER_RATE * len(equations.total)


def solution_of(equations: Equations) -> Floats:
    """The prices of the equations as in `Prices`, without their intervals."""
    return shrink(_sums(equations), _PLACES).solution


def _sums(equations: Equations) -> NormalEquations:
    """The normal equations of the energy."""
    square, moment = float(equations.square[0]), equations.moment[:, 0]
    return NormalEquations(equations.gram, moment, square, equations.n, equations.mean(0))


class Prices:
    """Prices per unit of each unknown: power outside iterations in W, and then the terms' in J.

    `offsets[alternatives, 1 + TERMS]` are the changes of the prices under each other model that windows do not rule
    out.
    """

    def __init__(self, equations: Equations, lag_offsets: Floats) -> None:
        #: Whether there are enough windows for any price.
        self.enough = enough(equations)
        sums = _sums(equations)
        posterior = shrink(sums, _PLACES)
        self.solution, self.covariance, self.noise = posterior.solution, posterior.covariance, posterior.noise
        self.variances = posterior.variances
        simpler = changes_without([(places, CERTAIN) for places in _PLACES.values()], posterior, sums, _PLACES)
        self.offsets: Floats = np.concatenate((lag_offsets, simpler))
        # Of the terms alone, without the power outside iterations.
        self._scores = self._clustered(equations)[:, 1:]
        self._covariance, self._offsets = self.covariance[1:, 1:], self.offsets[:, 1:]

    def _clustered(self, equations: Equations) -> Floats:
        """By how much each block of windows moves the solution: covers errors that neighbouring windows share."""
        equations.refer(self.solution[:, None], equations.seen)
        apart = equations.blocks()[:, :, 0]
        if len(apart) < _FEWEST_BLOCKS or not 0 < self.noise < math.inf:
            return np.zeros((0, len(self.solution)))
        scores: Floats = apart @ self.covariance * (math.sqrt(len(apart) / (len(apart) - 1)) / self.noise)
        return scores

    @property
    def outside_w(self) -> float:
        """The power outside iterations in W."""
        return max(0.0, float(self.solution[0]))

    @property
    def outside_is_clear(self) -> bool:
        """Whether windows show the power outside iterations: an engine may not have been idle so far."""
        return 0 < Z95 * math.sqrt(max(0.0, float(self.covariance[0, 0]))) < _OUTSIDE_WIDTH * self.outside_w

    @property
    def clocks_changed(self) -> bool:
        """Whether windows show that longer iterations with the same work cost less: other clocks, as after a change of
        the power limit. Then no constant prices explain both, although a negative price of time seems to."""
        error = math.sqrt(max(0.0, float(self._covariance[DURATION, DURATION])))
        others = float(np.abs(self._offsets[:, DURATION]).max(initial=0.0))
        return self.enough and float(self.solution[1 + DURATION]) + _SURELY * error + others < 0

    def half_widths(self, terms: Floats, joules: Floats) -> Floats:
        """The half-widths of the energies of sums of terms, `terms[n, TERMS]`, in J: `[n]`."""
        drawn = Z95 * np.sqrt(np.maximum(0.0, (terms @ self._covariance * terms).sum(axis=1)))
        if blocks := len(self._scores):
            moved = terms @ self._scores.T
            drawn = np.maximum(drawn, t95(blocks - 1) * np.sqrt((moved**2).sum(axis=1)))
        others = np.abs(terms @ self._offsets.T).max(axis=1, initial=0.0)
        result: Floats = np.maximum(drawn + others, LEAST_WIDTH * np.abs(joules))
        return result


class DurationModel:
    """Predicts the duration of an iteration from its other terms, from sums over the iterations so far."""

    def __init__(self) -> None:
        self.n = 0
        #: Whether the misfit counts.
        self.unusual = False
        #: Over the latest iterations: s beyond the predicted ones, and s.
        self._recent: Floats = np.zeros(2)
        self._gram: Floats = np.zeros((TERMS, TERMS))
        self._moment: Floats = np.zeros(TERMS)
        self._prices: Floats | None = None

    def add(self, values: Floats, seconds: Floats, scales: Floats) -> None:
        """Add iterations with these terms, `values[n, TERMS]` in units of `scales`, and durations in s."""
        if not len(values):
            return
        values = values.copy()
        values[:, DURATION] = 0.0
        if self.n >= _LEARNED:
            tested = SeenWork(self._gram, self.n, scales).tests(values)
            usual_s = np.maximum(values[tested] @ self.prices, 0.0)
            # A single iteration that a host stopped for a second shows nothing about the others.
            some_s = np.clip(seconds[tested], usual_s / _LONGEST, usual_s * _LONGEST)
            self._recent *= math.exp(-len(some_s) / _RECENT)
            self._recent += [float((some_s - usual_s).sum()), float(some_s.sum())]
            self.unusual = self.misfit > (_STALE if self.unusual else _UNUSUAL)
            if self.misfit > _STALE:
                fade = math.exp(-len(values) / _FADING)
                self._gram, self._moment = self._gram * fade, self._moment * fade
        self.n += len(values)
        self._gram += values.T @ values
        self._moment += values.T @ seconds
        self._prices = None

    @property
    def misfit(self) -> float:
        """By how much the latest iterations took longer or less long than predicted, as a share of their time."""
        return abs(float(self._recent[0])) / max(float(self._recent[1]), 1e-9)

    @property
    def prices(self) -> Floats:
        """Seconds per unit of each term: `[TERMS]`. 0 before the first iteration."""
        if self._prices is None:
            self._prices = self._solved()
        return self._prices

    def _solved(self) -> Floats:
        size = np.sqrt(self._gram.diagonal())
        used = size > 0
        result = np.zeros(TERMS)
        if used.any():
            scale = size[used]
            gram = self._gram[np.ix_(used, used)] / scale[:, None] / scale + _RIDGE * np.eye(len(scale))
            result[used] = np.linalg.solve(gram, self._moment[used] / scale) / scale
        return result
