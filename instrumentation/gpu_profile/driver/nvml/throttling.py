"""Throttle time where the driver has no counter of it: integrated here from the reasons that each reading shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.units import NS_PER_S

#: Between two readings further apart than this, and than twice the time between the two before, what happened is not
#: known, and not counted. `SELDOM_NS` is the longest interval between readings that can be asked for.
LONGEST_NS: Final = 2 * NS_PER_S
SELDOM_NS: Final = 60 * NS_PER_S


class ThrottleTimes:
    """The time for which each of some bits of NVML's mask was seen.

    Between two readings that both show a bit it counts in full, if one of them does by half. `totals`, by signal, go on
    from what they are; those that are not there start at 0.
    """

    def __init__(self, bits: Sequence[tuple[Signal, int]], totals: dict[Signal, int] | None = None) -> None:
        self._totals = {} if totals is None else totals
        for signal, _ in bits:
            self._totals.setdefault(signal, 0)
        self._bits = bits
        self._before: tuple[int, int] | None = None
        self._usual_ns = 0

    @property
    def signals(self) -> Collection[Signal]:
        """The signals that are integrated."""
        return [signal for signal, _ in self._bits]

    def read(self, now_ns: int, mask: int) -> list[Sample]:
        """Take in a reading, and return the totals."""
        before_ns, before = self._before or (now_ns, mask)
        self._before = now_ns, mask
        passed = now_ns - before_ns
        longest_ns, self._usual_ns = max(LONGEST_NS, 2 * self._usual_ns), min(max(passed, 0), SELDOM_NS)
        if 0 < passed <= longest_ns:
            for signal, bit in self._bits:
                self._totals[signal] += passed * (bool(before & bit) + bool(mask & bit)) // 2
        return [Sample(signal, now_ns, now_ns, self._totals[signal]) for signal, _ in self._bits]
