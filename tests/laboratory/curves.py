"""Power, busy and activity of a device on a grid of 0.1 ms, and each region's share of every moment.

A moment belongs in equal parts to the innermost marked executions (`shares`). Unmarked work has curves of its own.
Curves begin `LEAD_S` before the recording, with an idle device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from laboratory.programs import LEAD_S, PER_MS, PER_S, Executions, Floats, Ints, Program

Quantity = Literal["power", "busy", "activity"]

#: Blocks of slow physics: 5 ms, a tenth of the controller's memory.
_BLOCK: Final = 5 * PER_MS
#: Blocks in the memory of a power cap's controller: 50 ms.
_CAP_BLOCKS: Final = 10


#: Many steps of several curves. Half the memory of `Floats`, because memory traffic limits the speed.
Singles = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shares:
    """The share of each step by region: exclusive (`own`), and with nested regions (`inclusive`)."""

    own: Singles
    inclusive: Singles


@dataclass(frozen=True)
class World:
    """A device that ran a program.

    `unmarked`: watts of unmarked work, one row per source. `chance`: the random part of the power, beyond the power
    that follows from each execution's length and region.
    """

    program: Program
    executions: Executions
    seconds: float
    power: Floats
    busy: Floats
    activity: Floats
    unmarked: Floats
    chance: Floats
    shares: Shares

    def curve(self, quantity: Quantity) -> Floats:
        """The curve of a quantity, in W or as a ratio."""
        curve: Floats = getattr(self, quantity)
        return curve


def sums(curve: Floats) -> Floats:
    """The integral up to each edge of the grid, in units times steps. One value more than there are steps."""
    result = np.zeros((*curve.shape[:-1], curve.shape[-1] + 1))
    np.cumsum(curve, axis=-1, out=result[..., 1:])
    return result


def make(program: Program, seconds: float, rng: np.random.Generator) -> World:
    """Run a program."""
    ran = program.draw(seconds, rng)
    steps = int((seconds + LEAD_S) * PER_S)
    extra = np.zeros((3, steps))
    busy, activity, watts = extra
    lone = np.zeros((4, steps))
    for thread in np.unique(ran.threads):
        _work(program, ran, int(thread), watts, busy, activity, lone)
    shares = shares_of(ran.starts, ran.ends, ran, len(program.names), steps)
    if program.outer is not None:
        alone = shares.own[-1] > 0
        watts += np.where(alone, program.outer.power_w - program.physics.idle_w, 0.0)
        busy[alone] = 1.0
        activity += np.where(alone, 0.3, 0.0)
    _foreign(program, ran, rng, seconds, lone)
    watts += lone[1] + lone[2]
    busy[(lone[1] > 0) | (lone[2] > 0)] = 1.0
    activity += 0.5 * ((lone[1] > 0) | (lone[2] > 0))
    clock = _clock(program, steps)
    watts *= clock**2.4
    lone *= clock**2.4
    physics = program.physics
    power = _slow(program, np.minimum(watts, physics.limit_w - physics.idle_w), busy)
    scale = np.divide(power, watts + physics.idle_w, out=np.ones(steps), where=watts > 0)
    lone *= np.minimum(scale, 1.0)
    sources = lone[[k for k in range(3) if lone[k].any()]]
    return World(program, ran, seconds, power, busy, np.minimum(activity, 1.0), sources, lone[3], shares)


def _work(
    program: Program, ran: Executions, thread: int, watts: Floats, busy: Floats, activity: Floats, lone: Floats
) -> None:
    """Add the work of one thread, where executions never overlap. `lone[0]` gets unmarked work, `[3]` chance."""
    for k, region in enumerate(program.regions):
        selected = np.flatnonzero((ran.regions == k) & (ran.threads == thread))
        if not len(selected):
            continue
        starts, lengths = ran.starts[selected] + LEAD_S * PER_S, (ran.ends - ran.starts)[selected]
        which = np.repeat(np.arange(len(selected)), lengths)
        first = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        within = np.arange(len(which)) - first[which]
        at = starts[which] + within
        part = (within + 0.5) / lengths[which]
        level = _profile(region.profile, part)
        if region.duty < 1:
            level = level * (within % PER_MS < round(region.duty * PER_MS))
        added = (ran.power_w[selected][which] - program.physics.idle_w) * level
        watts[at] += added
        if region.varies:
            lone[3, at] += np.where(ran.marked[selected], ran.chance_w[selected], 0.0)[which] * level
        busy[at] = np.maximum(busy[at], level > 0)
        activity[at] += region.activity * level
        if not ran.marked[selected].all():
            lone[0, at] += np.where(ran.marked[selected][which], 0.0, added)


def _profile(profile: str, part: Floats) -> Floats:
    third = {"first": 0, "middle": 1, "last": 2}
    if profile in third:
        return np.where(np.minimum((part * 3).astype(np.int64), 2) == third[profile], 1.0, 0.0)
    slope = {"all": 0.0, "rise": 0.8, "fall": -0.8}[profile]
    level: Floats = 0.6 + slope * (part - 0.5) if slope else np.ones(len(part))
    return level


def shares_of(starts: Ints, ends: Ints, ran: Executions, count: int, steps: int) -> Shares:
    """The shares if the marked executions of `ran` had these edges (in steps from the recording's start)."""
    own = np.zeros((count, steps + 1), np.int8)
    low = np.clip(starts + LEAD_S * PER_S, 0, steps)
    high = np.clip(ends + LEAD_S * PER_S, 0, steps)
    inner = (ran.parents >= 0) & ran.marked
    for k in range(count):
        _mark(own[k], low, high, (ran.regions == k) & ran.marked)
    within = np.zeros(steps + 1, np.int8)
    if inner.any():
        _mark(within, low, high, inner)
        own[-1] -= within
    active = np.maximum(np.cumsum(own, axis=1, dtype=np.int8)[:, :-1], 0)
    total = active.sum(axis=0, dtype=np.int8)
    shared = active.astype(np.float32)
    overlapping = total > 1
    if overlapping.any():
        shared /= np.maximum(total, 1)
    if not inner.any():
        return Shares(shared, shared)
    inclusive = shared.copy()
    inclusive[-1] += np.cumsum(within, dtype=np.int8)[:-1] / np.maximum(total, 1).astype(np.float32)
    return Shares(shared, inclusive)


def _mark(changes: npt.NDArray[np.int8], low: Ints, high: Ints, which: npt.NDArray[np.bool_]) -> None:
    np.add.at(changes, low[which], 1)
    np.subtract.at(changes, high[which], 1)


def _foreign(program: Program, ran: Executions, rng: np.random.Generator, seconds: float, lone: Floats) -> None:
    """Bursts of another process into `lone[1]`, work in gaps into `lone[2]`."""
    unmarked, lead = program.unmarked, LEAD_S * PER_S
    if unmarked.bursts_per_min:
        for _ in range(rng.poisson(unmarked.bursts_per_min * seconds / 60)):
            start = lead + int(rng.uniform(0, seconds) * PER_S)
            lone[1, start : start + max(1, int(rng.exponential(unmarked.burst_s) * PER_S))] = unmarked.burst_w
    if unmarked.gap_share:
        order = np.argsort(ran.starts)
        reached = np.maximum.accumulate(ran.ends[order])[:-1]
        following = ran.starts[order][1:]
        worked = np.flatnonzero((following > reached) & (rng.random(len(reached)) < unmarked.gap_share))
        for begin, end in zip(reached[worked].tolist(), following[worked].tolist(), strict=True):
            lone[2, lead + begin : lead + begin + round((end - begin) * unmarked.gap_fill)] = unmarked.gap_w


def _clock(program: Program, steps: int) -> Floats:
    clock = np.ones(steps)
    for second, value in program.physics.clocks:
        clock[int((second + LEAD_S) * PER_S) :] = value
    return clock


def _slow(program: Program, watts: Floats, busy: Floats) -> Floats:
    """The power from the watts above idle, with decaying idle power, leakage by warming, and a power cap."""
    physics = program.physics
    power = watts + physics.idle_w
    if not (physics.awake_w or physics.warming or physics.cap_w):
        return power
    blocks = -(-len(power) // _BLOCK)
    length = blocks * _BLOCK

    def means(curve: Floats) -> list[float]:
        padded = np.pad(curve, (0, length - len(curve)), mode="edge")
        return list(padded.reshape(-1, _BLOCK).mean(1).tolist())

    if physics.awake_w:
        # Work wakes the device up within 50 ms.
        awake = _low_pass(means(busy), 10.0, physics.awake_s * PER_S / _BLOCK)
        power = power + physics.awake_w * np.repeat(awake, _BLOCK)[: len(power)] * (1 - busy)
    if physics.warming:
        time = physics.warming_s * PER_S / _BLOCK
        warm = _low_pass([mean / physics.limit_w for mean in means(power)], time, time)
        power = power * (1 + physics.warming * np.repeat(warm, _BLOCK)[: len(power)])
    if physics.cap_w:
        above, idle = means(power - physics.idle_w), physics.idle_w
        scale, scales, seen = 1.0, [], 0.0
        for mean in above:
            scales.append(scale)
            seen += (idle + mean * scale - seen) / _CAP_BLOCKS
            scale = min(1.0, max(0.3, scale * (1 + 0.05 * (physics.cap_w / seen - 1))))
        power = idle + (power - idle) * np.repeat(scales, _BLOCK)[: len(power)]
    return power


def _low_pass(values: list[float], up: float, down: float) -> Floats:
    """Follows `values` with one time constant upwards and one downwards, in blocks."""
    state, result = 0.0, []
    for value in values:
        state += (value - state) / (up if value > state else down)
        result.append(state)
    return np.array(result)
