"""Cases with confident errors from `search` or from attacks, as rows, each with its original seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from laboratory.programs import Physics, Profile, Program, Region, Stamps, Unmarked
from laboratory.recordings import Case
from laboratory.sensors import COUNTER, GPM, POWER, UTILIZATION, Sensor


def _case(seed: int, sensors: tuple[Sensor, ...], seconds: float, *regions: Region, **options: Any) -> Case:
    return Case(Program(regions, **{"fixed": True} | options), sensors, seconds, seed)


def _third(seed: int, sensors: tuple[Sensor, ...], watts: float, profile: Profile, **options: Any) -> Case:
    """One region that works in a third of its time, on a board of which nothing is known."""
    region = Region("a", 50.0, watts, profile=profile, varies=0.02)
    return replace(_case(seed, sensors, 45.0, region, **options), board="Laboratory")


#: Utilisation over a quarter of its period.
_QUARTER: Final = COUNTER, replace(UTILIZATION, window_ms=1000 / 24)


FOUND: Final[Mapping[str, Case]] = {
    # A part of a period fitted windows that no period near the nominal one fits. Windows of two periods contradict it.
    "counter renewed every 105 ms": _case(
        1, (replace(COUNTER, period_ms=105.0),), 45.0,
        Region("a", 20.0, 300.0, spread=0.3), Region("b", 7.0, 500.0, spread=0.3), Region("c", 4.0, 400.0, spread=0.3),
        jitter=0.1, gap_ms=(0.5, 0.5),
    ),
    # A part of a period is less sensitive to late stamps than the whole, and gives the same readings in a loop.
    "loop of 73.5 ms, late stamps": _case(
        23, (COUNTER, GPM), 40.0,
        Region("a", 4.43, 342.6, duty=0.4), Region("b", 10.69, 426.7), Region("c", 23.56, 343.6, duty=0.6),
        loop_ms=73.5, jitter=0.005, gap_ms=(0.2, 0.2), stamps=Stamps((0.2, 1.0), tail=0.02),
    ),
    # The few windows that distinguish the regions were treated as outliers.
    "loop of 250.25 ms": _case(
        24, (COUNTER,), 40.0,
        Region("a", 8.98, 621.7), Region("b", 3.45, 164.7, varies=0.02), Region("c", 7.12, 156.3),
        Region("d", 6.0, 554.3, duty=0.7, varies=0.02),
        loop_ms=250.25, jitter=0.001, gap_ms=(2.0, 2.0), stamps=Stamps((0.2, 1.5)),
    ),
    # Nearly all readings of the utilisation were 87 %: rounding hides their differences.
    "loop of 75 ms, utilisation": _case(
        21, (POWER, UTILIZATION), 45.0,
        Region("a", 3.82, 333.8, varies=0.02), Region("b", 11.81, 337.2, varies=0.02),
        Region("c", 13.39, 340.5, varies=0.02), Region("d", 20.94, 343.8, varies=0.02),
        loop_ms=75.0, jitter=0.002, gap_ms=(2.0, 2.0),
    ),
    # Another part of a period with another lag gives the same readings in a loop.
    "loop of 88.4 ms, counter measures 67.8 ms": _case(
        55, (replace(COUNTER, window_ms=67.8), GPM), 45.0,
        Region("a", 10.36, 432.9, varies=0.02), Region("b", 6.44, 592.6), Region("c", 20.9, 367.1, duty=0.7),
        loop_ms=88.4, gap_ms=(0.5, 0.5), stamps=Stamps((0.0, 0.0)),
    ),
    # Their time looked like idle time, so a wrong timing explained the windows, with nearly equal rates.
    "loop of 11.3 ms, 2 % of executions unmarked": _case(
        0, (COUNTER,), 30.0,
        Region("a", 3.5, 270.0, duty=0.9), Region("b", 2.7, 620.0), Region("c", 4.2, 350.0, duty=0.4),
        jitter=0.04, gap_ms=(0.3, 0.3), unmarked=Unmarked(0.02),
    ),
    # The same with the board's mean power. The usual timing of its sensor was not tried at all.
    "loop of 11.3 ms, 3 % of executions unmarked, mean power": _case(
        1, (POWER,), 30.0,
        Region("a", 3.5, 270.0, duty=0.9), Region("b", 2.7, 620.0), Region("c", 4.2, 350.0, duty=0.4),
        jitter=0.04, gap_ms=(0.3, 0.3), unmarked=Unmarked(0.03),
    ),
    # A part of the period and the rest of the loop's length give readings that vary alike, with other rates.
    "loop of 83 ms, counter renewed every 100.044 ms measures 50 ms": _case(
        0, (replace(COUNTER, period_ms=100.044, window_ms=50.0),), 45.0,
        Region("a", 15.7, 580.2, duty=0.4, varies=0.02), Region("b", 3.98, 494.2, varies=0.02),
        Region("c", 10.57, 182.0, duty=0.3, varies=0.02),
        loop_ms=83.0,
    ),
    # No part as short was tried, so one of 21 ms explained the readings.
    "two threads in loops, counter measures 14 ms": _case(
        555, (replace(COUNTER, window_ms=13.99), GPM), 60.0,
        Region("a", 13.7, 192.2, duty=0.4, activity=0.66, varies=0.02),
        Region("b", 7.02, 440.4, activity=0.27, thread=1, varies=0.02),
        Region("c", 8.74, 263.9, duty=0.8, activity=0.35, varies=0.02),
        Region("d", 8.19, 431.0, activity=0.38, thread=1, varies=0.02),
        Region("e", 8.7, 525.6, duty=0.9, activity=0.22, varies=0.02),
        Region("f", 9.4, 529.9, activity=0.7, thread=1, varies=0.02),
        Region("g", 10.09, 433.5, duty=0.7, activity=0.9, varies=0.02),
        Region("h", 7.62, 276.6, activity=0.61, thread=1, varies=0.02),
        jitter=0.02738, gap_ms=(0.0, 1.763), stamps=Stamps(marks_us=1.668), unmarked=Unmarked(0.006328),
        physics=Physics(idle_w=113.1),
    ),
    # Half a loop from the best timing was another one, between two points of the grid of lags.
    "loop of 11 ms, work in gaps": _case(
        3, (COUNTER, GPM), 40.0,
        Region("a", 5.09, 500.4, duty=0.5, activity=0.23, varies=0.02),
        Region("b", 4.44, 267.8, activity=0.49, varies=0.02),
        jitter=0.06474, gap_ms=(0.0, 3.223), stamps=Stamps((0.0, 0.05)),
        unmarked=Unmarked(gap_share=0.0513, gap_w=121.7),
        physics=Physics(idle_w=78.22, warming=0.0532, warming_s=10.05),
    ),
    # No equation had windows of the first 5 s, in which clocks were higher: they might be on either side of a renewal.
    "throttled after 5 s, counter measures 68 ms, late stamps": _case(
        849, (replace(COUNTER, window_ms=67.99), UTILIZATION), 20.0,
        Region("a", 11.79, 339.0, duty=0.3, activity=0.64, varies=0.02),
        Region("b", 12.22, 561.9, activity=0.78, varies=0.02),
        fixed=False, gap_ms=(0.0, 1.002), stamps=Stamps((0.1223, 0.4892), 0.003975),
        physics=Physics(idle_w=61.55, clocks=((5.378, 0.5686), (34.79, 0.5877))),
    ),
    # A part of the window's time with another lag, because the grid of lags had no point near the right one.
    "loop of 122 ms, mean power": _case(
        556, (POWER,), 90.0,
        Region("a", 37.04, 514.1, duty=0.6, varies=0.02), Region("b", 35.06, 512.1, varies=0.02),
        Region("c", 15.93, 258.4, duty=0.6, varies=0.02), Region("d", 24.23, 451.8, varies=0.02),
        jitter=0.02935, gap_ms=(0.0, 4.883), stamps=Stamps((0.0, 0.05)),
    ),
    # Windows at few phases of the loop. A wrong lag took the work for work outside regions, of 1.57 kW.
    "loop of 299.91 ms, work in a third": _third(
        13, (COUNTER,), 582.028, "first", loop_ms=299.91, gap_ms=(30.0, 30.0)
    ),
    # The same with windows at all phases: pauses of 1.13 kW explained windows of 540 W at most.
    "loop of 416.9 ms, work in a third": _third(
        860, _QUARTER, 543.91, "middle", loop_ms=416.9311, gap_ms=(36.165, 36.165)
    ),
    # A stamp that is late by more than the next execution takes moves several stamps. The stretches beside stamps show
    # little of that, and equal rates fitted with narrow intervals.
    "loop of 2.3 ms, late stamps": _case(
        6, (COUNTER, GPM), 60.0,
        Region("a", 0.58, 453.6, duty=0.2, varies=0.02), Region("b", 0.88, 428.8, varies=0.02),
        Region("c", 0.37, 594.1, duty=0.7, varies=0.02),
        jitter=0.0769, gap_ms=(0.0, 0.32), stamps=Stamps((0.2, 1.0), tail=0.02),
    ),
    # The driver's unit, a milliwatt, was taken for the sensor's step. Rounding made nearly all readings
    # the same, and equal rates fitted.
    "power in steps of 10 W": _case(
        12, (replace(POWER, quantum=10.0, noise=0.0005), UTILIZATION), 60.0,
        Region("a", 4.8, 262.9, duty=0.3, varies=0.02), Region("b", 6.01, 242.7, varies=0.02),
        Region("c", 3.59, 229.2, duty=0.6, varies=0.02),
        jitter=0.043, gap_ms=(0.0, 0.34), physics=Physics(idle_w=59.03),
    ),
    # All readings were 0 %, so every timing of the sensor fitted.
    "loop of 83.3 ms, utilisation over a quarter of its period": _third(
        73, _QUARTER, 266.91, "middle", loop_ms=250 / 3, gap_ms=(19.6734, 19.6734)
    ),
}  # fmt: skip
