"""Rows and columns for the tests of the timeline."""

from typing import Final

from gpu_profile.catalogue import Signal, signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import UTILIZATION
from gpu_profile.history.timeline import Column
from gpu_profile.units import NS_PER_S

MS: Final = 1_000_000
T0: Final = 1_700_000_000 * NS_PER_S
THROTTLE: Final = signal("throttle_sw_power_cap")


def window(start: int, end: int, value: int, row: Signal = UTILIZATION) -> Sample:
    return Sample(row, start, end, value)


def reading(t: int, value: int, row: Signal = THROTTLE) -> Sample:
    return Sample(row, t, t, value)


def column(row: Signal, *samples: tuple[int, int], capacity: int = 64) -> Column:
    """A column of readings `(t, value)` of a counter or an instant."""
    result = Column(row, capacity)
    for t, value in samples:
        result.append(reading(t, value, row))
    return result
