"""The delay of requests' stamps behind those of iterations. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gpu_profile.history.timeline import Ints

#: Trial delays, and the weight of earlier requests after each new one.
_SHORTEST_NS, _LONGEST_NS, _STEP_NS, _FORGET = -20_000_000, 76_000_000, 3_000_000, 0.98
_DELAYS_NS = range(_SHORTEST_NS, _LONGEST_NS + 1, _STEP_NS)


class StampDelay:
    """Finds the delay from the ends of requests: the next iteration has fewer requests, or less context than the same
    requests would have."""

    def __init__(self) -> None:
        #: The delay in ns.
        self.ns, self._scores = 0, np.zeros(len(_DELAYS_NS))

    def learn(self, end_ns: int, starts: Sequence[int], ends: Sequence[int], counts: Ints, contexts: Ints) -> None:
        """Correct it by a request that ended at a time. Of iterations with decode, `starts` and `ends` are the times,
        `counts` the requests in decode (-1: unknown) and `contexts` the context of these (0: unknown)."""
        low = max(0, bisect_left(ends, end_ns - _LONGEST_NS) - 1)
        high = min(len(ends), bisect_left(ends, end_ns - _SHORTEST_NS) + 2)
        if high - low < 2:
            return
        scores = self._scores
        scores *= _FORGET
        since_ns = end_ns - _SHORTEST_NS
        some = zip(counts[low:high].tolist(), contexts[low:high].tolist(), strict=True)
        for place, ((count, context), (later, later_context)) in enumerate(pairwise(some), low):
            if 0 <= later < count or 0 < later_context < context + count:
                # The delays with which the stamp is nearest to the end of this iteration, and not before its middle.
                shortest = (since_ns - (ends[place] + ends[place + 1]) // 2) / _STEP_NS
                longest = (since_ns - (starts[place] + ends[place]) // 2) / _STEP_NS
                scores[max(0, math.ceil(shortest)) : max(0, math.ceil(longest))] += 1.0
        # Neighbours of the best delay often have the same iterations: then the middle of them is best.
        smooth = 2 * scores
        smooth[1:] += scores[:-1]
        smooth[:-1] += scores[1:]
        if (best := int(smooth.argmax())) or smooth[0] > 0:
            self.ns = _DELAYS_NS[best]
