"""The evidence behind a verdict, from any source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Basis = Literal["kernels", "counters", "operation", "coarse"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence on a region. Every value is a ratio; unknown values are absent.

    `busy` is the GPU's busy share of the region, `device_busy` the device's over all of the samples. Further values are
    the activities of pipes and memory, `power` over the limit and `clock` over the maximum. `pcie` and `nvlink` are
    over the link's capacity, in the busier direction. `throttled` is the share of the region's time in which the driver
    lowered the clocks; for one execution it is that share of the device's last minute.
    `n` is the number of sensor windows, GPU operations or timed runs behind the values. `highest` has the highest
    possible activity of each pipe that the device counts and that has no value: the upper end of a refused rate's
    interval, or 1.
    """

    basis: Basis
    values: Mapping[str, float]
    n: int
    coverage: float
    half_width: float | None = None
    reason: str = ""
    highest: Mapping[str, float] = field(default_factory=dict)

    def get(self, key: str) -> float | None:
        """A value, or None where it is unknown."""
        return self.values.get(key)
