"""In which directions rates move and no window shows it, errors of stamps considered, and how far. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.stamps import StampErrors, largest

#: A direction of the scaled equations that carries this much less than the strongest one is rounding.
_WORST_CONDITION: Final = 1e9
#: A rate may lie in directions that nothing determines with this share of its square.
_LEAK: Final = 0.001
#: What errors of stamps do to a rate is known to this share of it.
_UNSURE: Final = 0.25
#: A direction must be determined also if stamps err by this much more (in variance) than the windows seem to allow.
_CAUTION: Final = 3.0

Bools = npt.NDArray[np.bool_]


class Undetermined:
    """What the normal equations of steady rates leave undetermined, `gram[columns, columns]` and `moment[columns]` of
    values whose squares add up to `square`.

    `errors` is what errors of stamps may add to the equations. `moved` is by how much they make each rate wrong, and
    `unsure` how far that may be off itself. No rate is above its ceiling, and none above `most`.
    """

    def __init__(
        self, gram: Floats, moment: Floats, square: float, errors: StampErrors, ceilings: Floats, most: float
    ) -> None:
        self._ceilings, self._most = ceilings, most
        diagonal = np.diag(gram)
        self._seen = diagonal > 0
        self._scale = scale = np.where(self._seen, 1 / np.sqrt(np.where(self._seen, diagonal, 1.0)), 0.0)
        scaled, wrong = (matrix * scale[:, None] * scale for matrix in (gram, errors.most))

        def directions(share: float) -> tuple[Floats, Floats, Bools]:
            strengths, axes = np.linalg.eigh(scaled - share * wrong)
            return strengths, axes, strengths < max(float(strengths.max(initial=0.0)), 1e-300) / _WORST_CONDITION

        strengths, axes, weak = directions(0.0)
        self._hidden = [_Axes.of(axes[:, weak], scale)]
        if not errors.most.any():
            self.moved: Floats = np.zeros(len(scale))
            self.unsure: Floats = np.zeros(len(scale))
            return
        most_error = min(errors.allowed, largest(gram, moment, square, errors.most))
        steady = axes @ ((axes.T @ (moment * scale)) / np.where(weak, np.inf, strengths))
        _, other_axes, hidden = directions(_CAUTION * most_error)
        self._hidden.append(_Axes.of(other_axes[:, hidden], scale))
        # Where physics alone bounds a rate, there is no saying where between its bounds it is.
        unbound = other_axes[:, hidden]

        def moves(share: float) -> Floats:
            strengths, axes, weak = directions(share)
            found = axes @ ((axes.T @ (share * (wrong @ steady))) / np.where(weak, np.inf, strengths))
            result: Floats = scale * (found - unbound @ (unbound.T @ found))
            return result

        first, self.moved, last = (moves(min(share, most_error)) for share in (errors.least, errors.likely, 1.0))
        apart = np.abs(last - self.moved), np.abs(first - self.moved), _UNSURE * np.abs(self.moved)
        self.unsure = np.maximum.reduce(apart)

    def farthest(self, weights: Floats, rates: Floats) -> float:
        """How far the rate of a mixture of columns may be off: as far as physics lets it. `rates` are those found."""
        return max(self._along(weights, rates, axes) for axes in self._hidden)

    def determined(self, weights: Floats) -> Floats:
        """The part of a mixture of columns that lies in no direction which physics alone bounds."""
        axes, part = self._hidden[-1].axes, self._scale * weights
        rest = part - axes @ (axes.T @ part)
        return np.where(self._seen, rest / np.where(self._seen, self._scale, 1.0), 0.0)

    def _along(self, weights: Floats, rates: Floats, hidden: _Axes) -> float:
        """How far the rate moves if rates move along some axes of the scaled equations and stay within physics."""
        part = self._scale * weights
        size, along = float(part @ part), part @ hidden.axes
        if size <= 0:
            return math.inf
        if float(along @ along) <= _LEAK * _LEAK * size:
            return 0.0
        if not np.isfinite(self._most):
            return math.inf if float(along @ along) > _LEAK * size else 0.0
        if hidden.axes.shape[1] == 1:
            way = hidden.axes[:, 0] * self._scale
            moved = np.abs(way) > 1e-9 * np.abs(way).max()
            ends = np.stack((-rates[moved], np.maximum(0.0, self._ceilings - rates)[moved])) / way[moved]
            farthest = max(float(ends.max(axis=0).min()), -float(ends.min(axis=0).max()))
            return abs(float(along[0])) * farthest
        # Of several, a bound: no rate moves by more than `most`.
        seen = hidden.basis @ (hidden.basis.T @ weights)
        moved = np.count_nonzero(np.abs(hidden.basis).max(axis=1) > 1e-9)
        return self._most * min(float(np.abs(seen).sum()), math.sqrt(moved) * float(np.linalg.norm(seen)))


class _Axes(NamedTuple):
    """Axes of the scaled equations, `[columns, axes]`, and an orthonormal basis of the rates that they move."""

    axes: Floats
    basis: Floats

    @classmethod
    def of(cls, axes: Floats, scale: Floats) -> _Axes:
        """Axes of equations whose columns were scaled by `scale`."""
        return cls(axes, np.linalg.qr(axes * scale[:, None])[0] if axes.size else axes)
