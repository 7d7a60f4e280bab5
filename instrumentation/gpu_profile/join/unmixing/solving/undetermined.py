"""The directions in which rates can move without an effect on the windows, given stamp errors, and how far. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.normal_equations import NormalEquations
from gpu_profile.join.unmixing.solving.rate import Z95
from gpu_profile.join.unmixing.solving.stamps import StampErrors, largest

#: A direction of the scaled equations that is weaker than the strongest one by this factor is rounding.
_WORST_CONDITION: Final = 1e9
#: The largest part of a rate, as a share of its square, that may lie in undetermined directions.
_LEAK: Final = 0.001
#: The relative uncertainty of the effect of stamp errors on a rate.
_UNSURE: Final = 0.25
#: A direction must also be determined if stamp errors are larger by this factor (in variance) than the windows allow.
_CAUTION: Final = 3.0
#: The most rounds in which a bound on such directions is narrowed, and the share of the last one that is narrow enough.
_ROUNDS, _NARROWED = 20, 0.999
#: Smaller shares of the largest number are rounding.
_LIGHT: Final = 1e-9

Bools = npt.NDArray[np.bool_]


class Undetermined:
    """The undetermined part of the normal equations of steady rates by column, of which `n` windows are independent.

    `errors` is the contribution of stamp errors to the equations. `moved` is the resulting error of each rate. No rate
    is above its ceiling, and none above `most`. With columns `in_step`, windows show a total and no rates.
    """

    def __init__(
        self, sums: NormalEquations, n: int, errors: StampErrors, ceilings: Floats, most: float, in_step: Bools | None
    ) -> None:
        gram, moment, square, *_ = sums
        self._ceilings, self._most, self._gram = ceilings, most, gram
        self._in_step = np.zeros(len(gram), bool) if in_step is None else in_step
        # Shares of a window add up to 1.
        self._mean = float(moment.sum() / max(1.0, gram.sum()))
        diagonal = np.diag(gram)
        self._seen = diagonal > 0
        self._scale = scale = np.where(self._seen, 1 / np.sqrt(np.where(self._seen, diagonal, 1.0)), 0.0)
        self._scaled, wrong = (matrix * scale[:, None] * scale for matrix in (gram, errors.most))
        strengths, axes = np.linalg.eigh(self._scaled)
        weak = strengths < max(float(strengths.max(initial=0.0)), 1e-300) / _WORST_CONDITION
        self._hidden = [_Hidden.of(axes[:, weak], axes[:, :0], scale, np.zeros(0), 0.0)]
        #: Axes along which the sum of squared shares is 1.
        self._bound = modes = axes[:, ~weak] / np.sqrt(strengths[~weak])
        if not errors.most.any():
            self.moved: Floats = np.zeros(len(scale))
            self._shifts = np.zeros((0, len(scale)))
            return
        most_error = min(errors.allowed, largest(sums, errors.most))
        # The errors have no covariance along these axes. They hide the axes along which their sum of squares is large.
        parts, turned = np.linalg.eigh(modes.T @ wrong @ modes)
        modes = modes @ turned
        along, hidden = modes.T @ (moment * scale), _CAUTION * most_error * parts > 1
        doubt = Z95 * math.sqrt(max(0.0, square - float(along @ along)) / max(1, n - len(along)))
        self._hidden.append(_Hidden.of(axes[:, weak], modes[:, hidden], scale, along[hidden], doubt))
        # If only physics bounds a rate, its position between the bounds is arbitrary. Stamp errors move the others.
        self._bound, parts, along = modes[:, ~hidden], parts[~hidden], along[~hidden]
        shares = np.array([[min(share, most_error)] for share in (errors.least, errors.likely, 1.0)])
        first, self.moved, last = scale * ((shares * parts / (1 - shares * parts) * along) @ self._bound.T)
        self._shifts = np.stack((last - self.moved, first - self.moved, _UNSURE * self.moved))

    def unsure(self, weights: Floats) -> float:
        """The uncertainty of the error of a mixture's rate by stamp errors."""
        return float(np.abs(self._shifts @ weights).max(initial=0.0))

    def farthest(self, weights: Floats, rates: Floats) -> float:
        """The largest possible error of a mixture's rate within physics. `rates` are the estimated rates, of which the
        undetermined parts are arbitrary."""
        along = max(self._along(weights, rates, axes) for axes in self._hidden)
        return max(along, self.by_exchange(weights, np.clip(rates, 0.0, self._most)))

    def by_exchange(self, weights: Floats, rates: Floats) -> float:
        """The largest change of the rate, within physics, if columns in step with the windows exchange power.

        Their total in the windows around the mixture stays the same.
        """
        if not (self._in_step & (weights > 0)).any():
            return 0.0
        shares = np.where(self._in_step, self._gram[weights > 0].sum(axis=0), 0.0)
        used = np.flatnonzero(shares > 0)
        share, rates = shares[used], rates[used]
        value = weights[used] / share
        more, less = share * np.maximum(0.0, self._ceilings[used] - rates), share * rates
        return max(_exchanged(value, more, less), _exchanged(-value, more, less))

    def determined(self, weights: Floats) -> Floats:
        """The part of a mixture of columns outside the directions that only physics bounds."""
        rest = self._scaled @ self._bound @ (self._bound.T @ (self._scale * weights))
        return np.where(self._seen, rest / np.where(self._seen, self._scale, 1.0), 0.0)

    def _along(self, weights: Floats, rates: Floats, hidden: _Hidden) -> float:
        """The largest change of the rate if rates move along some axes of the scaled equations within physics."""
        part = self._scale * weights
        size, along = float(part @ part), part @ hidden.axes
        if size <= 0:
            return math.inf
        if float(along @ along) <= _LEAK * _LEAK * size:
            return 0.0
        if not np.isfinite(self._most):
            return math.inf if float(along @ along) > _LEAK * size else 0.0
        basis, free = hidden.basis, hidden.open
        low, high = np.maximum(0.0, rates - hidden.below), np.minimum(self._ceilings, rates + hidden.above)
        if (low > high).any():
            # More than stamp errors and chance is wrong, so the rates may move either way.
            low, high, free = np.zeros(len(rates)), self._ceilings, basis
        # Of all rates that the windows do not distinguish from these, those that differ least.
        moved = free @ (free.T @ (self._mean - rates))
        base, shift = np.clip(rates + moved, low, high), float(weights @ moved)
        up, down = _farthest(basis, weights, high - base, base - low)
        return max(up + shift, down - shift)


