"""The normal equations of a least-squares problem. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gpu_profile.history.timeline import Floats, Ints


class NormalEquations(NamedTuple):
    """Sums over `n` rows: of products of every two unknowns' columns, `gram[unknowns, unknowns]`, of columns and
    values, `moment[unknowns]`, and of squared values. `mean` is the magnitude of the values' mean."""

    gram: Floats
    moment: Floats
    square: float
    n: int
    mean: float

    def without(self, places: Ints) -> NormalEquations:
        """The equations with some unknowns fixed at 0."""
        gram = self.gram.copy()
        gram[places], gram[:, places] = 0.0, 0.0
        return self._replace(gram=gram)
