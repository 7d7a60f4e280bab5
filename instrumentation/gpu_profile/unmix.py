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

from gpu_profile.timeline import Floats

#: 97.5 % quantile of the normal distribution: half-widths are of 95 % intervals.
Z95: Final = 1.959964
#: A rate is given if its half-width is below this share of it (or of the mean of the signal, if that is larger).
WIDEST_HALF_WIDTH: Final = 0.25
#: Beyond this condition number of the scaled equations, a loop is phase-locked to the window: 50 ms loops under a
#: 100 ms window reach 1,000-1e8 with errors of 11-50 %, distinguishable ones stay below 500 (simulation study).
WORST_CONDITION: Final = 1500.0
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

    def solve(self, output: int = 0, doubt: Floats | None = None) -> list[Rate]:
        """The rate of every column for one of the signals, in order.

        `doubt[k]` is the share of column k's time that may be its neighbours': it widens the interval by as much of
        the largest rate, on top of what the noise asks for.
        """
        k = len(self._gram)
        if self.n == 0:
            return [Rate(0.0, float("inf"), 0, "no samples yet")] * k
        rates = bounded(self._gram, self._moment[:, output], self.most)
        seen = np.diag(self._gram) > 0
        freedom = self.n - int(seen.sum())
        mean = abs(float(self._sum[output])) / self.n
        half_width = np.full(k, np.inf)
        condition = 1.0
        if freedom > 0 and seen.any():
            scale = 1 / np.sqrt(np.diag(self._gram)[seen])
            scaled = self._gram[np.ix_(seen, seen)] * scale[:, None] * scale[None, :]
            condition = float(np.linalg.cond(scaled))
            if condition < 1e12:
                noise = self._residual_sum(rates, output) / freedom
                spread = np.diag(np.linalg.inv(scaled)) * scale**2 * noise
                half_width[seen] = Z95 * np.sqrt(np.maximum(spread, 0.0))
        if doubt is not None:
            systematic = np.zeros(k)
            systematic[: len(doubt)] = doubt[:k] * float(rates.max(initial=0.0))
            half_width = np.hypot(half_width, systematic)
        return [
            Rate(float(r), float(h), int(n), self._doubt(float(r), float(h), int(n), mean, condition))
            for r, h, n in zip(rates, half_width, self._seen, strict=True)
        ]

    def _doubt(self, rate: float, half_width: float, n: int, mean: float, condition: float) -> str:
        if n < WINDOWS_PER_RATE or self.n < WINDOWS_PER_RATE * len(self._gram):
            return f"too few samples ({n})"
        if condition > WORST_CONDITION:
            return "not identifiable: the regions run in lock-step with the sensor's window"
        if half_width > WIDEST_HALF_WIDTH * max(abs(rate), mean):
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
