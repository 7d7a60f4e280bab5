"""The evidence that a verdict rests on, whoever gathered it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Basis = Literal["kernels", "counters", "operation", "coarse"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a region when its regime is judged. Every value is a ratio; what is unknown is absent.

    `busy` is the GPU's own busy share of the region; `device_busy` that of the device over all that was seen; pipe
    and memory activities, `power` over the limit, `clock` over the maximum, `pcie` and `nvlink` over what the link
    carries in the busier direction, and `throttled`, the share of the region's time for which the driver held the
    clocks down, or, of one execution, that of the device's last minute, follow.
    `n` is how many sensor windows stand behind it.
    """

    basis: Basis
    values: Mapping[str, float]
    n: int
    coverage: float
    half_width: float | None = None
    reason: str = ""

    def get(self, key: str) -> float | None:
        """A value, or None where it is unknown."""
        return self.values.get(key)
