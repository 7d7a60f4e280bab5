"""The sizes of confidence intervals of means, quantiles and shares of dependent executions. Pure.

`alpha` is the probability that an interval misses the truth, both sides together. `worth` is the number of independent
executions with the same information.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, pi, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats

Edges = tuple[float, float]

#: The bias of estimated correlations depends on the correlation time, which is estimated from them: hence the rounds.
_ROUNDS: Final = 5
#: From this many degrees of freedom on, Student's t is the normal distribution in three digits.
_MANY: Final = 2_000
_ANGLES: Final = 20_001


def correlation_time(values: Floats) -> float:
    """The number of successive executions with as much information on a mean as one independent one; at least 1.

    A warm-up is part of every run, and no sign that later executions depend on one another. So the result is the
    shorter time of two: of all values, and of all but the first quarter.
    """
    return min(_correlation_time(values), _correlation_time(values[len(values) // 4 :]))


def _correlation_time(values: Floats) -> float:
    """The initial monotone sequence of Geyer (*Statistical Science* 7, 1992). It needs no model of the dependence.

    Subtracting the mean of the same values lowers each correlation by about the correlation time over n (Marriott and
    Pope, *Biometrika* 41, 1954). The loop adds that back.
    """
    n = len(values)
    deviations = values - values.mean() if n else values
    power = float(deviations @ deviations)
    if n < 2 or power <= 0.0:
        return 1.0
    spectrum = np.fft.rfft(deviations, 2 * n)
    correlations = np.fft.irfft(spectrum * spectrum.conj(), 2 * n)[: n - n % 2] / power
    time = 0.0
    for _ in range(_ROUNDS):
        unbiased = correlations + (1.0 - correlations) * min(1.0, time / n)
        pairs = unbiased[::2] + unbiased[1::2]
        end = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
        # Each pair counts no more than the one before it: beyond the first few they are noise.
        time = max(0.0, 2.0 * float(np.minimum.accumulate(pairs[:end]).sum()) - 1.0)
    return max(1.0, time)


def normal_quantile(alpha: float) -> float:
    """The value that a standard normal variable exceeds in magnitude with probability `alpha`."""
    return NormalDist().inv_cdf(1.0 - alpha / 2.0)


@lru_cache(512)
def student_quantile(alpha: float, degrees: float) -> float:
    """The same for Student's t. The angle atan(t / sqrt(degrees)) has the density cos(angle)^(degrees - 1)."""
    if degrees >= _MANY:
        return normal_quantile(alpha)
    angles = np.linspace(0.0, pi / 2, _ANGLES)
    density = np.cos(angles) ** (degrees - 1.0)
    tail = np.cumsum(((density[:-1] + density[1:]) / 2)[::-1])[::-1]
    place = float(np.interp(alpha, (tail / tail[0])[::-1], angles[:-1][::-1]))
    return sqrt(degrees) * float(np.tan(place))


def mean_half_width(deviations: Floats, alpha: float, worth: float) -> float:
    """The half-width of a mean's interval, from the executions' deviations from the mean."""
    return student_quantile(alpha, worth - 1.0) * sqrt(float(np.mean(deviations**2)) / (worth - 1.0))


def order_edges(ordered: Floats, q: float, alpha: float, worth: float) -> Edges | None:
    """A quantile's interval between two order statistics, for any distribution. None if the ranks go beyond."""
    spread = normal_quantile(alpha) * sqrt(q * (1.0 - q) / worth)
    last = len(ordered) - 1
    low, high = floor((q - spread) * last), ceil((q + spread) * last)
    return None if low < 0 or high > last else (float(ordered[low]), float(ordered[high]))


def share_edges(share: float, alpha: float, worth: float) -> Edges:
    """The interval of a share of executions by Wilson, which also works for a share of 0."""
    z = normal_quantile(alpha)
    centre, spread = share + z**2 / (2 * worth), z * sqrt(share * (1 - share) / worth + (z / (2 * worth)) ** 2)
    scale = 1 + z**2 / worth
    # Rounding must not lift the lower edge above 0 if nothing failed.
    return min(share, (centre - spread) / scale), max(share, (centre + spread) / scale)
