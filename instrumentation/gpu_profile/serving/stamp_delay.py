"""The delay of requests' stamps behind those of iterations. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gpu_profile.history.timeline import Ints

#: Trial delays, the weights of a delay and its neighbours, and the weight of earlier requests after each new one.
_DELAYS_NS = range(-20_000_000, 79_000_000, 3_000_000)
_WEIGHTS, _FORGET = (1.0, 2.0, 1.0), 0.98


class StampDelay:
    """Finds the delay from the ends of requests: the next iteration has fewer requests."""

    def __init__(self) -> None:
        #: The delay in ns.
        self.ns, self._scores = 0, np.zeros(len(_DELAYS_NS))

    def learn(self, end_ns: int, ends: Sequence[int], counts: Ints) -> None:
        """Correct it by a request that ended at a time. `ends[n]` and `counts[n]` are the ends of iterations with
        decode, and their requests in decode (-1: unknown)."""
        low = max(0, bisect_left(ends, end_ns - _DELAYS_NS[-1]) - 1)
        high = min(len(ends), bisect_left(ends, end_ns - _DELAYS_NS[0]) + 2)
        if high - low > 1:
            self._scores *= _FORGET
        for place, (count, later) in enumerate(pairwise(counts[low:high].tolist()), low):
            if 0 <= later < count:
                # The delays with which the stamp is nearest to the end of this iteration.
                near = ends[max(place - 1, low) : place + 2]
                shortest = (end_ns - (near[-1] + near[-2]) // 2 - _DELAYS_NS[0]) / _DELAYS_NS.step
                longest = (end_ns - (near[0] + near[1]) // 2 - _DELAYS_NS[0]) / _DELAYS_NS.step
                last = len(_DELAYS_NS) if place == low else math.ceil(longest)
                self._scores[max(0, math.ceil(shortest)) : max(0, last)] += 1.0
        # Neighbours of the best delay often have the same iterations: then the middle of them is best.
        smooth = np.convolve(self._scores, _WEIGHTS, mode="same")
        if (best := int(smooth.argmax())) or smooth[0] > 0:
            self.ns = _DELAYS_NS[best]
