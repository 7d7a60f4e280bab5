"""The rates of regions in successive periods of time, from the windows of each period alone. Pure.

The equations of a pool are sums over all executions. They assume steady rates: after a change of the work, they show
the mean of before and after, or contradict themselves. A period has equations of its own, with the pool's timing of the
sensor. They are solved without the pool's models of errors: a period decides a regime, and shares out nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.pools.mixture import Mixture
from gpu_profile.join.unmixing.pools.period_sums import PeriodSums
from gpu_profile.join.unmixing.solving.equations import sized
from gpu_profile.join.unmixing.solving.rate import Rate
from gpu_profile.join.unmixing.solving.region_columns import RegionColumns
from gpu_profile.units import NS_PER_S

#: The length of a period: some 100 windows at 10 Hz. Windows come in batches of `PATIENCE_NS`, half of that.
PERIOD_NS: Final = 10 * NS_PER_S


class Period(NamedTuple):
    """One period of a device, by region that was active in it.

    `rates` are by signal, in base units, while the region or one inside it is active; an unusable rate has its reason.
    `means` are the device's own, over the period's windows.
    """

    start_ns: int
    end_ns: int
    rates: Mapping[str, Mapping[Signal, Rate]]
    means: Mapping[Signal, float]


class Periods:
    """The periods of one device, from `start_ns` on. `listeners` are called with each period that is over."""

    def __init__(self, columns: RegionColumns, start_ns: int) -> None:
        self.listeners: list[Callable[[Period], None]] = []
        self._columns = columns
        self._start_ns = start_ns
        #: By region: the active time of every column inside it, by the start of the period.
        self._inside: dict[str, Floats] = {}

    def reach(self, now_ns: int, mixtures: Sequence[Mixture]) -> None:
        """End the period if it is long enough. Drop it if the clock was set back, or a region lost its columns."""
        broken = now_ns < self._start_ns or not self._inside.keys() <= self._columns.names
        if not broken and now_ns - self._start_ns < PERIOD_NS:
            return
        # A guess at the timing gives no rates, and a signal may have left its family since its last windows.
        sound = (m for m in mixtures if m.timed and not m.untrusted and m.period.n)
        live = [mixture for mixture in sound if len(mixture.period.means) == len(mixture.signals)]
        if self.listeners and live and not broken:
            period = self._measured(now_ns, live)
            for listener in self.listeners:
                listener(period)
        self._start_ns = now_ns
        self._inside = {region: self._columns.inside(region).copy() for region in self._columns.names}
        for mixture in mixtures:
            mixture.period = PeriodSums()

    def _measured(self, now_ns: int, mixtures: Sequence[Mixture]) -> Period:
        rates: dict[str, dict[Signal, Rate]] = {}
        means: dict[Signal, float] = {}
        for mixture in mixtures:
            means |= zip(mixture.signals, mixture.period.means, strict=True)
        joint = self._columns.joint()
        for region in self._columns.names:
            inside = self._columns.inside(region)
            active = inside - sized(self._inside.get(region, np.zeros(0)), len(inside))
            if not active.any():
                continue
            weights = sized(active, len(joint)) @ joint
            weights /= weights.sum()
            rates[region] = {}
            for mixture in mixtures:
                own = mixture.period.rates(weights, mixture.family.most)
                rates[region] |= zip(mixture.signals, own, strict=True)
        return Period(self._start_ns, now_ns, rates, means)
