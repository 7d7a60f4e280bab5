"""What is known of a device's sensors before a reading of this run was seen: from a load that was known. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.signals import POWER, signal
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.design import Windows
from gpu_profile.join.unmixing.probes import Prior, ProbeKind
from gpu_profile.join.unmixing.sensor import GUARD_NS, Sensor
from gpu_profile.join.unmixing.timings import STEP_NS
from gpu_profile.join.unmixing.unmix import LOCK_STEP, Z95, Fit

_MS: Final = 1e6
#: What is beyond these is no sensor's, in ms.
_LONGEST_MS: Final = 10_000.0
#: A period may be off by this share, as clocks drift.
_PERIOD: Final = 0.001
UNTRUSTED: Final = "pooled numbers of this GPU are not trusted"
#: No timing is known better than this: stamps of work are off too.
_SUREST_NS: Final = 500_000
#: Hosts stamp work late or early by some milliseconds, where it is launched and not waited for. By more than this, no
#: lag is looked for.
_STAMPS_NS: Final = 2_000_000
_FARTHEST_NS: Final = 20_000_000
CONTRADICTED: Final = "not identifiable: the readings contradict what is known of the sensor"
#: Signals that the driver may stamp itself, whose timing is never looked for in a program's own windows, 50 a second:
#: they are joined where it is known beforehand.
GIVEN: Final = frozenset({POWER})
#: What an exponential leaves of such readings' standard deviation, of chips of 10 to 52 ms (0.12 to 0.33 on an H200):
#: kernels draw more to begin with, and no filter is one of first order.
_MISFIT: Final = 0.2
#: Readings come once a period if what lies between them is within this share of it.
_SPACED: Final = 0.05


class SensorPrior(NamedTuple):
    """A sensor's timing, whose phase nobody knows, with the half-widths of its lag and of its window.

    `stamped`: the driver stamps each renewal itself, and its shape is not looked for; nor is its lag, but where stamps
    of work are late by some constant, of a standard deviation of `late_ns`.
    """

    sensor: Sensor
    lag_ns: int
    window_ns: int
    stamped: bool = False
    late_ns: int = 0

    @classmethod
    def of(cls, signal: Signal, found: Mapping[str, Any]) -> Self:
        """From a response as `gpu-profile calibrate` keeps it. LookupError, TypeError or ValueError if it is none."""

        def ns(part: str, index: int) -> int:
            ms = float(found[part][index])
            if not math.isfinite(ms) or abs(ms) > _LONGEST_MS or (index and ms < 0):
                raise ValueError(f"{part}: {ms} ms")
            return round(ms * _MS)

        period, window = ns("period_ms", 0), ns("window_ms", 0)
        if period < 0 or window < 0:
            raise ValueError("a period or a window below 0")
        sensor = Sensor(ns("lag_ms", 0), period, window_ns=window, smooth=found["shape"] == "exponential")
        return cls(sensor, ns("lag_ms", 1), ns("window_ms", 1), signal in GIVEN)

    @property
    def behind_stamps(self) -> Sensor:
        """The timing where stamps are those of renewals."""
        return self.sensor._replace(period_ns=0)

    @property
    def prior(self) -> Prior | None:
        """What is known of it beforehand; None if it is looked for all the same."""
        lag, window = (max(_SUREST_NS, half) / Z95 for half in (self.lag_ns, self.window_ns))
        spreads = {ProbeKind.LAG: math.hypot(lag, self.late_ns) / _MS, ProbeKind.WINDOW: window / _MS}
        return Prior(spreads, _MISFIT) if self.stamped else None

    @property
    def nearest_ns(self) -> int:
        """How far from its lag another one may be found, as stamps of work are late."""
        return _FARTHEST_NS if self.late_ns else 0

    def off(self, lag_ns: int) -> float:
        """How far beyond what is known a lag is, in standard deviations of how late stamps of work may be."""
        return max(0, abs(lag_ns - self.sensor.lag_ns) - self.lag_ns) / max(1, self.late_ns)

    def likely(self, found: Sensor) -> list[Sensor]:
        """A timing with other windows that may be the sensor's."""
        moved = (found.window_ns + round(self.window_ns * far) for far in (-1, -0.5, 0.5, 1))
        return [found._replace(window_ns=max(found.window_ns // 2, window)) for window in moved]

    def resembles(self, found: Sensor) -> bool:
        """Whether a timing differs by no more than what is known of it and of stamps of work leaves open."""
        far = abs(found.window_ns - self.sensor.window_ns) > self.window_ns + GUARD_NS
        late = abs(found.lag_ns - self.sensor.lag_ns) > self.lag_ns + self.nearest_ns + GUARD_NS
        return found.smooth == self.sensor.smooth and not far and not late

    def contradicted(self, found: Sequence[Sensor], windows: Windows, fit: Fit, effect: float, *, before: bool) -> bool:
        """Whether windows contradict it, of which `fit` is the solution: it is none of the timings found to fit them.

        One whose shape is not looked for is so if another fits certainly better, if the windows draw it far away, if
        readings do not come once a period, or if it was so by windows that are gone (`before`).
        """
        if self.prior is None:
            return not any(self.admits(each, windows.ends) for each in found)
        usual = float(np.median(windows.ends - windows.starts))
        spaced = abs(usual / max(1, self.sensor.period_ns) - 1) <= _SPACED
        shaped = math.isinf(effect) or (all(map(self.resembles, found)) and not fit.contradicts(self.prior))
        return before or not (spaced and shaped)

    def beside(self, *, exact: bool) -> Self:
        """The same where stamps of work are `exact`, the device's own, or a host's."""
        return self._replace(late_ns=0 if exact else _STAMPS_NS) if self.stamped else self

    def doubt(self, effect: float, *, unexpected: bool) -> str:
        """Why nothing follows from a timing that is not looked for; empty if it does. `effect` is as a search finds it,
        `unexpected` whether it was `contradicted`."""
        repeats = LOCK_STEP if math.isinf(effect) else ""
        return "" if not self.stamped else CONTRADICTED if unexpected else repeats

    def starts(self) -> list[Sensor]:
        """The timing at every phase."""
        sensor = self.sensor._replace(blur_ns=STEP_NS)
        return [sensor._replace(phase_ns=phase) for phase in range(0, sensor.period_ns, STEP_NS)] or [sensor]

    def admits(self, found: Sensor, stamps: Ints) -> bool:
        """Whether a timing that readings stamped `stamps` were found to have is this one."""
        mine = self.sensor
        if found.smooth != mine.smooth or abs(found.window_ns - mine.window_ns) > self.window_ns + GUARD_NS:
            return False
        slack = self.lag_ns + GUARD_NS
        if found.period_ns and mine.period_ns and not (found.in_step or found.follows):
            alike = abs(found.period_ns / mine.period_ns - 1) <= _PERIOD
            return alike and abs(found.lag_ns - mine.lag_ns) <= slack
        # Without renewals of its own, a timing has their mean age.
        age = float(np.median(stamps - found.placed(stamps).moments(stamps)))
        return -slack <= age - mine.lag_ns <= mine.period_ns + slack


@dataclass(frozen=True, slots=True)
class DevicePrior:
    """What is known of one device: its sensors, and why its pooled numbers are not to be trusted, if they are not."""

    sensors: Mapping[Signal, SensorPrior] = field(default_factory=dict)
    untrusted: str = ""

    @classmethod
    def of_board(cls, name: str) -> Self:
        """What was measured on other boards of this name."""
        return cls(next((sensors for board, sensors in _BOARDS.items() if re.search(board, name)), {}))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From what `gpu-profile calibrate` keeps. LookupError, TypeError or ValueError if it is nothing of the kind.

        A response that is doubted itself tells nothing.
        """
        told = {
            (row := signal(key)): SensorPrior.of(row, each)
            for key, each in content["signals"].items()
            if not each["reason"]
        }
        missed = str(content["missed"])
        return cls(told, f"{UNTRUSTED}: {missed}" if missed else "")


def _expected_ms(period: float, lag: tuple[float, float], window: tuple[float, float]) -> SensorPrior:
    """Of an exponential that the driver stamps: the period, and its lag and time constant with half-widths, in ms."""
    (lag_ns, late_ns), (window_ns, wide_ns) = ([round(part * _MS) for part in each] for each in (lag, window))
    sensor = Sensor(lag_ns, round(period * _MS), window_ns=window_ns, smooth=True)
    return SensorPrior(sensor, late_ns, wide_ns, stamped=True)


#: By what a board's name has in it: measured with a known load (`docs/accuracy.md`).
_BOARDS: Final[Mapping[str, Mapping[Signal, SensorPrior]]] = {
    r"\bH100 80GB HBM3$": {POWER: _expected_ms(20.0, (4.7, 1.5), (13.6, 2.0))},
    r"\bH200$": {POWER: _expected_ms(20.0, (4.5, 1.5), (15.0, 2.0))},
}
