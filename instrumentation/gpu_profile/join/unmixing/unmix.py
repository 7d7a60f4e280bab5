"""The rates of regions that are shorter than a sensor's window. Pure.

A sensor that averages over 100 ms cannot see a 5 ms region; the mean of the windows that overlap it converges to the
device's global mean, however long one waits. But every window is a known mixture: its value is the sum, over regions,
of the share of the window in which the region was active times the region's own rate. Over many windows these are
linear equations, and least squares with non-negative rates gives the rates back, with confidence intervals, or shows
that the equations do not determine them.

Only the normal equations are kept: (K+1) x (K+1) numbers, however long it runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints

#: 97.5 % quantile of the normal distribution: half-widths are of 95 % intervals.
Z95: Final = 1.959964
#: A rate is given if its half-width is below this share of it (or of the mean of the signal, if that is larger).
WIDEST_HALF_WIDTH: Final = 0.25
#: A direction of the scaled equations that carries this much less than the strongest one is not determined by them.
#: Loops of six regions in fixed order with 5 % jitter reach 500-10,000 under a 100 ms window, where intervals hold the
#: truth; loops of 45 ms with none reach 1e5-1e14, and what the stamps' errors alone put there is no information
#: (`make bench ONLY=heart`, the rows of fixed order and of loops near lock-step).
WORST_CONDITION: Final = 30_000.0
#: A rate may lie in such directions with this share of its square; the rest is refused.
_LEAK: Final = 0.01
#: Beyond this, the inverse is noise.
_SINGULAR: Final = 1e12
#: Fewer windows than this per unknown say nothing about the noise.
WINDOWS_PER_RATE: Final = 4


class Rate(NamedTuple):
    """A region's rate of a signal while it is active: value, half-width of its 95 % interval, windows behind it.

    `reason` is empty if the value can be used, else it says why not. `method` tells rates from the equations from the
    mean of the windows that overlap the region, whose half-width is what the rest of those windows leaves open.
    """

    value: float
    half_width: float
    n: int
    reason: str = ""
    method: Literal["unmixed", "overlap"] = "unmixed"


class Unmixer:
    """Streaming normal equations: column 0 is the unattributed rest, the others are regions.

    No rate is negative, and none is above `most` (a ratio's 1).
    """

    def __init__(self, most: float = np.inf) -> None:
        self.most = most
        self.n = 0
        self._gram: Floats = np.zeros((1, 1))
        self._seen = np.zeros(1, np.int64)
        #: Of every signal: sums with each column, of the values and of their squares.
        self._moment: Floats = np.zeros((1, 1))
        self._sum: Floats = np.zeros(1)
        self._square: Floats = np.zeros(1)

    def copy(self) -> Unmixer:
        """The same equations, to go on from twice."""
        result = Unmixer(self.most)
        result.n = self.n
        result._gram, result._seen, result._moment = self._gram.copy(), self._seen.copy(), self._moment.copy()
        result._sum, result._square = self._sum.copy(), self._square.copy()
        return result

    def add(self, shares: Floats, values: Floats) -> None:
        """Take windows in.

        `shares[n, k]` is the share of each window in which column k was active, `values[n]` what the sensor said, or
        `values[n, s]` for signals that share their windows.
        """
        if not len(values):
            return
        values = values[:, None] if values.ndim == 1 else values
        columns, outputs = shares.shape[1], values.shape[1]
        if self.n == 0:
            size = max(columns, len(self._gram))
            self._gram, self._seen = np.zeros((size, size)), np.zeros(size, np.int64)
            self._moment = np.zeros((size, outputs))
            self._sum, self._square = np.zeros(outputs), np.zeros(outputs)
        self._grow(columns)
        self._gram[:columns, :columns] += shares.T @ shares
        self._moment[:columns] += shares.T @ values
        self._seen[:columns] += np.count_nonzero(shares > 0, axis=0)
        self._sum += values.sum(axis=0)
        self._square += (values**2).sum(axis=0)
        self.n += len(values)

    def _grow(self, columns: int) -> None:
        more = columns - len(self._gram)
        if more > 0:
            self._gram = np.pad(self._gram, (0, more))
            self._moment = np.pad(self._moment, ((0, more), (0, 0)))
            self._seen = np.pad(self._seen, (0, more))

    def leave(self, outputs: list[int]) -> None:
        """Go on without some of the signals."""
        if self.n:
            self._moment = np.delete(self._moment, outputs, axis=1)
            self._sum, self._square = np.delete(self._sum, outputs), np.delete(self._square, outputs)

    def merge(self, column: int, into: int) -> None:
        """Make a column part of another, as if they had always been one, and free it."""
        self._grow(max(column, into) + 1)
        self._gram[into] += self._gram[column]
        self._gram[:, into] += self._gram[:, column]
        self._moment[into] += self._moment[column]
        # Windows that met both count twice: they cannot be told apart any more.
        self._seen[into] = min(self.n, self._seen[into] + self._seen[column])
        self._gram[column] = 0.0
        self._gram[:, column] = 0.0
        self._moment[column] = 0.0
        self._seen[column] = 0

    @property
    def columns(self) -> int:
        """Columns of the equations so far."""
        return len(self._gram)

    @property
    def residual(self) -> float:
        """Mean squared error of the first signal's fit; infinite while there are no windows."""
        if not self.n:
            return float("inf")
        return self._residual_sum(self.rates(), 0) / self.n

    def rates(self, output: int = 0) -> Floats:
        """The rates of one of the signals, by column."""
        return bounded(self._gram, self._moment[:, output], self.most)

    def _residual_sum(self, rates: Floats, output: int) -> float:
        square = self._square[output] - 2 * rates @ self._moment[:, output] + rates @ self._gram @ rates
        return max(0.0, float(square))

    def fit(self, output: int = 0, swing: Floats | None = None, repeats: float = 1.0) -> Fit:
        """The rates of one of the signals and how they vary together; for `swing` see `Fit`.

        `repeats` windows say as much as one would if their errors were independent.
        """
        k = len(self._gram)
        swing = np.zeros(k) if swing is None else np.pad(swing[:k], (0, max(0, k - len(swing))))
        if self.n == 0:
            return Fit(np.zeros(k), self._gram.copy(), np.zeros(k), self._seen.copy(), 0, 0.0, self.most, 0.0, swing)
        rates = self.rates(output)
        freedom = self.n - int((np.diag(self._gram) > 0).sum())
        noise = repeats * self._residual_sum(rates, output) / freedom if freedom > 0 else np.inf
        mean, moment = abs(float(self._sum[output])) / self.n, self._moment[:, output].copy()
        return Fit(rates, self._gram.copy(), moment, self._seen.copy(), self.n, mean, self.most, noise, swing)


@dataclass(eq=False)
class Fit:
    """A solution: rates by column, the equations that they solve, windows by column (`seen`) and in all, the signal's
    mean, the highest possible rate, and the variance of a window's error.

    `swing` is by how much each rate moves if the sensor's timing is off by its standard deviation: all at once.
    """

    rates: Floats
    gram: Floats
    moment: Floats
    seen: Ints
    n: int
    mean: float
    most: float
    noise: float
    swing: Floats

    def __post_init__(self) -> None:
        used = np.diag(self.gram) > 0
        # Columns of one size: a region that is seldom active is not for that reason badly determined.
        self._scale = np.where(used, 1 / np.sqrt(np.where(used, np.diag(self.gram), 1.0)), 0.0)
        strengths, self._directions = np.linalg.eigh(self.gram * self._scale[:, None] * self._scale[None, :])
        strongest = max(float(strengths.max(initial=0.0)), 1e-300)
        # Columns that were never active are directions of their own, with no strength.
        self._weak = strengths < strongest / WORST_CONDITION
        self._variances = self.noise / np.maximum(strengths, strongest / _SINGULAR)

    def half_widths(self) -> Floats:
        """Of every column by itself, the half-width of its 95 % interval; infinite where it is not determined."""
        if self.n == 0 or not np.isfinite(self.noise):
            return np.full(len(self.rates), np.inf)
        variances = self._scale**2 * (self._directions**2 @ self._variances) + self.swing**2
        hidden = (self._directions**2 @ self._weak > _LEAK) | (self._scale == 0)
        return np.where(hidden, np.inf, Z95 * np.sqrt(variances))

    def variances(self, shares: Floats) -> Floats:
        """Of each of some windows, the variance of what the rates say of it; infinite where it has columns that no
        window had yet.
        """
        if not np.isfinite(self.noise):
            return np.full(len(shares), np.inf)
        known = np.zeros(shares.shape[1])
        k = min(len(known), len(self._scale))
        known[:k] = self._scale[:k]
        parts = (shares[:, :k] * known[:k]) @ self._directions[:k]
        strange = (shares[:, known == 0] > 0).any(axis=1)
        return np.where(strange, np.inf, parts**2 @ self._variances)

    def rate(self, weights: Floats) -> Rate:
        """The rate of a mixture of columns in proportion to `weights`, which add up to 1: one column, or a region and
        those inside it.
        """
        if self.n == 0:
            return Rate(0.0, np.inf, 0, "no samples yet")
        used = weights > 0
        value, n = float(weights[used] @ self.rates[used]), int(self.seen[used].max(initial=0))
        parts = self._directions.T @ (self._scale * weights)
        size = float(parts @ parts)
        known = size > 0 and np.isfinite(self.noise) and not (used & (self._scale == 0)).any()
        swing = float(self.swing @ weights)
        half_width = Z95 * math.sqrt(float(parts**2 @ self._variances) + swing**2) if known else math.inf
        hidden = not known or float(parts[self._weak] @ parts[self._weak]) > _LEAK * size
        reason = self._reason(value, half_width, n, hidden=hidden)
        result = Rate(value, half_width, n, reason)
        return (self._overlap(weights, n) or result) if reason else result

    def _reason(self, rate: float, half_width: float, n: int, *, hidden: bool) -> str:
        """Why a rate is not given; empty if it is."""
        if n < WINDOWS_PER_RATE or self.n < WINDOWS_PER_RATE * len(self.rates):
            return f"too few samples ({n})"
        if hidden:
            return "not identifiable: the regions run in lock-step with the sensor's window"
        if self._too_wide(rate, half_width):
            return f"not identifiable yet: ±{half_width:.3g} around {rate:.3g}"
        return ""

    def _too_wide(self, rate: float, half_width: float) -> bool:
        return half_width > WIDEST_HALF_WIDTH * max(abs(rate), self.mean)

    def _overlap(self, weights: Floats, n: int) -> Rate | None:
        """The mean of the windows by their overlap with the columns, if those fill them well enough.

        Where the columns are active for a share `f` of such windows, their mean is `f·rate + (1 - f)·rest`. No column's
        rate is above its ceiling, what it would be if its windows held nothing else; nor is, so, the rest, which bounds
        the rate without solving any equations.
        """
        used = weights > 0
        share = float(self.gram[used].sum())
        unseen = used & (self._scale == 0)
        # Of a column that no window had, nothing is known but the highest rate that there can be.
        if not n or share <= 0 or not np.isfinite(self.noise) or (unseen.any() and not np.isfinite(self.most)):
            return None
        # Shares of a window add up to 1, so that a row of the equations adds up to the column's own share.
        filled = float(self.gram[np.ix_(used, used)].sum()) / share
        mean = float(self.moment[used].sum()) / share
        ceilings = np.where(unseen, self.most, np.minimum(self.most, self.moment * self._scale**2))
        rest = float(self.gram[np.ix_(used, ~used)].sum(axis=0) @ ceilings[~used]) / share
        # The columns are in the windows in proportions of their own, which may differ from the ones asked for.
        surplus = weights - np.where(used, self.gram[used].sum(axis=0), 0.0) / (filled * share)
        low = (mean - rest) / filled + float(np.minimum(surplus, 0.0) @ ceilings)
        high = mean / filled + float(np.maximum(surplus, 0.0) @ ceilings)
        low, high = max(0.0, low), min(self.most, high)
        noise = Z95 * float(np.sqrt(self.noise / (filled * share)))
        rate, half_width = (low + high) / 2, (high - low) / 2 + noise
        return None if self._too_wide(rate, half_width) else Rate(rate, half_width, n, "", "overlap")


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
