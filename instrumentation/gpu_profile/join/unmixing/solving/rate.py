"""A region's rate of a signal, the reason for a rate that more windows would identify, and biased intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats

STAMPED: Final = "not identifiable: it is too short for stamps that may be late"
UNMARKED: Final = "not identifiable: executions without a mark may be of several regions"
_BIASES: Final = frozenset({STAMPED, UNMARKED})

#: A rate is given if half of its range is below this share of the middle or of the signal's mean, whichever is larger.
WIDEST_HALF_WIDTH: Final = 0.25
#: A bias is small if it widens an interval by no more than this.
_SMALL: Final = 1.05
#: How much longer a run must be, below each factor. Beyond the last one, no length is suggested.
_ORDERS: Final = ((4.0, "a few times"), (30.0, "of the order of 10 times"), (100.0, "of the order of 100 times"))
#: 97.5 % quantile of the normal distribution: half-widths are those of 95 % intervals.
Z95: Final = 1.959964
#: 97.5 % quantiles of Student's t, for 1 to 15 degrees of freedom.
_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
#: The 95 % quantile of the normal distribution as a share of its 97.5 % quantile.
_ONE_SIDE: Final = 0.839


class Rate(NamedTuple):
    """A region's rate of a signal while it is active: value, half-width of its 95 % interval, number of windows.

    `reason` says why the value must not be used; it is empty if it may. `method` is "unmixed" for rates from the
    equations. It is "overlap" for the mean of the windows that overlap the region: then the half-width also covers the
    rest of these windows.
    """

    value: float
    half_width: float
    n: int
    reason: str = ""
    method: Literal["unmixed", "overlap"] = "unmixed"

    def beside(self, bias: float, mean: float, why: str) -> Rate:
        """This rate, if it may be off by up to `bias` besides; refused for the reason `why` if it is too wide then.
        `mean` is the signal's mean."""
        if self.reason:
            return self
        half_width = biased(self.half_width, bias)
        # A rate may be given with a wider interval because physics ends it: then a small bias refuses nothing.
        within = half_width <= max(WIDEST_HALF_WIDTH * max(self.value, mean), _SMALL * self.half_width)
        return self._replace(half_width=half_width, reason="" if within else why)


def not_yet(value: float, half_width: float, noise: float, widest: float) -> str:
    """The reason for a rate with a half-width above `widest`, of which `noise` averages out in a longer run.

    Noise falls with the root of the number of windows (an order of magnitude: `widest` follows from the rate, which is
    uncertain itself). No length is given if the other contributions are too wide alone.
    """
    room = widest - (half_width - noise)
    times = (noise / room) ** 2 if room > 0 else math.inf
    order = next((words for most, words in _ORDERS if times < most), "")
    longer = f"; a run {order} as long is needed" if order else ""
    return f"not identifiable yet: ±{half_width:.3g} around {value:.3g}{longer}"


def biased(half_width: float, bias: float) -> float:
    """The half-width of the 95 % interval of a value that has this half-width without a bias, and a `bias` of at most
    this size. Both are not as bad as possible together: chance misses on the side of the bias alone (Imbens and Manski,
    Econometrica 72 (2004), 1845). Right to 3 %."""
    return max(math.hypot(half_width, bias), bias + _ONE_SIDE * half_width)


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    return _T95[min(max(freedom, 1), len(_T95)) - 1]


def ways_of(changes: Floats | np.float64, unsure: float = 0.0) -> tuple[float, float]:
    """The largest decrease and the largest increase among changes of a rate, each by how much it exceeds `unsure`."""
    low, high = float(np.min(changes, initial=0.0)), float(np.max(changes, initial=0.0))
    return max(0.0, -low - unsure), max(0.0, high - unsure)


def total(widths: Mapping[str, float]) -> float:
    """The half-width by its parts by cause."""
    # Late stamps and executions without a mark have any effect up to these.
    bias = widths.get(STAMPED, 0.0) + widths.get(UNMARKED, 0.0)
    return biased(sum(width for cause, width in widths.items() if cause not in _BIASES), bias)


def within(
    value: float, widths: Mapping[str, float], ways: Mapping[str, tuple[float, float]], most: float
) -> tuple[float, float]:
    """The middle of the interval around `value` and its distance from the ends, within physics: from 0 to `most`.

    By cause, `widths` are the parts of the half-width, and `ways` the changes below and above the value that are part
    of them. The distance is infinite without such a middle, or if the value is impossible itself."""
    below, above = (
        total({cause: width + ways[cause][way] - max(ways[cause]) if cause in ways else width
               for cause, width in widths.items()})
        for way in (0, 1)
    )  # fmt: skip
    low, high = max(0.0, value - below), min(most, value + above)
    if not (0 <= value <= most and math.isfinite(high)):
        return value, math.inf
    return (low + high) / 2, (high - low) / 2


def rounded(value: float, half: float, weights: float, mean: float, share: float, most: float) -> float:
    """The largest change of a rate, from 0 to `most`, if every reading is rounded by `half` in the worst direction.

    The rate is a weighted sum of readings with this `mean`. The magnitudes of the weights add up to at most `weights`:
    by Cauchy and Schwarz, the root of the number of readings times the sum of the squared weights, which is the rate's
    variance divided by a reading's. The rate's columns are active for at least `share` of the time.
    """
    low = most - (most - mean + half) / share if share > 0 and math.isfinite(most) else -math.inf
    high = (mean + half) / share if share > 0 else math.inf
    return min(half * weights, max(value - max(0.0, low), min(most, high) - value, 0.0))
