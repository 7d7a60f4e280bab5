"""The rates of regions that are shorter than a sensor's window. Pure.

A sensor that averages over 100 ms cannot see a 5 ms region; the mean of the windows that overlap it converges to the
device's global mean, however long one waits. But every window is a known mixture: its value is the sum, over regions,
of the share of the window in which the region was active times the region's own rate. Over many windows these are
linear equations, and least squares with non-negative rates (Lawson and Hanson, *Solving Least Squares Problems*, 1974,
ch. 23) gives the rates back, with confidence intervals, or shows that the equations do not determine them.

Only the normal equations are kept: (K+1) x (K+1) numbers, however long it runs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from gpu_profile.timeline import Floats, Ints

#: 97.5 % quantile of the normal distribution: half-widths are of 95 % intervals.
Z95: Final = 1.959964
#: A rate is given if its half-width is below this share of it (or of the mean of the signal, if that is larger).
WIDEST_HALF_WIDTH: Final = 0.25
#: Beyond this condition number of the scaled equations, a loop is phase-locked to the window: 50 ms loops under a
#: 100 ms window reach 1,000-1e8 with errors of 11-50 %, distinguishable ones stay below 500 (simulation study).
WORST_CONDITION: Final = 1500.0
#: Beyond this, the inverse is noise.
_SINGULAR: Final = 1e12
#: Fewer windows than this per unknown say nothing about the noise.
WINDOWS_PER_RATE: Final = 4


class Rate(NamedTuple):
    """A region's rate of a signal while it is active: value, half-width of its 95 % interval, windows behind it.

    `reason` is empty if the value can be used, else it says why not.
    """

    value: float
    half_width: float
    n: int
    reason: str = ""


class Unmixer:
    """Streaming normal equations: column 0 is the unattributed rest, the others are regions.

    No rate is negative, and none is above `most` (a ratio's 1).
    """

    def __init__(self, most: float = np.inf) -> None:
        self.most = most
        self.n = 0
        self._gram: Floats = np.zeros((1, 1))
        self._moment: Floats = np.zeros((1, 1))
        self._square: Floats = np.zeros(1)
        self._sum: Floats = np.zeros(1)
        self._seen = np.zeros(1, np.int64)

    def add(self, shares: Floats, values: Floats) -> None:
        """Take windows in.

        `shares[n, k]` is the share of each window in which column k was active, `values[n]` what the sensor said, or
        `values[n, s]` for signals that share their windows.
        """
        values = values[:, None] if values.ndim == 1 else values
        columns, outputs = shares.shape[1], values.shape[1]
        if self.n == 0:
            self._moment = np.zeros((len(self._gram), outputs))
            self._square, self._sum = np.zeros(outputs), np.zeros(outputs)
        grow = columns - len(self._gram)
        if grow > 0:
            self._gram = np.pad(self._gram, (0, grow))
            self._moment = np.pad(self._moment, ((0, grow), (0, 0)))
            self._seen = np.pad(self._seen, (0, grow))
        self._gram[:columns, :columns] += shares.T @ shares
        self._moment[:columns] += shares.T @ values
        self._seen[:columns] += (shares > 0).sum(axis=0)
        self._square += (values**2).sum(axis=0)
        self._sum += values.sum(axis=0)
        self.n += len(values)

    def leave(self, outputs: list[int]) -> None:
        """Go on without some of the signals."""
        if self.n:
            self._moment = np.delete(self._moment, outputs, axis=1)
            self._square, self._sum = np.delete(self._square, outputs), np.delete(self._sum, outputs)

    @property
    def columns(self) -> int:
        """Columns of the equations so far."""
        return len(self._gram)

    @property
    def residual(self) -> float:
        """Mean squared error of the first signal's fit; infinite while there are no windows."""
        return (
            self._residual_sum(bounded(self._gram, self._moment[:, 0], self.most), 0) / self.n
            if self.n
            else float("inf")
        )

    def _residual_sum(self, rates: Floats, output: int) -> float:
        square = self._square[output] - 2 * rates @ self._moment[:, output] + rates @ self._gram @ rates
        return max(0.0, float(square))

    def fit(self, output: int = 0) -> Fit:
        """The rates of one of the signals and how they vary together."""
        k = len(self._gram)
        if self.n == 0:
            return Fit(np.zeros(k), np.full((k, k), np.inf), self._seen, 0, 0.0, 1.0)
        rates = bounded(self._gram, self._moment[:, output], self.most)
        seen = np.diag(self._gram) > 0
        freedom = self.n - int(seen.sum())
        covariance = np.zeros((k, k))
        np.fill_diagonal(covariance, np.where(seen, 0.0, np.inf))
        condition = np.inf
        if freedom > 0 and seen.any():
            scale = 1 / np.sqrt(np.diag(self._gram)[seen])
            scaled = self._gram[np.ix_(seen, seen)] * scale[:, None] * scale[None, :]
            condition = float(np.linalg.cond(scaled))
            if condition < _SINGULAR:
                noise = self._residual_sum(rates, output) / freedom
                covariance[np.ix_(seen, seen)] = np.linalg.inv(scaled) * scale[:, None] * scale[None, :] * noise
        if not condition < _SINGULAR:
            np.fill_diagonal(covariance, np.inf)
        return Fit(rates, covariance, self._seen, self.n, abs(float(self._sum[output])) / self.n, condition)

    def solve(self, output: int = 0, doubt: Floats | None = None) -> list[Rate]:
        """The rate of every column for one of the signals, in order; for `doubt` see `Fit.rate`."""
        fit, columns = self.fit(output), np.eye(len(self._gram))
        doubts = np.zeros(len(columns)) if doubt is None else np.pad(doubt, (0, max(0, len(columns) - len(doubt))))
        return [fit.rate(column, doubt=float(d)) for column, d in zip(columns, doubts, strict=False)]


class Fit(NamedTuple):
    """A solution: rates and their covariance by column, windows by column and in all, the signal's mean, and the
    condition number of the scaled equations."""

    rates: Floats
    covariance: Floats
    seen: Ints
    n: int
    mean: float
    condition: float

    def rate(self, weights: Floats, *, doubt: float = 0.0) -> Rate:
        """The rate of a mixture of columns in proportion to `weights`, which add up to 1: one column, or a region and
        those inside it.

        `doubt` is the share of its time that may be its neighbours': it widens the interval by as much of the largest
        rate, on top of what the noise asks for.
        """
        used = weights > 0
        value = float(weights[used] @ self.rates[used])
        n = int(self.seen[used].max(initial=0))
        if self.n == 0:
            return Rate(0.0, np.inf, 0, "no samples yet")
        part = self.covariance[np.ix_(used, used)]
        spread = float(weights[used] @ part @ weights[used]) if np.isfinite(part).all() else np.inf
        noise = Z95 * np.sqrt(max(0.0, spread))
        half_width = float(np.hypot(noise, doubt * float(self.rates.max(initial=0.0))))
        return Rate(value, half_width, n, self._doubt(value, half_width, n))

    def _doubt(self, rate: float, half_width: float, n: int) -> str:
        if n < WINDOWS_PER_RATE or self.n < WINDOWS_PER_RATE * len(self.rates):
            return f"too few samples ({n})"
        if self.condition > WORST_CONDITION:
            return "not identifiable: the regions run in lock-step with the sensor's window"
        if half_width > WIDEST_HALF_WIDTH * max(abs(rate), self.mean):
            return f"not identifiable yet: ±{half_width:.3g} around {rate:.3g}"
        return ""


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
