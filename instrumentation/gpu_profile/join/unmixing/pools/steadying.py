"""The windows of a family without the slow factor that its power has in common. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpu_profile.catalogue import POWER_SOURCES, Kind, Signal
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.common_factor import CommonFactor, stretches
from gpu_profile.join.unmixing.solving.design import Design, Windows
from gpu_profile.join.unmixing.timing.timing_search import Search, SensorTiming
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.sensor import Sensor
from gpu_profile.units import NS_PER_S


class Steadying:
    """The common factor of one family's windows, as of the latest search for the timing."""

    def __init__(self, lead: Signal) -> None:
        self._lead = lead
        self._common: CommonFactor | None = None
        #: `CommonFactor.taken` of the windows of the search.
        self.taken: Floats = np.zeros((2, 0))

    def searched(
        self,
        search_in: Callable[[Windows], Search],
        windows: Windows,
        active: ActiveTime,
        columns: int,
        most: float,
        length_of: Callable[[Sensor], int],
    ) -> tuple[Search, SensorTiming, Windows]:
        """A search for the timing and its result, and the windows at a factor of 1. If they differ from `windows`, the
        search is repeated in them. `length_of` gives the time over which a sensor's readings average, in ns."""
        search = search_in(windows)
        best = search.run()
        if self._lead not in POWER_SOURCES:
            return search, best, windows
        design = Design(windows, best.sensor, counts=self._lead.kind is Kind.COUNTER)
        steady = self._renewed(design, design.shares(active, columns), windows, most, length_of(best.sensor))
        if self._common is None:
            return search, best, windows
        search = search_in(steady)
        return search, search.run(), steady

    def _renewed(self, design: Design, shares: Floats, windows: Windows, most: float, over_ns: int) -> Windows:
        """Find the factor of the windows of a design, by `CommonFactor.of`. Returns them at a factor of 1."""
        values = design.values[:, 0]
        self._common, self.taken = CommonFactor.of(design.ends, shares, values, most, over_ns), np.zeros((2, 0))
        if (common := self._common) is None:
            return windows
        every = stretches(windows.ends, common.length_ns)
        place, by_stretch = every[windows.ends.searchsorted(design.ends)], np.ones(int(every[-1]) + 1)
        by_stretch[place] = factors = common.factors(shares, values, place)
        self.taken = common.taken(shares, factors)
        rest = common.lowest * (windows.ends - windows.starts)[:, None] / NS_PER_S
        return windows._replace(masses=rest + (windows.masses - rest) / by_stretch[every][:, None])

    def divided(self, shares: Floats, values: Floats, length_ns: int) -> tuple[Floats, Floats]:
        """New `values[n, signals]` at a factor of 1, and their factors. Windows have a mean length of `length_ns`."""
        if (common := self._common) is None:
            return values, np.ones(len(values))
        place = stretches(np.arange(len(values)) * length_ns, common.length_ns)
        factors = common.factors(shares, values[:, 0], place)
        return common.divided(shares, values[:, 0], factors)[:, None], factors

    def taken_by(self, factors: Floats, shares: Floats) -> Floats:
        """`CommonFactor.taken` of new windows with these factors."""
        return np.zeros((2, 0)) if self._common is None else self._common.taken(shares, factors)

    def forget(self) -> None:
        """Use no factor until the next search: the columns have changed."""
        self._common = None
