"""The equations of one period's windows, and their solution by plain least squares. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.rate import WIDEST_HALF_WIDTH, Z95, Rate, not_yet
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, WINDOWS_PER_RATE

#: Directions with less than this share of the largest are rounding. A mixture is undetermined if more than `_OUTSIDE`
#: of it lies there.
_ROUNDING: Final = 1e-9
_OUTSIDE: Final = 1e-3
#: Half-widths are never judged against less than this share of the highest possible rate. Shares of time or of a
#: ceiling are compared with thresholds of a half and more: a tenth too many or too few is near enough.
_NOTHING: Final = 0.005
_NOTHING_OF_SHARES: Final = 0.4


class PeriodSums:
    """Sums over windows of a family of signals. The unknowns are the rate outside regions, then the columns' rates."""

    def __init__(self, columns: int = 1, outputs: int = 0) -> None:
        self.n = 0
        self._gram: Floats = np.zeros((columns, columns))
        self._moment: Floats = np.zeros((columns, outputs))
        self._sum, self._square = np.zeros(outputs), np.zeros(outputs)
        #: The rates by column and signal, their covariance in units of the noise, and the noise of each signal.
        self._solved: tuple[Floats, Floats, Floats] | None = None

    @property
    def means(self) -> Sequence[float]:
        """The mean reading of each signal."""
        result: list[float] = (self._sum / max(1, self.n)).tolist()
        return result

    def add(self, shares: Floats, values: Floats, times: Ints | None = None) -> None:
        """Add windows: the share of each in which each column was active, `[n, columns]`, and `values[n, signals]`.
        Each is added as often as `times[n]` says, else once."""
        if times is not None and times.max(initial=1) > 1:
            shares, values = shares.repeat(times, axis=0), values.repeat(times, axis=0)
        size, outputs = shares.shape[1], values.shape[1]
        if outputs != self._moment.shape[1]:  # a signal has left its family, or these are the first windows
            PeriodSums.__init__(self, size, outputs)
        if (more := size - len(self._gram)) > 0:
            self._gram, self._moment = np.pad(self._gram, (0, more)), np.pad(self._moment, ((0, more), (0, 0)))
        self._gram[:size, :size] += shares.T @ shares
        self._moment[:size] += shares.T @ values
        self._sum, self._square = self._sum + values.sum(axis=0), self._square + (values**2).sum(axis=0)
        self.n += len(values)
        self._solved = None

    def rates(self, weights: Floats, most: float) -> list[Rate]:
        """The rate of each signal for a mixture of columns, in base units, at most `most`. `weights` add up to 1."""
        size = len(self._gram)
        weights = np.append(weights[:size], np.zeros(max(0, size - len(weights))))
        solution, covariance, noise = self._solution()
        # A column in no window, or one that always accompanies another, has no rate of its own.
        projected = covariance @ self._gram @ weights
        undetermined = abs(weights.sum() - 1.0) > _OUTSIDE or float(np.abs(projected - weights).sum()) > _OUTSIDE
        variance = max(0.0, float(weights @ covariance @ weights))
        few = "" if np.isfinite(noise).all() else f"too few samples ({self.n})"
        results = []
        for value, noise_of_it, mean in zip((weights @ solution).tolist(), noise.tolist(), self.means, strict=True):
            half_width = math.inf if undetermined or few else Z95 * math.sqrt(variance * noise_of_it)
            least = _NOTHING_OF_SHARES if most <= 1.0 else _NOTHING * most
            nothing = least if math.isfinite(most) else 0.0
            widest = WIDEST_HALF_WIDTH * max(abs(value), mean, nothing)
            wide = "" if half_width <= widest else not_yet(value, half_width, half_width, widest)
            reason = few or (LOCK_STEP if undetermined else wide)
            results.append(Rate(min(max(value, 0.0), most), half_width, self.n, reason))
        return results

    def _solution(self) -> tuple[Floats, Floats, Floats]:
        if self._solved is None:
            strengths, directions = np.linalg.eigh(self._gram)
            used = strengths > _ROUNDING * max(float(strengths[-1]), 1e-300)
            covariance = (directions[:, used] / strengths[used]) @ directions[:, used].T
            solution, rank = covariance @ self._moment, int(used.sum())
            left = np.maximum(0.0, self._square - (solution * self._moment).sum(axis=0))
            enough = self.n >= WINDOWS_PER_RATE * max(1, rank)
            noise = left / (self.n - rank) if enough else np.full(len(left), np.inf)
            self._solved = solution, covariance, noise
        return self._solved
