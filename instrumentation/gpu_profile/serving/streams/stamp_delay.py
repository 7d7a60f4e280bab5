"""The delay of requests' stamps behind those of iterations. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Ints

#: Trial delays, and the weight of earlier requests after each new one.
_SHORTEST_NS, _LONGEST_NS, _STEP_NS, _FORGET = -20_000_000, 76_000_000, 3_000_000, 0.98
_DELAYS_NS = range(_SHORTEST_NS, _LONGEST_NS + 1, _STEP_NS)
_RANGE_NS: Final = len(_DELAYS_NS) * _STEP_NS
_KERNEL: Final = np.array([1.0, 2.0, 1.0])


class StampDelay:
    """Finds the delay from the ends of requests: the next iteration has fewer requests, or less context than the same
    requests would have."""

    def __init__(self) -> None:
        #: The delay in ns. The scores of the trial delays, between two zeros.
        self.ns, self._scores = 0, np.zeros(len(_DELAYS_NS) + 2)
        #: The last iteration: its start and end, requests and context.
        self._last: tuple[int, int, int, int] | None = None
        #: The iterations after which requests ended: their middles, and the middles between their ends and the next
        #: iterations' ends.
        self._middles: list[int] = []
        self._between: list[int] = []

    def add(self, starts: Ints, ends: Ints, counts: Ints, contexts: Ints) -> None:
        """Add iterations with decode, later than all earlier ones: their times in ns, the requests in decode (-1:
        unknown) and the context of these (0: unknown)."""
        if not len(starts):
            return
        rows = np.array((starts, ends, counts, contexts), np.int64)
        if self._last is not None:
            rows = np.column_stack((np.array(self._last, np.int64), rows))
        self._last = starts[-1].item(), ends[-1].item(), counts[-1].item(), contexts[-1].item()
        starts, ends, counts, contexts = rows
        fewer = (counts[1:] >= 0) & (counts[1:] < counts[:-1])
        shorter = (contexts[1:] > 0) & (contexts[1:] < contexts[:-1] + counts[:-1])
        some = np.flatnonzero(fewer | shorter)
        self._middles += ((starts[some] + ends[some]) // 2).tolist()
        self._between += ((ends[some] + ends[some + 1]) // 2).tolist()

    def forget(self, before_ns: int) -> None:
        """Drop iterations that ended before a time or at it."""
        gone = bisect_left(self._middles, before_ns)
        del self._middles[:gone], self._between[:gone]

    def learn(self, end_ns: int, ends: Sequence[int]) -> None:
        """Correct it by a request that ended at a time. `ends` are the ends of all iterations that were added
        and not dropped."""
        low = max(0, bisect_left(ends, end_ns - _LONGEST_NS) - 1)
        if bisect_left(ends, end_ns - _SHORTEST_NS) + 2 - low < 2 or len(ends) - low < 2:
            return
        scores, since_ns = self._scores, end_ns - _SHORTEST_NS
        scores *= _FORGET
        place, before = bisect_left(self._between, since_ns - _RANGE_NS), bisect_left(self._middles, since_ns)
        if place >= before:
            return
        for middle_ns, between_ns in zip(self._middles[place:before], self._between[place:before], strict=True):
            # The delays with which the stamp is nearest to the end of this iteration, and not before its middle.
            first = max(0, -((between_ns - since_ns) // _STEP_NS))
            scores[1 + first : 1 - (middle_ns - since_ns) // _STEP_NS] += 1.0
        scores[-1] = 0.0
        # Neighbours of the best delay often have the same iterations: then the middle of them is best.
        smooth = np.convolve(scores, _KERNEL, "valid")
        if (best := int(smooth.argmax())) or smooth[0] > 0:
            self.ns = _DELAYS_NS[best]
