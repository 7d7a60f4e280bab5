"""Least squares within bounds, from normal equations: for many problems at once, or for one. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats

#: The relative slope that counts as 0 at a minimum, and the most rounds of exchanges of sets.
_FLAT: Final = 1e-10
_PIVOTS: Final = 8
#: The most exchanges of single unknowns, per unknown.
_EXCHANGES: Final = 20
#: A ridge, as a share of the largest square: of all equally good solutions, it selects the one with the smallest rates.
_RIDGE: Final = 1e-12


def least_of_each(gram: Floats, moment: Floats, most: float) -> list[Floats]:
    """Minimise `x'Gx - 2x'm` over 0 <= x <= most for each of several `gram[problems, unknowns, unknowns]` and
    `moment[problems, unknowns]` at once, by exchanging whole sets of unknowns at a bound.

    Each round fixes unknowns beyond a bound at it, and frees fixed ones with a slope that leads inside (block principal
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


def bounded(gram: Floats, moment: Floats, most: float = np.inf) -> Floats:
    """The same for one problem, `gram[unknowns, unknowns]` and `moment[unknowns]`, by exchanging one unknown at a time.

    Of all wrong unknowns, the last one is exchanged. This ends at the minimum (Murty, Opsearch 11 (1974), 123).
    """
    size, flat, never = len(moment), _FLAT * np.maximum(1.0, np.abs(moment)), gram.diagonal() <= 0
    low, high, x = np.zeros(size, bool), np.zeros(size, bool), np.zeros(size)
    for _ in range(_EXCHANGES * size):
        free = ~(never | low | high)
        x = np.where(high, most, 0.0)
        x[free] = np.linalg.lstsq(gram[np.ix_(free, free)], moment[free] - gram[free] @ x, rcond=None)[0]
        slopes = moment - gram @ x
        below, above = free & (x < 0), free & (x > most)
        wrong = np.flatnonzero(below | above | low & (slopes > flat) | high & (slopes < -flat))
        if not len(wrong):
            break
        low[wrong[-1]], high[wrong[-1]] = below[wrong[-1]], above[wrong[-1]]
    return np.clip(x, 0.0, most)
