"""A load whose busy time is known, and what a utilisation sensor with a trailing window reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import GRAPHICS, UTILIZATION
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.trailing import Readings
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
QUANTUM = 0.01


@dataclass(frozen=True)
class Load:
    """Busy at `rates[k]` from `edges_ms[k]` to the next edge, in ms after T0, and not at all outside."""

    edges_ms: tuple[float, ...]
    rates: tuple[float, ...]

    @classmethod
    def steps(cls, *busy_ms: tuple[float, float]) -> Load:
        """Fully busy for some stretches."""
        edges = [edge for stretch in busy_ms for edge in stretch]
        return cls(tuple(edges), tuple(float(k % 2 == 0) for k in range(len(edges) - 1)))

    def busy(self, moments_ns: Ints) -> Floats:
        """Busy ns until some moments."""
        edges = np.array(self.edges_ms) * MS
        total = np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.array(self.rates))))
        result: Floats = np.interp(np.asarray(moments_ns) - T0, edges, total)
        return result

    def between(self, a_ns: int, b_ns: int) -> float:
        """Busy ns of `(a, b]`."""
        low, high = self.busy(np.array([a_ns, b_ns]))
        return float(high - low)

    def read(self, moments_ns: Ints, window_ns: int) -> Ints:
        """What the sensor reads at some moments, in per cent."""
        share = (self.busy(moments_ns) - self.busy(moments_ns - window_ns)) / window_ns
        result: Ints = np.floor(share * 100 + 0.5).astype(np.int64)
        return result

    def readings(self, moments_ns: Ints, window_ns: int) -> Readings:
        """The same as exact readings."""
        windows = np.full(len(moments_ns), window_ns)
        return Readings.exact(
            moments_ns, windows, self.read(moments_ns, window_ns).astype(np.float64) * QUANTUM, QUANTUM
        )


def at(ms: float) -> int:
    """A moment, in ns."""
    return T0 + round(ms * MS)


def every(period_ms: float, until_ms: float, *, from_ms: float = 0.0) -> Ints:
    """Moments so far apart, in whole microseconds as a driver stamps them."""
    ns = np.arange(round(from_ms * MS), round(until_ms * MS), round(period_ms * MS), dtype=np.int64)
    return T0 + ns // 1000 * 1000


def stamped(load: Load, *, window_ms: float, refresh_ms: float, until_ms: float, from_ms: float = 0.0) -> Timeline:
    """A device whose driver stamps its readings."""
    moments = every(refresh_ms, until_ms, from_ms=from_ms)
    return timeline(moments, load.read(moments, round(window_ms * MS)))


def polled(load: Load, *, window_ms: float, refresh_ms: float, poll_ms: float, until_ms: float) -> Timeline:
    """A device that is polled, by a clock that ticks in nanoseconds."""
    polls = every(poll_ms, until_ms, from_ms=refresh_ms) + 137
    moments = T0 + (polls - T0) // round(refresh_ms * MS) * round(refresh_ms * MS)
    return timeline(polls, load.read(moments, round(window_ms * MS)))


def timeline(ends: Ints, values: Sequence[int] | Ints) -> Timeline:
    """Utilisation readings as a driver hands them on: each covers the time since the one before."""
    result = Timeline(Device("GPU-a"), [UTILIZATION], capacity=10_000)
    starts = np.concatenate((ends[:1], ends[:-1]))
    result.append(
        Sample(UTILIZATION, start, end, int(value))
        for start, end, value in zip(starts.tolist(), ends.tolist(), values, strict=True)
    )
    return result


def tiles(load: Load, *, period_ms: float, phase_ms: float, until_ms: float) -> Timeline:
    """A device with activity counters, sampled every `period_ms`; they renew themselves every 100 ms at some phase."""
    stamps = every(period_ms, until_ms) + 137
    renewals = stamps - (stamps - at(phase_ms)) % (100 * MS)
    busy = load.busy(renewals)
    result = Timeline(Device("GPU-a"), [GRAPHICS], capacity=10_000)
    for k in range(1, len(stamps)):
        share = (busy[k] - busy[k - 1]) / max(1, int(renewals[k] - renewals[k - 1]))
        result.append([Sample(GRAPHICS, int(stamps[k - 1]), int(stamps[k]), GRAPHICS.quanta(share))])
    return result
