"""Synthetic loads with a computed truth, for pools and mixtures and for a utilisation sensor's trailing window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, UTILIZATION
from gpu_profile.history.timeline import Floats, Ints, Timeline
from gpu_profile.join.trailing import Readings
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.pools.shares import CountedShare
from gpu_profile.join.unmixing.timing.expected import DevicePrior
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
DEVICE = Device("GPU-a")
#: Busy share and power of each region while it is active.
BUSY = np.array([0.9, 0.2, 0.6, 0.35, 0.75])
WATTS = np.array([600.0, 150, 400, 250, 500])
IDLE_W = 90.0
#: A region that first runs late, with its busy share and power.
LATE = "late"
LATE_BUSY, LATE_W = 0.8, 550.0
NAMES = [f"r{k}" for k in range(len(BUSY))]


@dataclass
class World:
    """Regions of 2-20 ms in random order on one device. Its sensors average over 100 ms and may lag.

    After `jump_s` seconds, if not 0, the lag is `later_lag_ns`. From `late_s` seconds on, if not 0, every
    `late_every`-th execution belongs to `LATE` and is about `late_ms` long.
    """

    seed: int = 1
    seconds: int = 40
    lag_ns: int = 0
    noise: float = 0.002
    jump_s: int = 0
    later_lag_ns: int = 0
    late_s: int = 0
    late_every: int = 1
    late_ms: float = 10.0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        typical = np.exp(rng.uniform(np.log(2), np.log(20), len(BUSY)))
        count = int(self.seconds * 1000 / (typical.mean() + 1) * 1.5)
        owners = rng.integers(len(BUSY), size=count)
        pauses = rng.uniform(0, 2, count)
        lengths = typical[owners] * rng.uniform(0.5, 1.5, count)
        if self.late_s:
            late = (np.cumsum(lengths + pauses) > self.late_s * 1000) & (np.arange(count) % self.late_every == 0)
            owners[late] = len(BUSY)
            lengths[late] = self.late_ms * rng.uniform(0.5, 1.5, late.sum())
        busy_while, watts_while = np.append(BUSY, LATE_BUSY), np.append(WATTS, LATE_W)
        names = [*NAMES, LATE]
        ends = np.rint((np.cumsum(lengths + pauses)) * MS).astype(np.int64)
        starts = ends - np.rint(lengths * MS).astype(np.int64)
        self.activities = [
            DeviceExecution(i, None, names[k], T0 + int(a), T0 + int(b))
            for i, (k, a, b) in enumerate(zip(owners, starts, ends, strict=True))
            if b <= self.seconds * NS_PER_S
        ]
        self.true_busy_s = dict.fromkeys(names, 0.0)
        for activity in self.activities:
            length = (activity.end_ns or 0) - activity.start_ns
            self.true_busy_s[activity.region] += busy_while[names.index(activity.region)] * length / NS_PER_S
        edges = np.column_stack([starts, ends]).ravel()
        lengths_ns = ends - starts
        gaps = starts - np.concatenate(([0], ends[:-1]))

        def total(active: np.ndarray, idle: float) -> np.ndarray:
            steps = np.column_stack([gaps * idle, lengths_ns * active[owners]]).ravel()
            return np.concatenate(([0.0], np.cumsum(steps)))

        edges = np.concatenate(([0], edges))
        stamps = np.arange(0, self.seconds * NS_PER_S + 1, 100 * MS)
        jumped = (stamps > self.jump_s * NS_PER_S) & (self.jump_s > 0)
        moments = stamps - np.where(jumped, self.later_lag_ns, self.lag_ns)
        busy = (
            np.interp(moments[1:], edges, busied := total(busy_while, 0.0))
            - np.interp(moments[1:] - 100 * MS, edges, busied)
        ) / (100 * MS)
        joules = np.interp(moments, edges, total(watts_while, IDLE_W)) / NS_PER_S
        noise = np.random.default_rng(self.seed + 1).normal(0, self.noise, len(busy))
        self.samples = [
            (
                Sample(GRAPHICS, T0 + int(end) - 100 * MS, T0 + int(end), max(0, round(10_000 * value))),
                Sample(ENERGY, T0 + int(end), T0 + int(end), round(1000 * energy)),
            )
            for end, value, energy in zip(stamps[1:], busy + noise, joules[1:], strict=True)
        ]

    def run(
        self,
        windows_per_slice: int,
        after_each: Callable[[Pool], None] = lambda _: None,
        prior: DevicePrior | None = None,
    ) -> Pool:
        pool = Pool(Timeline(DEVICE, [GRAPHICS, ENERGY], capacity=10_000), start_ns=T0, prior=prior)
        for i in range(0, len(self.samples), windows_per_slice):
            piece = self.samples[i : i + windows_per_slice]
            for both in piece:
                pool.timeline.append(both)
            until = piece[-1][0].t_end_ns
            active = [a for a in self.activities if a.start_ns < until and (a.end_ns or 0) > pool.frontier_ns]
            pool.advance(active, until, final=True)
            after_each(pool)
        for activity in self.activities:
            pool.count(activity.region)
        return pool


def known(value: float | CountedShare | None) -> float:
    """The value, or the total of a counted share. Fails for None."""
    assert value is not None
    return value.total if isinstance(value, CountedShare) else value


QUANTUM = 0.01


@dataclass(frozen=True)
class Load:
    """Busy at `rates[k]` from `edges_ms[k]` to the next edge (ms after T0), and idle outside."""

    edges_ms: tuple[float, ...]
    rates: tuple[float, ...]

    @classmethod
    def steps(cls, *busy_ms: tuple[float, float]) -> Load:
        """Fully busy in the given intervals."""
        edges = [edge for stretch in busy_ms for edge in stretch]
        return cls(tuple(edges), tuple(float(k % 2 == 0) for k in range(len(edges) - 1)))

    def busy(self, moments_ns: Ints) -> Floats:
        """Busy ns up to the given times."""
        edges = np.array(self.edges_ms) * MS
        total = np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.array(self.rates))))
        result: Floats = np.interp(np.asarray(moments_ns) - T0, edges, total)
        return result

    def between(self, a_ns: int, b_ns: int) -> float:
        """Busy ns of `(a, b]`."""
        low, high = self.busy(np.array([a_ns, b_ns]))
        return float(high - low)

    def read(self, moments_ns: Ints, window_ns: int) -> Ints:
        """The sensor's readings at the given times, in per cent."""
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
    """A time in ns, from ms after T0."""
    return T0 + round(ms * MS)


