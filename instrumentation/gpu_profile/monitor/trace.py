"""The utilisation of a long run at a coarse resolution, for the part that the history no longer contains. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from gpu_profile.monitor.gpu_summary import TRACE

#: The most steps of a trace, and their first length.
MOST_STEPS: Final = 8 * TRACE
FIRST_STEP_NS: Final = 10_000_000


class UtilisationTrace:
    """The utilisation of a run of any length in at most `MOST_STEPS` steps. When these are full, pairs are merged."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = self._last_ns = start_ns
        self._step_ns = FIRST_STEP_NS
        #: For each step: the integral of the ratio in ns, and the ns covered by samples.
        self._masses: list[float] = []
        self._covered: list[int] = []

    def add(self, start_ns: int, end_ns: int, ratio: float) -> None:
        """Add the mean of an interval. The part before the end of the previous intervals is ignored."""
        start_ns = max(start_ns, self._last_ns)
        if end_ns <= start_ns:
            return
        self._last_ns = end_ns
        while (end_ns - self._start_ns) > MOST_STEPS * self._step_ns:
            self._step_ns *= 2
            self._masses = [sum(self._masses[i : i + 2]) for i in range(0, len(self._masses), 2)]
            self._covered = [sum(self._covered[i : i + 2]) for i in range(0, len(self._covered), 2)]
        a = start_ns - self._start_ns
        while a < end_ns - self._start_ns:
            i = a // self._step_ns
            b = min((i + 1) * self._step_ns, end_ns - self._start_ns)
            missing = i + 1 - len(self._covered)
            self._masses += [0.0] * missing
            self._covered += [0] * missing
            self._masses[i] += (b - a) * ratio
            self._covered[i] += b - a
            a = b

    def means(self, edges: Sequence[int]) -> list[float | None]:
        """The mean between each two neighbours of `edges`, in ns; None without samples."""
        means: list[float | None] = []
        for a, b in pairwise(edges):
            mass = covered = 0.0
            first, last = (max(0, t - self._start_ns) // self._step_ns for t in (a, b - 1))
            for i in range(first, min(last + 1, len(self._covered))):
                low, high = self._start_ns + i * self._step_ns, self._start_ns + (i + 1) * self._step_ns
                share = (min(b, high) - max(a, low)) / self._step_ns
                mass += share * self._masses[i]
                covered += share * self._covered[i]
            means.append(mass / covered if covered > 0 else None)
        return means
