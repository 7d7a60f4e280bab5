"""Descriptions of a program and its device, and the resulting executions. Times are in ms unless a name has a unit.

Edges of executions lie on the grid of 0.1 ms on which the curves are computed, so that sums over them are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

STEP_NS: Final = 100_000
PER_MS: Final = 10
PER_S: Final = 10_000
#: The grid begins this many seconds before the recording, because sensors average over the past.
LEAD_S: Final = 3

#: Work within an execution: throughout, in one third, or linearly rising from or falling to a fifth.
Profile = Literal["all", "first", "middle", "last", "rise", "fall"]


@dataclass(frozen=True)
class Region:
    """A region. It draws `power_w` in the fraction `duty` of each ms. Lengths are uniform in `length_ms` ± `spread`.

    A share `long_share` of executions is `long_factor` times as long. The power above idle grows with the execution's
    length to the power of `by_length`, and varies between executions by `varies` (relative standard deviation).
    """

    name: str
    length_ms: float
    power_w: float
    spread: float = 0.5
    duty: float = 1.0
    activity: float = 0.6
    profile: Profile = "all"
    thread: int = 0
    long_share: float = 0.0
    long_factor: float = 1.0
    by_length: float = 0.0
    varies: float = 0.0


@dataclass(frozen=True)
class Outer:
    """A region around `per` executions of the first thread, with its own work before, between and after them."""

    name: str = "outer"
    per: int = 5
    head_ms: float = 3.0
    power_w: float = 200.0


@dataclass(frozen=True)
class Stamps:
    """Errors of stamps. The host's are late by `late_ms` (uniform), a share `tail` of them `tail_factor` times that.

    `marks_us`: standard deviation of device marks; None without marks. Times of one thread never decrease.
    """

    late_ms: tuple[float, float] = (0.0, 0.05)
    tail: float = 0.0
    tail_factor: float = 10.0
    marks_us: float | None = None


@dataclass(frozen=True)
class Unmarked:
    """Work outside all regions: a share of executions, bursts of another process, work in gaps.

    Lengths of bursts are exponential. Work fills the fraction `gap_fill` of a share `gap_share` of the gaps.
    """

    share: float = 0.0
    bursts_per_min: float = 0.0
    burst_s: float = 0.5
    burst_w: float = 150.0
    gap_share: float = 0.0
    gap_fill: float = 0.7
    gap_w: float = 150.0


@dataclass(frozen=True)
class Physics:
    """The device: its idle power and its slow effects.

    `awake_w` is drawn above idle right after work and decays with `awake_s`. Leakage adds `warming` of the power in
    the long run, with time constant `warming_s`. The board's controller scales the power above idle to keep the mean
    over 50 ms below `cap_w`. `limit_w` is the most power of overlapping work. `clocks` are pairs (second, clock) from
    which on work takes 1 / clock as long and draws clock^2.4 times the power above idle (between f^2 and f^3 in Mei et
    al., "The impact of GPU DVFS", 2013).
    """

    idle_w: float = 90.0
    limit_w: float = 900.0
    cap_w: float | None = None
    awake_w: float = 0.0
    awake_s: float = 2.0
    warming: float = 0.0
    warming_s: float = 60.0
    clocks: tuple[tuple[float, float], ...] = ()


class Executions(NamedTuple):
    """All executions, as columns. Outer executions come first.

    `starts`, `ends`: true edges in steps from the recording's start. `parents`: index of the outer execution or -1.
    `power_w`: power in W while it works. `chance_w`: its random part. `marked`: whether a region marks it.
    """

    starts: Ints
    ends: Ints
    regions: Ints
    parents: Ints
    threads: Ints
    power_w: Floats
    chance_w: Floats
    marked: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Program:
    """Regions in an order, with gaps; each thread runs its own regions.

    `fixed` repeats the regions in order with lengths and gaps ± `jitter` (uniform). Otherwise the order is random.
    With `loop_ms` the lengths are scaled so that one turn takes exactly that time. Every `pause_every_s` on average the
    program pauses for `pause_s` on average.
    """

    regions: tuple[Region, ...]
    fixed: bool = False
    jitter: float = 0.0
    loop_ms: float = 0.0
    gap_ms: tuple[float, float] = (0.0, 2.0)
    pause_every_s: float = 0.0
    pause_s: float = 0.0
    outer: Outer | None = None
    stamps: Stamps = Stamps()
    unmarked: Unmarked = Unmarked()
    physics: Physics = Physics()

    @property
    def names(self) -> list[str]:
        """The names of all regions, the outer one last."""
        return [region.name for region in self.regions] + ([self.outer.name] if self.outer else [])

    def draw(self, seconds: float, rng: np.random.Generator) -> Executions:
        """The executions in a recording of `seconds`, from 0.2 s to 0.5 s before its end."""
        threads = sorted({region.thread for region in self.regions})
        parts = [self._thread(thread, seconds, rng) for thread in threads]
        joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        starts, ends, regions, place, power_w, chance_w = joined
        marked = rng.random(len(starts)) >= self.unmarked.share
        if self.outer is None:
            return Executions(starts, ends, regions, np.full(len(starts), -1), place, power_w, chance_w, marked)
        alone = Executions(starts, ends, regions, place * 0 - 1, place, power_w, chance_w, marked)
        return self._nested(self.outer, alone)

    def _thread(self, thread: int, seconds: float, rng: np.random.Generator) -> list[npt.NDArray[np.generic]]:
        own = [k for k, region in enumerate(self.regions) if region.thread == thread]
        typical = np.array([self.regions[k].length_ms for k in own])
        gap = sum(self.gap_ms) / 2
        count = int(seconds * 1000 / (typical.mean() + gap) * 1.6) + 50
        if self.fixed:
            if self.loop_ms:
                typical *= (self.loop_ms - gap * len(own)) / typical.sum()
            which = np.arange(count) % len(own)
            lengths = typical[which] * rng.uniform(1 - self.jitter, 1 + self.jitter, count)
            gaps = gap * rng.uniform(1 - self.jitter, 1 + self.jitter, count)
        else:
            which = rng.integers(len(own), size=count)
            spread = np.array([self.regions[k].spread for k in own])[which]
            lengths = typical[which] * rng.uniform(1 - spread, 1 + spread)
            gaps = rng.uniform(*self.gap_ms, count)
        owners = np.array(own)[which]
        regions = [self.regions[k] for k in own]
        long = rng.random(count) < np.array([r.long_share for r in regions])[which]
        lengths = np.where(long, lengths * np.array([r.long_factor for r in regions])[which], lengths)
        if self.pause_every_s:
            chance = (lengths + gaps) / 1000 / self.pause_every_s
            gaps += np.where(rng.random(count) < chance, rng.exponential(self.pause_s * 1000, count), 0.0)
        # Power above idle, by the execution's length and by chance.
        factor = (lengths / typical[which]) ** np.array([r.by_length for r in regions])[which]
        typical_w = np.array([r.power_w - self.physics.idle_w for r in regions])[which] * factor
        chance_w = typical_w * np.array([r.varies for r in regions])[which] * np.clip(rng.normal(size=count), -3, 3)
        watts = self.physics.idle_w + typical_w + chance_w
        edges = np.cumsum(np.column_stack([gaps, lengths]).ravel()).reshape(-1, 2) + 200.0 + rng.uniform(0, 100)
        steps = np.rint(self._real_ms(edges) * PER_MS).astype(np.int64)
        kept = (steps[:, 1] <= int((seconds - 0.5) * PER_S)) & (steps[:, 1] > steps[:, 0])
        threads = np.full(int(kept.sum()), thread)
        return [steps[kept, 0], steps[kept, 1], owners[kept], threads, watts[kept], chance_w[kept]]

    def _real_ms(self, work_ms: Floats) -> Floats:
        """The time at which `work_ms` of work at full clocks is done, at the clocks of the device."""
        clocks = self.physics.clocks
        if not clocks:
            return work_ms
        at = np.array([0.0, *(second * 1000 for second, _ in clocks), 1e9])
        done = np.concatenate(([0.0], np.cumsum(np.diff(at) * np.array([1.0, *(clock for _, clock in clocks)]))))
        result: Floats = np.interp(work_ms, done, at)
        return result

    def _nested(self, outer: Outer, inner: Executions) -> Executions:
        """Executions of the first thread, moved apart to make room for outer executions around them."""
        head = int(outer.head_ms * PER_MS)
        own = np.flatnonzero(inner.threads == 0)
        group = np.arange(len(own)) // outer.per
        whole = group < len(own) // outer.per
        own, group = own[whole], group[whole]
        move = 2 * head * group + head
        limit = inner.ends[inner.threads == 0].max(initial=0)
        starts, ends, parents = inner.starts.copy(), inner.ends.copy(), inner.parents.copy()
        starts[own] += move
        ends[own] += move
        count = len(own) // outer.per
        outers_start = starts[own][:: outer.per] - head
        outers_end = ends[own][outer.per - 1 :: outer.per] + head
        fits = outers_end <= limit
        number = np.cumsum(fits) - 1
        parents[own] = np.where(fits[group], number[group], -2)
        keep = np.ones(len(starts), bool)
        keep[np.flatnonzero(inner.threads == 0)] = False
        keep[own] = parents[own] >= 0
        n = int(fits.sum())
        power = np.full(count, outer.power_w)
        return Executions(
            np.concatenate((outers_start[fits], starts[keep])),
            np.concatenate((outers_end[fits], ends[keep])),
            np.concatenate((np.full(n, len(self.regions)), inner.regions[keep])),
            np.concatenate((np.full(n, -1), parents[keep])),
            np.concatenate((np.zeros(n, np.int64), inner.threads[keep])),
            np.concatenate((power[fits], inner.power_w[keep])),
            np.concatenate((np.zeros(n), inner.chance_w[keep])),
            np.concatenate((np.ones(n, bool), inner.marked[keep])),
        )
