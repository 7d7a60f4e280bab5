"""How far chance may put a value from the truth, where executions depend on one another. Pure.

`alpha` is the probability that an interval misses the truth, on either side together.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, pi, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats

Edges = tuple[float, float]

#: The bias of estimated correlations depends on the correlation time, which is estimated from them: so many rounds.
_ROUNDS: Final = 5
#: From so many degrees of freedom on, Student's t is the normal distribution in three digits.
_MANY: Final = 2_000
_ANGLES: Final = 20_001


def correlation_time(values: Floats) -> float:
    """How many successive executions tell as much about a mean as one independent one; at least 1.

    A warm-up is part of every run, and no sign that later executions depend on one another: it is the shorter time of
    all values and of all but the first quarter.
    """
    return min(_correlation_time(values), _correlation_time(values[len(values) // 4 :]))


def _correlation_time(values: Floats) -> float:
    """The initial monotone sequence of Geyer (*Statistical Science* 7, 1992), which needs no model of the dependence.

    A mean from the same values lowers each correlation by about the correlation time over n (Marriott and Pope,
    *Biometrika* 41, 1954); that is added back.
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
    """What the absolute value of a standard normal variable exceeds with probability `alpha`."""
    return NormalDist().inv_cdf(1.0 - alpha / 2.0)


@lru_cache(512)
def student_quantile(alpha: float, degrees: float) -> float:
    """The same of Student's t. The angle atan(t / sqrt(degrees)) has the density cos(angle)^(degrees - 1)."""
    if degrees >= _MANY:
        return normal_quantile(alpha)
    angles = np.linspace(0.0, pi / 2, _ANGLES)
    density = np.cos(angles) ** (degrees - 1.0)
    tail = np.cumsum(((density[:-1] + density[1:]) / 2)[::-1])[::-1]
    place = float(np.interp(alpha, (tail / tail[0])[::-1], angles[:-1][::-1]))
    return sqrt(degrees) * float(np.tan(place))


def mean_half_width(deviations: Floats, alpha: float, worth: float) -> float:
    """Of a mean, from the executions' deviations from it, which are `worth` so many independent ones."""
    return student_quantile(alpha, worth - 1.0) * sqrt(float(np.mean(deviations**2)) / (worth - 1.0))


def order_edges(ordered: Floats, q: float, alpha: float, worth: float) -> Edges | None:
    """Of a quantile: the values between whose ranks it lies, whatever the distribution. None if the ranks go beyond."""
    spread = normal_quantile(alpha) * sqrt(q * (1.0 - q) / worth)
    last = len(ordered) - 1
    low, high = floor((q - spread) * last), ceil((q + spread) * last)
    return None if low < 0 or high > last else (float(ordered[low]), float(ordered[high]))


def share_edges(share: float, alpha: float, worth: float) -> Edges:
    """Of a share of executions: Wilson's interval, which also holds where it is 0."""
    z = normal_quantile(alpha)
    centre, spread = share + z**2 / (2 * worth), z * sqrt(share * (1 - share) / worth + (z / (2 * worth)) ** 2)
    scale = 1 + z**2 / worth
    # Rounding must not lift the lower edge of no failures at all above none.
    return min(share, (centre - spread) / scale), max(share, (centre + spread) / scale)
