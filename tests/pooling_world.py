"""A synthetic load whose truth is known, for the tests of pools and mixtures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.activities import Activity
from gpu_profile.join.unmixing.pooling import Pool
from gpu_profile.units import NS_PER_S

MS = 1_000_000
T0 = 1_700_000_000 * NS_PER_S
DEVICE = Device("GPU-a")
#: How busy each region keeps the GPU while it is active, and what it draws.
BUSY = np.array([0.9, 0.2, 0.6, 0.35, 0.75])
WATTS = np.array([600.0, 150, 400, 250, 500])
IDLE_W = 90.0
#: Who comes late, and is as busy as this.
LATE = "late"
LATE_BUSY, LATE_W = 0.8, 550.0
NAMES = [f"r{k}" for k in range(len(BUSY))]


@dataclass
class World:
    """Regions of 2-20 ms in random order on one device, whose sensors average over 100 ms and may lag. Seeded.

    After `jump_s` seconds, if not 0, the lag is `later_lag_ns`. From `late_s` seconds on, if not 0, every
    `late_every`-th execution is one of `LATE`, about `late_ms` long.
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
            Activity(i, None, names[k], T0 + int(a), T0 + int(b))
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

    def run(self, windows_per_slice: int, after_each: Callable[[Pool], None] = lambda _: None) -> Pool:
        pool = Pool(Timeline(DEVICE, [GRAPHICS, ENERGY], capacity=10_000), start_ns=T0)
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


def known(value: float | None) -> float:
    assert value is not None
    return value
