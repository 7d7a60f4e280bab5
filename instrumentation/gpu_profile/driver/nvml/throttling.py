"""Throttle time for drivers without a counter: integrated from the throttle reasons of each reading."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample, plain_sample
from gpu_profile.units import NS_PER_S

#: The time between two readings does not count if it exceeds both this and twice the time between the two before: the
#: reasons in between are unknown. `SELDOM_NS` is the longest interval between readings that users can configure.
LONGEST_NS: Final = 2 * NS_PER_S
SELDOM_NS: Final = 60 * NS_PER_S


class ThrottleTimes:
    """The time in ns for which each of the given bits of NVML's mask was set.

    The time between two readings counts in full if both have the bit set, and by half if one has. `totals`: the totals
    by signal from which to continue; missing ones start at 0.
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
        """Add a reading, and return the totals."""
        before_ns, before = self._before or (now_ns, mask)
        self._before = now_ns, mask
        passed = now_ns - before_ns
        longest_ns, self._usual_ns = max(LONGEST_NS, 2 * self._usual_ns), min(max(passed, 0), SELDOM_NS)
        if 0 < passed <= longest_ns:
            for signal, bit in self._bits:
                self._totals[signal] += passed * (bool(before & bit) + bool(mask & bit)) // 2
        return [plain_sample(Sample, (signal, now_ns, now_ns, self._totals[signal])) for signal, _ in self._bits]
