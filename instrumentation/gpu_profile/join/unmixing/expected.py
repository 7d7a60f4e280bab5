"""What is known of a device's sensors before a reading of this run was seen: from a load that was known. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.signals import signal
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.sensor import GUARD_NS, Sensor
from gpu_profile.join.unmixing.timings import STEP_NS

_MS: Final = 1e6
#: What is beyond these is no sensor's, in ms.
_LONGEST_MS: Final = 10_000.0
#: A period may be off by this share, as clocks drift.
_PERIOD: Final = 0.001
UNTRUSTED: Final = "pooled numbers of this GPU are not trusted"


class Expected(NamedTuple):
    """A sensor's timing, whose phase nobody knows, with the half-widths of its lag and of its window."""

    sensor: Sensor
    lag_ns: int
    window_ns: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
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
        return cls(sensor, ns("lag_ms", 1), ns("window_ms", 1))

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
class Known:
    """What is known of one device: its sensors, and why its pooled numbers are not to be trusted, if they are not."""

    sensors: Mapping[Signal, Expected] = field(default_factory=dict)
    untrusted: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From what `gpu-profile calibrate` keeps. LookupError, TypeError or ValueError if it is nothing of the kind.

        A response that is doubted itself tells nothing.
        """
        told = {signal(key): Expected.of(each) for key, each in content["signals"].items() if not each["reason"]}
        missed = str(content["missed"])
        return cls(told, f"{UNTRUSTED}: {missed}" if missed else "")
