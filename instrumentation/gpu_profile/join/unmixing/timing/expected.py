"""Priors of a device's sensors, measured with a known load before this run's readings. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.signals import ENERGY, POWER, signal
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.solving.design import Windows
from gpu_profile.join.unmixing.solving.rate import Z95
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, Fit
from gpu_profile.join.unmixing.timing.timings import STEP_NS
from gpu_profile.join.unmixing.windows.probes import Prior, ProbeKind
from gpu_profile.join.unmixing.windows.sensor import GUARD_NS, Sensor

_MS: Final = 1e6
#: Times above this, in ms, belong to no sensor.
_LONGEST_MS: Final = 10_000.0
#: Clocks drift, so a period may be off by this share.
_PERIOD: Final = 0.001
UNTRUSTED: Final = "pooled numbers of this GPU are not trusted"
#: No timing is more certain than this: stamps of work are off too.
_SUREST_NS: Final = 500_000
#: If work is launched and not waited for, hosts stamp it late or early by some milliseconds (a standard deviation). The
#: search goes no further from the prior's lag than the second number.
_STAMPS_NS: Final = 2_000_000
_FARTHEST_NS: Final = 20_000_000
CONTRADICTED: Final = "not identifiable: the readings contradict what is known of the sensor"
#: Signals that the driver may stamp itself. A program's own windows, 50 a second, never determine their timing: they
#: are joined if a prior does.
GIVEN: Final = frozenset({POWER})
#: The residual of such readings under an exponential, as a share of their standard deviation, for chips of 10 to 52 ms
#: (0.12 to 0.33 on an H200): kernels draw more at their start, and no filter is exactly of first order.
_MISFIT: Final = 0.2
#: Readings come once a period if the time between them is within this share of it.
_SPACED: Final = 0.05


class SensorPrior(NamedTuple):
    """A sensor's timing without its phase, and the half-widths of its lag and window.

    `stamped`: the driver stamps each renewal. The search then varies only the lag, and only if stamps of work may be
    late, with standard deviation `late_ns`.
    """

    sensor: Sensor
    lag_ns: int
    window_ns: int
    stamped: bool = False
    late_ns: int = 0

    @classmethod
    def of(cls, signal: Signal, response: Mapping[str, Any]) -> Self:
        """From a response of `gpu-profile calibrate`. Raises LookupError, TypeError or ValueError if it is invalid."""

        def ns(part: str, index: int) -> int:
            ms = float(response[part][index])
            if not math.isfinite(ms) or abs(ms) > _LONGEST_MS or (index and ms < 0):
                raise ValueError(f"{part}: {ms} ms")
            return round(ms * _MS)

        period, window = ns("period_ms", 0), ns("window_ms", 0)
        if period < 0 or window < 0:
            raise ValueError("a period or a window below 0")
        sensor = Sensor(ns("lag_ms", 0), period, window_ns=window, smooth=response["shape"] == "exponential")
        return cls(sensor, ns("lag_ms", 1), ns("window_ms", 1), signal in GIVEN)

    @property
    def behind_stamps(self) -> Sensor:
        """The timing if stamps are the renewals' own."""
        return self.sensor._replace(period_ns=0)

    @property
    def prior(self) -> Prior | None:
        """The prior of a stamped sensor's timing; None if the timing is searched."""
        lag, window = (max(_SUREST_NS, half) / Z95 for half in (self.lag_ns, self.window_ns))
        spreads = {ProbeKind.LAG: math.hypot(lag, self.late_ns) / _MS, ProbeKind.WINDOW: window / _MS}
        return Prior(spreads, _MISFIT) if self.stamped else None

    @property
    def nearest_ns(self) -> int:
        """How far from the prior's lag the search may go, because stamps of work may be late."""
        return _FARTHEST_NS if self.late_ns else 0

    def off(self, lag_ns: int) -> float:
        """The distance of a lag from the prior's interval, in standard deviations of the lateness of work stamps."""
        return max(0, abs(lag_ns - self.sensor.lag_ns) - self.lag_ns) / max(1, self.late_ns)

    def likely(self, timing: Sensor) -> list[Sensor]:
        """Variants of a timing, with other windows that the prior allows."""
        moved = (timing.window_ns + round(self.window_ns * far) for far in (-1, -0.5, 0.5, 1))
        return [timing._replace(window_ns=max(timing.window_ns // 2, window)) for window in moved]

    def resembles(self, timing: Sensor) -> bool:
        """Whether a timing differs from the prior by no more than the prior and the stamps of work allow."""
        far = abs(timing.window_ns - self.sensor.window_ns) > self.window_ns + GUARD_NS
        late = abs(timing.lag_ns - self.sensor.lag_ns) > self.lag_ns + self.nearest_ns + GUARD_NS
        return timing.smooth == self.sensor.smooth and not far and not late

    def contradicted(self, best: Sequence[Sensor], windows: Windows, fit: Fit, effect: float, *, before: bool) -> bool:
        """Whether windows contradict the prior: none of the timings `best` is admitted. `fit` is their solution.

        A stamped sensor's prior is contradicted if another timing fits certainly better, if the windows move the timing
        far away, if readings do not come once a period, or if earlier, dropped windows contradicted it (`before`).
        """
        if self.prior is None:
            return not any(self.admits(each, windows.ends) for each in best)
        usual = float(np.median(windows.ends - windows.starts))
        spaced = abs(usual / max(1, self.sensor.period_ns) - 1) <= _SPACED
        shaped = math.isinf(effect) or (all(map(self.resembles, best)) and not fit.contradicts(self.prior))
        return before or not (spaced and shaped)

    def beside(self, *, exact: bool) -> Self:
        """The prior for `exact` stamps of work, from the device itself, or for a host's stamps."""
        return self._replace(late_ns=0 if exact else _STAMPS_NS) if self.stamped else self

    def doubt(self, effect: float, *, unexpected: bool) -> str:
        """Why a stamped sensor's timing gives no rates; empty if it does.

        `effect` is the search's design effect, `unexpected` the result of `contradicted`."""
        repeats = LOCK_STEP if math.isinf(effect) else ""
        return "" if not self.stamped else CONTRADICTED if unexpected else repeats

    def starts(self) -> list[Sensor]:
        """The timing at every phase: starts of the search."""
        sensor = self.sensor._replace(blur_ns=STEP_NS)
        return [sensor._replace(phase_ns=phase) for phase in range(0, sensor.period_ns, STEP_NS)] or [sensor]

    def admits(self, timing: Sensor, stamps: Ints) -> bool:
        """Whether a timing fitted to readings with these stamps is compatible with the prior."""
        prior = self.sensor
        if timing.smooth != prior.smooth or abs(timing.window_ns - prior.window_ns) > self.window_ns + GUARD_NS:
            return False
        slack = self.lag_ns + GUARD_NS
        if timing.period_ns and prior.period_ns and not (timing.in_step or timing.follows):
            alike = abs(timing.period_ns / prior.period_ns - 1) <= _PERIOD
            return alike and abs(timing.lag_ns - prior.lag_ns) <= slack
        # A timing without renewals has the mean age of one with renewals.
        age = float(np.median(stamps - timing.placed(stamps).moments(stamps)))
        return -slack <= age - prior.lag_ns <= prior.period_ns + slack


@dataclass(frozen=True, slots=True)
class DevicePrior:
    """The priors of one device's sensors, and why its pooled numbers are not trusted (empty if they are).

    `measured`: boards of this name were measured. Their energy counters count all of the time.
    """

    sensors: Mapping[Signal, SensorPrior] = field(default_factory=dict)
    untrusted: str = ""
    measured: bool = False

    @property
    def whole(self) -> bool:
        """Whether the energy counter measures all of the time, by its calibration or else by its board."""
        counter = self.sensors.get(ENERGY)
        return not counter.sensor.window_ns if counter else self.measured

    @classmethod
    def of_board(cls, name: str) -> Self:
        """The priors measured on other boards of this name."""
        sensors = next((sensors for board, sensors in _BOARDS.items() if re.search(board, name)), {})
        return cls(sensors, measured=bool(sensors))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From the file of `gpu-profile calibrate`. Raises LookupError, TypeError or ValueError if it is invalid.

        A response with a reason against it is ignored.
        """
        sensors = {
            (row := signal(key)): SensorPrior.of(row, each)
            for key, each in content["signals"].items()
            if not each["reason"]
        }
        missed = str(content["missed"])
        return cls(sensors, f"{UNTRUSTED}: {missed}" if missed else "")


def _expected_ms(period: float, lag: tuple[float, float], window: tuple[float, float]) -> SensorPrior:
    """An exponential that the driver stamps: its period, and its lag and time constant with half-widths, in ms."""
    (lag_ns, late_ns), (window_ns, wide_ns) = ([round(part * _MS) for part in each] for each in (lag, window))
    sensor = Sensor(lag_ns, round(period * _MS), window_ns=window_ns, smooth=True)
    return SensorPrior(sensor, late_ns, wide_ns, stamped=True)


#: By a pattern of the board's name: measured with a known load (`docs/accuracy.md`).
_BOARDS: Final[Mapping[str, Mapping[Signal, SensorPrior]]] = {
    r"\bH100 80GB HBM3$": {POWER: _expected_ms(20.0, (4.7, 1.5), (13.6, 2.0))},
    r"\bH200$": {POWER: _expected_ms(20.0, (4.5, 1.5), (15.0, 2.0))},
}
