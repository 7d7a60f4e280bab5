"""Least squares within bounds, from normal equations. Pure.

Active sets after Lawson and Hanson, *Solving Least Squares Problems*, 1974, ch. 23.
"""

from __future__ import annotations

import numpy as np

from gpu_profile.history.timeline import Floats


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

    `gram` is symmetric and positive semi-definite. Columns that were never active stay 0.
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
    tolerance = 1e-10 * max(1.0, float(np.abs(moment).max(initial=0.0)))
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
