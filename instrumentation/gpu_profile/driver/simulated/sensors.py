"""The sensors of a simulated device: exact totals, reduced by windows, refresh periods and rounding."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final
from zlib import crc32

import numpy as np

from gpu_profile.driver.simulated.activity import SimulatedActivity
from gpu_profile.driver.simulated.models import DeviceModel
from gpu_profile.driver.simulated.physics import Floats, Ints, SimulatedQuantity
from gpu_profile.units import NS_PER_S

_MS: Final = 1_000_000
GPM_REFRESH_NS: Final = 100 * _MS
COUNTER_REFRESH_NS: Final = 100 * _MS
#: The driver's sample buffers: the period of power samples, and the number of samples kept of any kind.
POWER_SAMPLE_NS: Final = 20 * _MS
SAMPLES_KEPT: Final = 120
#: The response of power samples, as on an H200: exponential with 15 ms, delayed by 4.5 ms, in steps of `_STEP_NS`.
FOLLOWED_NS: Final = 15 * _MS
LATE_NS: Final = 4_500_000
_STEP_NS: Final = 2 * _MS
_WEIGHTS: Final = np.exp(-np.arange(0, 8 * FOLLOWED_NS, _STEP_NS) / FOLLOWED_NS)
POWER_AVERAGE_NS: Final = NS_PER_S
_WARM_UP_NS: Final = 20 * NS_PER_S
_AMBIENT, _HOT = 30.0, 80.0


class Sensors:
    """The readings of one device at any `t_ns` after `epoch_ns`, at which all its sensors start.

    Sensors refresh at whole multiples of their periods since `epoch_ns`. `noise` is the relative standard deviation of
    power readings. It is drawn from `seed` and the moment of the refresh, so that all readers get the same value.
    """

    def __init__(
        self, model: DeviceModel, activity: SimulatedActivity, epoch_ns: int, *, noise: float = 0.0, seed: int = 0
    ):
        self.model, self.activity, self.epoch_ns = model, activity, epoch_ns
        self._noise, self._seed = noise, seed
        self._memo: dict[int, Floats] = {}

    def forget(self) -> None:
        """Clear the cached totals, which new work may have changed."""
        self._memo.clear()

    def totals(self, t_ns: int) -> Floats:
        """The exact totals at `t_ns`."""
        totals = self._memo.get(t_ns)
        if totals is None:
            if len(self._memo) > 256:
                self._memo.clear()
            totals = self._memo[t_ns] = self.activity.totals(t_ns)
        return totals

    def refreshed(self, t_ns: int, period_ns: int) -> int:
        """The moment of the last refresh of a sensor with this period."""
        return t_ns - (t_ns - self.epoch_ns) % period_ns

    def mean(self, column: SimulatedQuantity, end_ns: int, window_ns: int) -> float:
        """The exact mean rate of `column` over the window that ends at `end_ns`, per second."""
        growth = self.totals(end_ns)[column] - self.totals(end_ns - window_ns)[column]
        return float(growth) * NS_PER_S / window_ns

    def utilization(self, t_ns: int) -> tuple[int, int]:
        """Busy time of kernels and of device memory in the trailing window, in whole per cent."""
        end = self.refreshed(t_ns, self.model.utilization_refresh_ns)
        window = self.model.utilization_window_ns
        return _percent(self.mean(SimulatedQuantity.BUSY, end, window)), _percent(
            self.mean(SimulatedQuantity.MEMORY_BUSY, end, window)
        )

    def power_instant_mw(self, t_ns: int) -> int:
        """Power over the model's short window, in mW; refreshed every 100 ms."""
        return self._power(t_ns, self.model.power_window_ns)

    def power_average_mw(self, t_ns: int) -> int:
        """Power over the last second, in mW; refreshed every 100 ms."""
        return self._power(t_ns, POWER_AVERAGE_NS)

    def _power(self, t_ns: int, window_ns: int) -> int:
        end = self.refreshed(t_ns, self.model.power_refresh_ns)
        watts = self.model.idle_w + self.mean(SimulatedQuantity.ENERGY, end, window_ns)
        return round(watts * 1000 * self._factor(end, window_ns))

    def _factor(self, end_ns: int, window_ns: int) -> float:
        if not self._noise:
            return 1.0
        draw = crc32(f"{self._seed}/{self.model.key}/{end_ns}/{window_ns}".encode()) + 0.5
        return max(0.0, 1.0 + self._noise * NormalDist().inv_cdf(draw / (1 << 32)))

    def energy_mj(self, t_ns: int, loaded_ns: int) -> int:
        """The energy counter in mJ since the driver was loaded; refreshed every 100 ms."""
        end = max(loaded_ns, self.refreshed(t_ns, COUNTER_REFRESH_NS))
        joules = float(self.totals(end)[SimulatedQuantity.ENERGY])
        if loaded_ns > self.epoch_ns:
            joules -= float(self.totals(loaded_ns)[SimulatedQuantity.ENERGY])
        return int((self.model.idle_w * (end - loaded_ns) / NS_PER_S + joules) * 1000)

    def throttled_ns(self, t_ns: int) -> int:
        """Time at the power limit, in ns; refreshed every 100 ms."""
        return round(
            float(self.totals(self.refreshed(t_ns, COUNTER_REFRESH_NS))[SimulatedQuantity.THROTTLED]) * NS_PER_S
        )

    def counted(self, column: SimulatedQuantity, t_ns: int) -> int:
        """A byte counter of the hardware: no refresh period."""
        return round(float(self.totals(t_ns)[column]))

    def sm_clock_mhz(self, t_ns: int) -> int:
        """The clock in the last refresh: idle without work, lower at the power limit."""
        end = self.refreshed(t_ns, COUNTER_REFRESH_NS)
        if self.mean(SimulatedQuantity.BUSY, end, COUNTER_REFRESH_NS) <= 0:
            return self.model.idle_clock_mhz
        throttled = self.mean(SimulatedQuantity.THROTTLED, end, COUNTER_REFRESH_NS)
        return round(self.model.sm_clock_mhz * (1 - 0.2 * throttled))

    def temperature_c(self, t_ns: int) -> int:
        """Core temperature, from the mean power of the last 20 s; refreshed every second."""
        end = self.refreshed(t_ns, NS_PER_S)
        watts = self.model.idle_w + self.mean(SimulatedQuantity.ENERGY, end, _WARM_UP_NS)
        return round(_AMBIENT + (_HOT - _AMBIENT) * watts / self.model.tdp_w)

    def gpm_snapshot(self, t_ns: int) -> tuple[int, Floats]:
        """The content of a GPM sample at `t_ns`: the moment of the last internal refresh, and its totals."""
        end = self.refreshed(t_ns, GPM_REFRESH_NS)
        return end, self.totals(end)

    def utilization_samples(self, t_ns: int, after_ns: int) -> tuple[Ints, Ints, Ints]:
        """The driver's buffer after `after_ns`: refresh moments, and utilisation of kernels and memory in per cent."""
        window = self.model.utilization_window_ns
        ends = self._instants(t_ns, after_ns, self.model.utilization_refresh_ns)
        growth = self.activity.many(ends) - self.activity.many(ends - window)
        share = np.clip(np.floor(growth * (NS_PER_S / window) * 100 + 0.5), 0, 100).astype(np.int64)
        return ends, share[:, SimulatedQuantity.BUSY], share[:, SimulatedQuantity.MEMORY_BUSY]

    def power_samples(self, t_ns: int, after_ns: int) -> tuple[Ints, Ints]:
        """The driver's buffer after `after_ns`: moments 20 ms apart, and power in mW of a sensor that responds within
        milliseconds."""
        ends = self._instants(t_ns, after_ns, POWER_SAMPLE_NS)
        if not len(ends):
            return ends, ends
        first, last = int(ends[0]) - LATE_NS - len(_WEIGHTS) * _STEP_NS, int(ends[-1]) - LATE_NS
        energy = self.activity.many(np.arange(first, last + 1, _STEP_NS))[:, SimulatedQuantity.ENERGY]
        steps = np.convolve(np.diff(energy), _WEIGHTS / _WEIGHTS.sum(), "valid") * (NS_PER_S / _STEP_NS)
        watts = self.model.idle_w + steps[:: POWER_SAMPLE_NS // _STEP_NS]
        noise = np.array([self._factor(end, POWER_SAMPLE_NS) for end in ends.tolist()])
        return ends, np.round(watts * 1000 * noise).astype(np.int64)

    def clock_samples(self, t_ns: int, after_ns: int) -> tuple[Ints, Ints]:
        """The driver's buffer after `after_ns`: moments, and the clock of the multiprocessors in MHz."""
        ends = self._instants(t_ns, after_ns, self.model.utilization_refresh_ns)
        return ends, np.array([self.sm_clock_mhz(int(end)) for end in ends], np.int64)

    def _instants(self, t_ns: int, after_ns: int, period_ns: int) -> Ints:
        last = (t_ns - self.epoch_ns) // period_ns
        first = max(last - SAMPLES_KEPT + 1, (after_ns - self.epoch_ns) // period_ns + 1, 1)
        return self.epoch_ns + np.arange(first, last + 1, dtype=np.int64) * period_ns


def _percent(share: float) -> int:
    return min(100, max(0, int(share * 100 + 0.5)))
