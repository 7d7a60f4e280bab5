"""How much of a kind of work the fitted windows contain. Pure.

Prices may be wrong for work far from the fitted windows, such as prompts that are ten times as long. The leverage of a
window (the diagonal of the hat matrix: Hoaglin and Welsch, *The Hat Matrix in Regression and ANOVA*, The American
Statistician 32, 1978) is the inverse of the number of fitted windows that show its mixture of work. It depends on work
alone, not on durations or energy: a change of the clocks does not raise it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.terms import EACH, GROUPS, TermGroup
from gpu_profile.serving.work import Bools, WorkQuantity

#: Work that fewer than ten rows show tests no prices.
_UNTESTED: Final = 0.1
#: Of a term that no row has, this share of a usual row's tokens counts as a row that shows it.
_LITTLE: Final = 0.02
_TOKENS: Final = 2 + WorkQuantity.TOKENS


class SeenWork:
    """The work of `n` fitted rows, windows or iterations, from the sums of products of their terms,
    `gram[TERMS, TERMS]`, in units of `scales[TERMS]`."""

    def __init__(self, gram: Floats, n: int, scales: Floats) -> None:
        squares = gram.diagonal() * scales**2 / max(n, 1)
        usual = np.where(squares > 0, squares, 1.0)
        # Tokens beyond a bend that no row reaches are a change of tokens that have a price.
        usual[GROUPS[TermGroup.BEND]] = usual[_TOKENS]
        little = np.diag(_LITTLE**2 * usual / scales**2)
        self._inverse = np.linalg.inv((gram + little)[EACH:, EACH:])

    def leverage(self, values: Floats) -> Floats:
        """By row of terms, `values[rows, TERMS]`: the inverse of the number of fitted rows that show its work."""
        work = values[:, EACH:]
        result: Floats = np.maximum(((work @ self._inverse) * work).sum(axis=1), 0.0)  # rounding may be below 0
        return result

    def tests(self, values: Floats) -> Bools:
        """By row: whether enough rows show its work for a test of the prices."""
        return self.leverage(values) <= _UNTESTED
