"""The pooled results of a region on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_profile.catalogue import Signal
from gpu_profile.join.unmixing.pools.meter import Metered
from gpu_profile.join.unmixing.pools.shares import Share
from gpu_profile.join.unmixing.solving.rate import Rate


@dataclass(frozen=True, slots=True)
class Pooled:
    """One device's activity for one region, over all its executions.

    `rates` are by signal, while the region or one inside it is active; an unusable rate has its reason. `alone` are the
    rates while nothing else is active on the device, if they differ. `inclusive_s` is the region's time, and `active_s`
    the part in which the region itself was innermost (exclusive). `busy` (in s) and `energy` (in J) are the current
    best estimates of exclusive shares; `busy_s` and `energy_j` are their values. `memory_max` is in bytes. `metered`
    covers executions of 2 s or more by themselves; None without any. `throttled` is the share of the region's time in
    which the driver held the clocks down, by reason; reasons without enough readings are missing. `busy_source` and
    `energy_source` are the signals with the best rates of busy time and power. The driver's power samples are scaled to
    the energy counter.
    """

    region: str
    device: str
    executions: int
    active_s: float
    inclusive_s: float
    rates: Mapping[Signal, Rate]
    alone: Mapping[Signal, Rate]
    busy: Share | None
    energy: Share | None
    memory_max: float | None
    metered: Metered | None
    throttled: Mapping[str, float]
    busy_source: Signal | None
    energy_source: Signal | None

    @property
    def busy_s(self) -> float | None:
        """Busy time."""
        return None if self.busy is None else self.busy.value

    @property
    def energy_j(self) -> float | None:
        """Energy."""
        return None if self.energy is None else self.energy.value