def every(period_ms: float, until_ms: float, *, from_ms: float = 0.0) -> Ints:
    """Times at a fixed period, in whole microseconds like a driver's stamps."""
    ns = np.arange(round(from_ms * MS), round(until_ms * MS), round(period_ms * MS), dtype=np.int64)
    return T0 + ns // 1000 * 1000


def stamped(load: Load, *, window_ms: float, refresh_ms: float, until_ms: float, from_ms: float = 0.0) -> Timeline:
    """A device with readings that the driver stamps."""
    moments = every(refresh_ms, until_ms, from_ms=from_ms)
    return timeline(moments, load.read(moments, round(window_ms * MS)))


def polled(load: Load, *, window_ms: float, refresh_ms: float, poll_ms: float, until_ms: float) -> Timeline:
    """A polled device, with a clock in nanoseconds."""
    polls = every(poll_ms, until_ms, from_ms=refresh_ms) + 137
    moments = T0 + (polls - T0) // round(refresh_ms * MS) * round(refresh_ms * MS)
    return timeline(polls, load.read(moments, round(window_ms * MS)))


def timeline(ends: Ints, values: Sequence[int] | Ints) -> Timeline:
    """Utilisation readings of a driver: each covers the time since the previous one."""
    result = Timeline(Device("GPU-a"), [UTILIZATION], capacity=10_000)
    starts = np.concatenate((ends[:1], ends[:-1]))
    result.append(
        Sample(UTILIZATION, start, end, int(value))
        for start, end, value in zip(starts.tolist(), ends.tolist(), values, strict=True)
    )
    return result


def tiles(load: Load, *, period_ms: float, phase_ms: float, until_ms: float, late_ms: float = 0) -> Timeline:
    """A device with activity counters, sampled every `period_ms`.

    They renew every 100 ms, at `phase_ms`, and are published `late_ms` later.
    """
    stamps = every(period_ms, until_ms) + 137
    seen = stamps - round(late_ms * MS)
    renewals = seen - (seen - at(phase_ms)) % (100 * MS)
    busy = load.busy(renewals)
    result = Timeline(Device("GPU-a"), [GRAPHICS], capacity=10_000)
    for k in range(1, len(stamps)):
        share = (busy[k] - busy[k - 1]) / max(1, int(renewals[k] - renewals[k - 1]))
        result.append([Sample(GRAPHICS, int(stamps[k - 1]), int(stamps[k]), GRAPHICS.quanta(share))])
    return result
