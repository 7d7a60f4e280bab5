"""A region's rate of a signal, and the reason for a rate that more windows would identify. Pure."""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

#: A rate is given if its half-width is below this share of the rate or of the signal's mean, whichever is larger.
WIDEST_HALF_WIDTH: Final = 0.25
#: How much longer a run must be, below each factor. Beyond the last one, no length is suggested.
_ORDERS: Final = ((4.0, "a few times"), (30.0, "of the order of 10 times"), (100.0, "of the order of 100 times"))


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
