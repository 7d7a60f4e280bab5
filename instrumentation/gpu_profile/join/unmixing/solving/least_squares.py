"""Least squares within bounds, from normal equations: for many problems at once, or for one. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats

#: The relative slope that counts as 0 at a minimum, and the most rounds of exchanges.
_FLAT: Final = 1e-10
_PIVOTS: Final = 8
#: A ridge, as a share of the largest square: of all equally good solutions, it selects the one with the smallest rates.
_RIDGE: Final = 1e-12


def least_of_each(gram: Floats, moment: Floats, most: float) -> list[Floats]:
    """Minimise `x'Gx - 2x'm` over 0 <= x <= most for each of several `gram[problems, unknowns, unknowns]` and
    `moment[problems, unknowns]` at once, by exchanging whole sets of unknowns at a bound.

    Each round fixes unknowns beyond a bound at it, and frees fixed ones whose slope leads inside (block principal
    pivoting: Júdice and Pires, Computers & Operations Research 21 (1994), 587). A problem without further exchanges is
    at its minimum, by the conditions of Karush, Kuhn and Tucker. The others are solved one by one.
    """
    every, flat = np.arange(moment.shape[1]), _FLAT * np.maximum(1.0, np.abs(moment))
    # Columns that were never active stay 0.
    never = gram[:, every, every] <= 0
    low = high = np.zeros_like(never)
    ridge = _RIDGE * gram[:, every, every].max(axis=1, keepdims=True, initial=0.0)
    try:
        for _ in range(_PIVOTS):
            fixed_at, fixed = never | low | high, np.where(high, most, 0.0)
            left = gram * ~(fixed_at[:, :, None] | fixed_at[:, None, :])
            left[:, every, every] += np.where(fixed_at, 1.0, ridge)
            right = moment - (gram @ fixed[:, :, None])[:, :, 0]
            solutions = np.linalg.solve(left, np.where(fixed_at, fixed, right)[:, :, None])[:, :, 0]
            slopes = moment - (gram @ solutions[:, :, None])[:, :, 0]
            below, above = ~fixed_at & (solutions < 0), ~fixed_at & (solutions > most)
            up, down = low & (slopes > flat), high & (slopes < -flat)
            wrong = np.asarray((below | above | up | down).any(axis=1))
            if not wrong.any():
                break
            low, high = low & ~up | below, high & ~down | above
    except np.linalg.LinAlgError:
        wrong, solutions = np.ones(len(gram), bool), moment
    return [
        bounded(one_gram, one_moment, most) if bad else rates
        for one_gram, one_moment, rates, bad in zip(gram, moment, solutions, wrong, strict=True)
    ]


def bounded(gram: Floats, moment: Floats, most: float) -> Floats:
    """Minimise `x'Gx - 2x'm` over 0 <= x <= most: unknowns above the bound are fixed at `most`, the worst first.

    They stay fixed. The result is exact for mixtures of rates within the bounds, and near the minimum otherwise.
    """
    x = nnls(gram, moment)
    held = np.zeros(len(x), bool)
    while (x > most).any():
        held[np.argmax(np.where(held, -np.inf, x))] = True
        free = ~held
        x = np.where(held, most, 0.0)
        x[free] = nnls(gram[np.ix_(free, free)], moment[free] - gram[np.ix_(free, held)] @ x[held])
    return x


def nnls(gram: Floats, moment: Floats) -> Floats:
    """Minimise `x'Gx - 2x'm` over x >= 0 by active sets.

    Lawson and Hanson, *Solving Least Squares Problems*, 1974, ch. 23. `gram` is symmetric and positive
    semi-definite. Columns that were never active stay 0.
    """
    k = len(moment)
    x = np.zeros(k)
    free = np.zeros(k, bool)
    usable = np.diag(gram) > 0
    if usable.any():
        # Mostly no unknown is at 0, and one solve suffices.
        x[usable] = np.linalg.lstsq(gram[np.ix_(usable, usable)], moment[usable], rcond=None)[0]
        if (x >= 0).all():
            return x
        x = np.zeros(k)
    tolerance = _FLAT * max(1.0, float(np.abs(moment).max(initial=0.0)))
    for _ in range(3 * k + 10):
        gradient = moment - gram @ x
        candidates = usable & ~free & (gradient > tolerance)
        if not candidates.any():
            break
        free[np.argmax(np.where(candidates, gradient, -np.inf))] = True
        while True:
            index = np.nonzero(free)[0]
            trial = np.zeros(k)
            trial[index] = np.linalg.lstsq(gram[np.ix_(index, index)], moment[index], rcond=None)[0]
            below = free & (trial <= 0)
            if not below.any():
                x = trial
                break
            steps = x[below] / (x[below] - trial[below] + 1e-300)
            x = x + float(steps.min()) * (trial - x)
            free &= x > 1e-12 * max(1.0, float(np.abs(x).max(initial=0.0)))
            x[~free] = 0.0
            if not free.any():
                break
    return x
