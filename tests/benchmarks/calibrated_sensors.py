"""Scripted sensors, calibrated: how often their periods, lags, windows and gains lie within the intervals found."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from laboratory.chips import BASE_W, GAINS_W, chips, response
from laboratory.score import clustered
from laboratory.sensors import Kind, Sensor

from benchmarks.rows import Row
from gpu_profile.calibration.renewals import Estimate
from gpu_profile.calibration.response import SensorResponse

SENSORS: Final = 24
#: What the laboratory's grid of 0.1 ms leaves open, in ms; the same of powers, as a share.
_GRID_MS: Final = 0.15
_GRID: Final = 0.002


def rows() -> Iterator[Row]:
    """Counters, means and exponentials of any timing, polled at about 200 Hz for 40 s."""
    found: list[tuple[int, bool]] = []
    widths, silent = [], 0
    for seed in range(SENSORS):
        sensor = drawn(seed)
        told = response(sensor, chips(seed), seed)
        if told is None or told.reason:
            silent += 1
            continue
        found += [(seed, within) for within in judged(sensor, told)]
        widths.append(told.lag.half_width)
    share, (low, high) = float(np.mean([good for _, good in found])), clustered(found)
    figure = (
        f"{share:.0%} [{low:.0%}, {high:.0%}] of {len(found)} within their intervals, "
        f"median lag ± {np.median(widths):.2g} ms, {silent} of {SENSORS} not told"
    )
    ok = share >= 0.9 and silent <= 0.1 * SENSORS
    yield Row(
        "truth calibrate: scripted sensors", figure, reach=">=90 % within, <=10 % not told", ok=ok, cost=1 - share
    )


def drawn(seed: int) -> Sensor:
    """A sensor by chance."""
    rng = np.random.default_rng([seed, 7])
    kind: Kind = rng.choice(["counter", "counter", "mean", "rc"])
    period = float(np.exp(rng.uniform(np.log(15), np.log(250))))
    window = float(np.exp(rng.uniform(np.log(15), np.log(1000))))
    if kind == "counter":
        window = 0.0 if rng.random() < 0.6 else float(rng.uniform(0.2, 0.8)) * period
    return Sensor(
        ("energy",) if kind == "counter" else ("power_average",),
        kind,
        period_ms=period,
        window_ms=window,
        lag_ms=float(rng.uniform(0, 250)),
        quantum=0.001,
        noise=float(rng.choice([0.001, 0.005, 0.02])),
        poll_ms=4.0,
        wander_ms=1.0,
    )


def judged(sensor: Sensor, told: SensorResponse) -> Iterator[bool]:
    """Whether each of what was found is true."""
    shape = {"counter": "mean" if sensor.window_ms else "interval", "mean": "mean", "rc": "exponential"}[sensor.kind]
    yield told.shape == shape
    yield _near(told.period, sensor.period_ms, 0.001)
    yield _near(told.lag, sensor.lag_ms, _GRID_MS)
    yield _near(told.window, sensor.window_ms, _GRID_MS + _GRID * sensor.window_ms)
    for gain, truth in zip((told.base, *told.gains), (BASE_W, *GAINS_W), strict=True):
        yield _near(gain, truth, _GRID * GAINS_W[0])


def _near(found: Estimate, truth: float, slack: float) -> bool:
    return abs(found.value - truth) <= found.half_width + slack
