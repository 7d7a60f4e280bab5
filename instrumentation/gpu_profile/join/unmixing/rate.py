"""A region's rate of a signal, and the reason for a rate that more windows would identify. Pure."""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

#: A rate is given if its half-width is below this share of the rate or of the signal's mean, whichever is larger.
WIDEST_HALF_WIDTH: Final = 0.25
#: A run that would have to be longer by more than this factor is not suggested.
_MOST_TIMES: Final = 100.0


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


def not_yet(value: float, half_width: float, widest: float) -> str:
    """The reason for a rate with a half-width above `widest`, mostly of noise; with the length of a sufficient run.

    An estimate: noise averages out with the root of the number of windows, other contributions may not.
    """
    times = (half_width / widest) ** 2 if widest > 0 else math.inf
    longer = f"; about {math.ceil(times + 1e-9)} times as long a run is needed" if times < _MOST_TIMES else ""
    return f"not identifiable yet: ±{half_width:.3g} around {value:.3g}{longer}"
