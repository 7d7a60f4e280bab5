"""Least squares within bounds, from normal equations: of many problems at once, or of one. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats

#: A minimum is flat to this share of the moments; it is looked for in so many rounds at once.
_FLAT: Final = 1e-10
_PIVOTS: Final = 8
#: So much of the largest square is added to each: of all that fits alike, the smallest rates are the solution.
_RIDGE: Final = 1e-12


def least_of_each(gram: Floats, moment: Floats, most: float) -> list[Floats]:
    """Minimise `x'Gx - 2x'm` over 0 <= x <= most for each of several `gram[problems, unknowns, unknowns]` and
    `moment[problems, unknowns]`: at once, by exchanging whole sets of unknowns that are held at a bound.

    In each round, unknowns beyond a bound are held there, and those that are held against their slope are let go (block
    principal pivoting: Júdice and Pires, Computers & Operations Research 21 (1994), 587). What needs no exchange any
    more is the minimum, by the conditions of Karush, Kuhn and Tucker; others are solved one by one.
    """
    every, flat = np.arange(moment.shape[1]), _FLAT * np.maximum(1.0, np.abs(moment))
    # Columns that were never active stay 0.
    never = gram[:, every, every] <= 0
    low = high = np.zeros_like(never)
    ridge = _RIDGE * gram[:, every, every].max(axis=1, keepdims=True, initial=0.0)
    try:
        for _ in range(_PIVOTS):
            held, fixed = never | low | high, np.where(high, most, 0.0)
            left = gram * ~(held[:, :, None] | held[:, None, :])
            left[:, every, every] += np.where(held, 1.0, ridge)
            right = moment - (gram @ fixed[:, :, None])[:, :, 0]
            found = np.linalg.solve(left, np.where(held, fixed, right)[:, :, None])[:, :, 0]
            slopes = moment - (gram @ found[:, :, None])[:, :, 0]
            below, above = ~held & (found < 0), ~held & (found > most)
            up, down = low & (slopes > flat), high & (slopes < -flat)
            wrong = np.asarray((below | above | up | down).any(axis=1))
            if not wrong.any():
                break
            low, high = low & ~up | below, high & ~down | above
    except np.linalg.LinAlgError:
        wrong, found = np.ones(len(gram), bool), moment
    return [
        bounded(one_gram, one_moment, most) if bad else rates
        for one_gram, one_moment, rates, bad in zip(gram, moment, found, wrong, strict=True)
    ]


def bounded(gram: Floats, moment: Floats, most: float) -> Floats:
    """Minimise `x'Gx - 2x'm` over 0 <= x <= most: what comes out above is held at `most`, the worst first.

    What is held is not let go again: the minimum for mixtures of rates within the bounds, near it where data defy them.
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
        # Mostly nothing has to be held at 0, and one solve is all it takes.
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