def _farthest(basis: Floats, weights: Floats, more: Floats, less: Floats) -> tuple[float, float]:
    """Upper bounds of `weights @ change` and of `-weights @ change` over the changes in the span of `basis` that are
    between `-less` and `more`.

    By duality of linear programs, each is `sum(max(d * more, -d * less))` for any `d` with `d @ basis == weights @
    basis`. Least squares with weights that follow from the last round make it small: few `d` are left.
    """
    wanted = np.stack((weights, -weights)) @ basis
    dual, best = wanted @ basis.T, np.full(2, np.inf)
    for _ in range(_ROUNDS):
        cost = np.where(dual > 0, more, less) * np.abs(dual)
        before, best = best, np.minimum(best, cost.sum(axis=1))
        if (best > _NARROWED * before).all():
            break
        free = dual**2 / np.maximum(cost, np.maximum(_LIGHT * cost.max(axis=1, keepdims=True), 1e-300))
        reached = (basis.T * free[:, None]) @ basis
        reached += _LIGHT * reached.max(axis=(1, 2), keepdims=True) * np.eye(basis.shape[1])
        dual = free * (np.linalg.solve(reached, wanted[:, :, None])[:, :, 0] @ basis.T)
        dual += (wanted - dual @ basis) @ basis.T
    return float(best[0]), float(best[1])


def _exchanged(values: Floats, more: Floats, less: Floats) -> float:
    """The largest gain of moving amounts between places of these values: at most `less` from each, and `more` to it."""
    gain, order, more, less = 0.0, np.argsort(values).tolist(), more.copy(), less.copy()
    low, high = 0, len(order) - 1
    while low < high:
        source, sink = order[low], order[high]
        moved = min(less[source], more[sink])
        gain += moved * (values[sink] - values[source])
        less[source], more[sink] = less[source] - moved, more[sink] - moved
        low, high = (low + 1, high) if less[source] <= more[sink] else (low, high - 1)
    return float(gain)


class _Hidden(NamedTuple):
    """Axes of the scaled equations, `[columns, axes]`, and an orthonormal basis of the rates that they move. `open` is
    that of the axes along which rates may move either way. By column, a rate is at most `below` its estimate, and at
    most `above` it."""

    axes: Floats
    basis: Floats
    open: Floats
    below: Floats
    above: Floats

    @classmethod
    def of(cls, weak: Floats, hidden: Floats, scale: Floats, along: Floats, doubt: float) -> _Hidden:
        """`weak` axes of equations with columns scaled by `scale`, and the axes that stamp errors hide.

        The windows move the rates by `along` the latter, give or take `doubt`. Errors only draw rates towards the mean.
        """
        axes, moves = np.hstack((weak, hidden)), np.append(np.zeros(weak.shape[1]), along)
        rates, sure = axes * scale[:, None], np.abs(moves) > doubt
        apart = np.abs(rates) <= _LEAK * np.abs(rates).max(axis=0, initial=0.0)
        below, above = (
            np.where((apart | sure & (rates * moves * side > 0)).all(axis=1), doubt * np.abs(rates).sum(axis=1), np.inf)
            for side in (1, -1)
        )
        return cls(np.linalg.qr(axes)[0], _spanned(rates), _spanned(rates[:, ~sure]), below, above)


def _spanned(moved: Floats) -> Floats:
    """An orthonormal basis of what some changes of rates span."""
    if not moved.size:
        return moved
    basis, lengths, _ = np.linalg.svd(moved, full_matrices=False)
    # Axes of columns in no window move no rate.
    result: Floats = basis[:, lengths > _LIGHT * lengths.max(initial=0.0)]
    return result


def changed(sums: NormalEquations, rates: Floats, unmarked: Floats) -> Floats:
    """By how much executions without a mark, `unmarked` as in `StampErrors`, change the `rates` that solve the
    equations at most."""
    result, used = np.zeros(len(rates)), np.flatnonzero(np.diag(sums.gram) > 0)
    if not unmarked.any():
        return result
    # A pause shows that there was an execution. Each region has the shares of its own instead of the mean of all.
    errors = np.diag(unmarked) - np.outer(unmarked, unmarked / unmarked.sum())
    wrong = largest(sums, errors) * errors[np.ix_(used, used)]
    result[used] = np.linalg.lstsq(sums.gram[np.ix_(used, used)] - wrong, wrong @ rates[used], rcond=None)[0]
    return result
