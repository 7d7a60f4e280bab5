"""Readings of a device's curves by sensors, with the stamps of a driver.

Every sensor renews its value every `period_ms`, at a random phase, from the curve until `lag_ms` before. The driver is
polled every `poll_ms`. A poll is late by an exponential of mean `wander_ms`, and a share `lost` of them fails. The
stamp is the time of the poll, in whole microseconds. Noise is relative to the reading and independent between
renewals. `gain` is the gain of the board's sensor, 1 without an error.

A reading is a linear function of the curve (`apply`). The oracle uses the same function.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from laboratory.curves import Quantity, World, sums
from laboratory.programs import LEAD_S, PER_MS, PER_S, Floats, Ints

#: The exponential's approximation: number of steps, and their reach in time constants.
_RC_STEPS: Final = 48
_RC_REACH: Final = 6.0
#: Shortest time between a renewal and its publication (GPM on an H200, driver 580).
_PUBLISHING_MS: Final = 3.0

Kind = Literal["counter", "mean", "rc", "between"]


class Readings(NamedTuple):
    """Readings of a signal: stamps and window starts in ns after the recording's start, values in quanta.

    `renewals`: time of each reading's renewal in steps of the grid. `noise`: standard deviation of each reading in the
    signal's unit (for a counter: of its growth since the previous renewal).
    """

    starts_ns: Ints
    stamps_ns: Ints
    values: Ints
    renewals: Floats
    noise: Floats


@dataclass(frozen=True)
class Sensor:
    """One sensor behind one or more signals.

    `kind`: `counter` integrates. `mean` averages over the last `window_ms`, `rc` with an exponential of that time
    constant. `between` is the mean since the last renewal that was read, like GPM. A counter with `window_ms` measures
    only the last `window_ms` of every period and extrapolates to all of it. `buffered`: the driver keeps every renewal
    with its own time. `quantum` is in the unit of the curve (J for a counter).
    """

    signals: tuple[str, ...]
    kind: Kind
    period_ms: float = 100.0
    window_ms: float = 0.0
    lag_ms: float = 0.0
    quantum: float = 0.0
    noise: float = 0.002
    gain: float = 1.0
    poll_ms: float = 100.0
    wander_ms: float = 0.5
    lost: float = 0.0
    buffered: bool = False

    def curves(self) -> list[tuple[Signal, Quantity]]:
        """Each signal with its curve."""
        of: dict[str, Quantity] = {"energy": "power", "power": "power", "power_average": "power", "sm": "activity"}
        return [(rows.signal(key), of.get(key, "busy")) for key in self.signals]

    def apply(self, total: Floats, renewals: Floats, stride: int = 1) -> Floats:
        """The sensor's values at `renewals`, without noise and gain, as means in the curves' unit.

        `total`: the curves' integrals on a grid of `stride` steps, in units times its steps. `counter` and `between`
        give the mean since the previous renewal, and 0 for the first.
        """
        at = (renewals - self.lag_ms * PER_MS) / stride
        ms = PER_MS / stride
        if self.kind == "mean":
            return (_until(total, at) - _until(total, at - self.window_ms * ms)) / (self.window_ms * ms)
        if self.kind == "rc":
            # Steps between equal quantiles of the exponential, each with the mean over its interval.
            lags = -np.log(1 - np.linspace(0, 1 - np.exp(-_RC_REACH), _RC_STEPS + 1)) * self.window_ms * ms
            parts = [(_until(total, at - a) - _until(total, at - b)) / (b - a) for a, b in pairwise(lags.tolist())]
            mean: Floats = np.mean(parts, axis=0)
            return mean
        if self.kind == "counter" and self.window_ms:
            return self._part_time(total, at, ms)
        result = np.zeros((*total.shape[:-1], len(at)))
        steps = np.diff(at)
        result[..., 1:] = np.diff(_until(total, at), axis=-1) / np.where(steps > 0, steps, 1.0)
        return result

    def sees(self, renewals: Floats, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether the window of each renewal lies between `start` and `end` (steps of the grid)."""
        at = renewals - self.lag_ms * PER_MS
        if self.kind in {"mean", "rc"}:
            reach = self.window_ms * PER_MS * (1 if self.kind == "mean" else _RC_REACH)
            first = at - reach
        else:
            first = np.concatenate((at[:1] - self.period_ms * PER_MS, at[:-1]))
        seen: npt.NDArray[np.bool_] = (first >= start) & (at <= end)
        return seen

    def _part_time(self, total: Floats, at: Floats, ms: float) -> Floats:
        period, window = self.period_ms * ms, self.window_ms * ms
        result = np.zeros((*total.shape[:-1], len(at)))
        spans = np.rint(np.diff(at) / period).astype(np.int64)
        for back in range(int(spans.max(initial=0))):
            moments = at[1:] - back * period
            part = (_until(total, moments) - _until(total, moments - window)) / window
            result[..., 1:] += np.where(back < spans, part, 0.0)
        result[..., 1:] /= np.maximum(spans, 1)
        return result

    def read(self, world: World, rng: np.random.Generator) -> list[tuple[Signal, Quantity, Readings]]:
        """The readings of every signal over the recording."""
        end = world.seconds * PER_S
        period = self.period_ms * PER_MS
        phase = rng.uniform(0, period)
        ticks = np.arange(phase - period * (LEAD_S * PER_S // (4 * period)), end, period)
        if self.buffered:
            at = ticks[ticks > 0]
            stamps, renewals = at, at
        else:
            polls = np.arange(rng.uniform(0, self.poll_ms), world.seconds * 1000, self.poll_ms) * PER_MS
            polls = polls + rng.exponential(self.wander_ms, len(polls)) * PER_MS
            polls = np.maximum.accumulate(polls)
            polls = polls[(rng.random(len(polls)) >= self.lost) & (polls < end)]
            polls = polls[np.concatenate(([True], np.diff(polls) > 0.02))]
            place = np.searchsorted(ticks, self.seen(polls, rng), side="right") - 1
            stamps, renewals = polls, ticks[place]
            if self.kind == "between":  # a driver gives no reading for a window without a renewal
                fresh = np.concatenate(([True], np.diff(renewals) > 0))
                stamps, renewals = stamps[fresh], renewals[fresh]
        return [
            (signal, quantity, self.readings(signal, sums(world.curve(quantity)), stamps, renewals, rng))
            for signal, quantity in self.curves()
        ]

    def seen(self, polls: Floats, rng: np.random.Generator) -> Floats:
        """The times up to which renewals are visible to the polls."""
        return polls

    def readings(
        self, signal: Signal, total: Floats, stamps: Floats, renewals: Floats, rng: np.random.Generator
    ) -> Readings:
        on_grid = renewals + LEAD_S * PER_S
        stamps_ns = (stamps * 100).astype(np.int64) * 1000
        step = max(1, round(self.quantum / signal.quantum))  # in the signal's own
        quantum = step * signal.quantum
        distinct, which = np.unique(on_grid, return_inverse=True)
        value = self.gain * self.apply(total, distinct)
        noise = self.noise * np.abs(value)
        value = value + noise * rng.normal(size=len(value))
        if self.kind == "counter":
            seconds = np.diff(distinct, prepend=distinct[:1]) / PER_S
            joules = np.cumsum(value * seconds)
            quanta = np.floor(joules / quantum) * step + 10**9
            rounding = quantum / np.sqrt(6) / np.maximum(seconds, 1e-9)
            deviation = np.where(seconds > 0, np.hypot(noise, rounding), 0.0)
            return Readings(stamps_ns, stamps_ns, quanta[which].astype(np.int64), on_grid, deviation[which])
        quanta = np.clip(np.rint(value / quantum) * step, 0, signal.limit)
        deviation = np.hypot(noise, quantum / np.sqrt(12))
        starts = np.concatenate((stamps_ns[:1] - signal.window_ns, stamps_ns[:-1]))
        # GPM has no window before the first reading.
        kept = slice(1 if self.kind == "between" else 0, None)
        values = quanta[which].astype(np.int64)
        return Readings(starts[kept], stamps_ns[kept], values[kept], on_grid[kept], deviation[which][kept])


@dataclass(frozen=True)
class Published(Sensor):
    """A sensor that publishes every `published_ms` the last renewal that is at least `_PUBLISHING_MS` old."""

    published_ms: float = 100.0

    def seen(self, polls: Floats, rng: np.random.Generator) -> Floats:
        every = self.published_ms * PER_MS
        result: Floats = polls - (polls - rng.uniform(0, every)) % every - _PUBLISHING_MS * PER_MS
        return result


def _until(total: Floats, at: Floats) -> Floats:
    """Integrals up to any times, interpolated between the grid's edges."""
    place = np.clip(at, 0.0, total.shape[-1] - 1.000001)
    low = place.astype(np.int64)
    part = place - low
    result: Floats = total[..., low] * (1 - part) + total[..., low + 1] * part
    return result


COUNTER: Final = Sensor(("energy",), "counter")
GPM: Final = Sensor(("graphics", "sm"), "between", noise=0.001)
#: Power over 100 ms, and utilisation as on most boards, both with the nominal renewal.
POWER: Final = Sensor(("power_average",), "mean", window_ms=100.0)
UTILIZATION: Final = Sensor(
    ("utilization",), "mean", period_ms=1000 / 6, window_ms=1000 / 6, quantum=0.01, noise=0.0, buffered=True
)
#: The sensors of an H200 with driver 580.159 (`tests/data/hardware/h200`). A renewal of GPM is published 3 to 103 ms
#: later, with a slowly growing delay. Utilisation is truncated.
H200: Final = (
    replace(COUNTER, lag_ms=9.5, poll_ms=50.0),
    Published(("graphics",), "between", noise=0.001, poll_ms=105.0, published_ms=100.06),
    replace(UTILIZATION, window_ms=200.0, period_ms=200.0, gain=0.9935),
)
#: The same with the driver's own power samples. Noise: the residual of steady rates for six kernels on that H200.
SAMPLED: Final = (
    replace(H200[0], noise=0.03),
    *H200[1:],
    Sensor(("power",), "rc", period_ms=20.0, window_ms=15.0, lag_ms=4.5, noise=0.08, gain=1.0125, buffered=True),
)
