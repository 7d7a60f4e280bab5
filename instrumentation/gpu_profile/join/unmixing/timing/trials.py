"""The evidence of windows on a timing of the sensor, and its comparison with the best one. Pure."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.shrinkage import CERTAIN
from gpu_profile.join.unmixing.timing.timings import LAG_STEP_NS
from gpu_profile.join.unmixing.windows.sensor import Sensor

#: A timing is a rival of the best one if independent windows do not rule it out. Excess error up to this share of the
#: part that varying rates explain is excused: the model of variation is approximate, and no number of windows averages
#: out its error.
_MISFIT: Final = 0.05
#: No board is known to give older readings.
_LATE_NS: Final = 200_000_000


class Trial(NamedTuple):
    """The evidence of `n` windows on a timing, with varying rates modelled by `probes` probes: its score, and the mean
    squared errors with steady rates (`left`) and with varying ones (`noise`). `steady` are the steady rates.
    `lag_ms` is the error of the lag."""

    sensor: Sensor
    n: int
    probes: int
    score: float
    left: float
    noise: float
    steady: Floats
    lag_ms: float

    @property
    def varied(self) -> float:
        """The part of the error with steady rates that varying ones explain."""
        return max(0.0, self.left - self.noise)

    def beside(self, best: Trial, allowed: float = 0.0, besides: float = 0.0) -> float:
        """The score relative to the best trial's. The model of varying rates counts as approximate: its own error and
        `allowed` besides it are excused, up to the part that it explains under the best timing. Where rates are steady,
        there is nothing to approximate. An error of `besides` by other causes is excused too."""
        misfit = min(_MISFIT * self.varied + allowed, best.varied)
        approximate = max(best.noise, self.noise - misfit - besides)
        return self.score - self.n * max(0.0, math.log(self.noise / approximate))


def is_late(sensor: Sensor) -> bool:
    """Whether readings are older than any board's."""
    return sensor.lag_ns + sensor.period_ns // 2 > _LATE_NS


def younger(sensor: Sensor) -> list[Sensor]:
    """A late sensor with every lag of the closer grid that boards have; none if it is not late."""
    lags = range(0, _LATE_NS + 1, LAG_STEP_NS) if is_late(sensor) else ()
    return [sensor._replace(lag_ns=lag - sensor.period_ns // 2) for lag in lags]


class Best(NamedTuple):
    """The best score, whether its timing is late, and the windows' design effect."""

    score: float
    late: bool
    effect: float

    def near(self, score: float, *, late: bool) -> bool:
        """Whether another score is not certainly worse. Windows that repeat each other weigh less. But in a loop that
        they repeat with, a lag of one more turn always fits equally well, and no board has such a lag."""
        return score - self.score < (CERTAIN if late and not self.late else CERTAIN * self.effect)
