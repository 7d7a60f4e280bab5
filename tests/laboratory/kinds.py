"""Kinds of programs, hosts and sensors beyond `rows` and `mixes`: further behaviour of real services.

A kind draws a case from a seed, like a mixed case: `draw("fan hunts", 3).outcomes()`. The program is a usual one (3 to
7 regions, half of the programs in a fixed order) on usual sensors, 20 to 40 s long. One property differs: `Bent`
changes executions before the device runs them, `Staged` curves and stamps after that, `Erratic` a sensor's readings.
The truth is defined as everywhere: the mean of the curve over a region's executions. So the power that other work adds
meanwhile is part of it, and work that continues after an execution is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue import Signal
from laboratory.curves import Quantity, World, sums
from laboratory.mixes import Mixed, Rng, Sensors, log_uniform, uniform
from laboratory.programs import LEAD_S, PER_MS, PER_S, Executions, Floats, Ints, Outer, Physics, Program, Region
from laboratory.recordings import Case, Run
from laboratory.rows import LATE, Row, changed, program
from laboratory.sensors import COUNTER, GPM, POWER, UTILIZATION, Readings, Sensor

Bend = Callable[[Executions], Executions]
Device = Callable[[World], World]
#: Changes the host's stamps: starts and ends in ns.
Host = Callable[[World, Ints], Ints]
#: The factor of the power in each step of each execution, by execution and by ms since its start.
Shape = Callable[[Executions, Ints, Floats], Floats]
#: Intervals as (start in s, length in ms).
Stretches = tuple[tuple[float, float], ...]

_LEAD: Final = LEAD_S * PER_S


@dataclass(frozen=True)
class Bent(Program):
    """A program with executions that `bend` changes. Draws `spare` times as many, because `bend` may shorten them."""

    bend: Bend = field(kw_only=True)
    spare: float = 1.0

    def draw(self, seconds: float, rng: Rng) -> Executions:
        """The executions in a recording of `seconds`."""
        ran = self.bend(super().draw(seconds * self.spare, rng))
        return _only(ran, ran.ends <= int((seconds - 0.5) * PER_S))


@dataclass(frozen=True)
class Staged(Case):
    """A case with a device and a host that deviate from the program."""

    device: Device | None = None
    late: Host | None = None

    def run(self) -> Run:
        """As `Case.run`, with the deviations."""
        plain = Case(self.program, (), self.seconds, self.seed).run()
        world = self.device(plain.world) if self.device else plain.world
        rng = np.random.default_rng([self.seed, 1])
        readings = [(sensor, *signal) for sensor in self.sensors for signal in sensor.read(world, rng)]
        starts, ends = self.late(world, np.stack(plain.host)) if self.late else plain.host
        return plain._replace(case=self, world=world, readings=readings, host=(starts, ends))


@dataclass(frozen=True)
class Erratic(Sensor):
    """A polled sensor. From `change_s` on it renews its value every `later_ms`.

    It renews nothing while `stuck` and catches up afterwards. There are no polls while `stalled`. A share `twice` of
    the polls is repeated at once.
    """

    change_s: float = 1e6
    later_ms: float = 100.0
    stuck: Stretches = ()
    stalled: Stretches = ()
    twice: float = 0.0

    def read(self, world: World, rng: Rng) -> list[tuple[Signal, Quantity, Readings]]:
        """The readings of every signal over the recording."""
        end, period, later = world.seconds * PER_S, self.period_ms * PER_MS, self.later_ms * PER_MS
        ticks = np.arange(rng.uniform(0, period) - 5 * period, min(end, self.change_s * PER_S), period)
        ticks = _outside(np.concatenate((ticks, np.arange(ticks[-1] + later, end, later))), self.stuck)
        polls = np.arange(rng.uniform(0, self.poll_ms), world.seconds * 1000, self.poll_ms) * PER_MS
        polls = _outside(polls + rng.exponential(self.wander_ms, len(polls)) * PER_MS, self.stalled)
        again = polls[rng.random(len(polls)) < self.twice]
        polls = np.sort(np.concatenate((polls, again + rng.uniform(0.5, 20, len(again)))))
        polls = polls[(np.diff(polls, prepend=-1.0) > 0.02) & (polls < end)]
        renewals = ticks[np.searchsorted(ticks, polls, side="right") - 1]
        if self.kind == "between":
            fresh = np.diff(renewals, prepend=-np.inf) > 0
            polls, renewals = polls[fresh], renewals[fresh]
        return [
            (signal, quantity, self.readings(signal, sums(world.curve(quantity)), polls, renewals, rng))
            for signal, quantity in self.curves()
        ]


def _outside(moments: Floats, stretches: Stretches) -> Floats:
    for start_s, length_ms in stretches:
        moments = moments[(moments < start_s * PER_S) | (moments >= start_s * PER_S + length_ms * PER_MS)]
    return moments


def _only(ran: Executions, kept: npt.NDArray[np.bool_]) -> Executions:
    columns: list[Any] = [column[kept] for column in ran]
    return Executions(*columns)


def _gaps(ran: Executions) -> Ints:
    return ran.starts - np.concatenate(([0], ran.ends[:-1]))


def _paced(ran: Executions, longer: Floats) -> Executions:
    """The executions with lengths times `longer` and unchanged gaps."""
    lengths = (ran.ends - ran.starts) * longer
    ends = np.cumsum(_gaps(ran) + lengths)
    starts = np.rint(ends - lengths).astype(np.int64)
    return ran._replace(starts=starts, ends=np.maximum(starts + 1, np.rint(ends).astype(np.int64)))


def _powered(ran: Executions, made: Program, factor: Floats) -> Executions:
    """The executions with the power above idle times `factor`."""
    idle = made.physics.idle_w
    return ran._replace(power_w=idle + (ran.power_w - idle) * factor, chance_w=ran.chance_w * factor)


def _shaped(world: World, shape: Shape, *, stops: bool = False) -> World:
    """Power above idle and activity times `shape`. With `stops`, the device is not busy where the factor is 0."""
    ran, idle = world.executions, world.program.physics.idle_w
    lengths = ran.ends - ran.starts
    which = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(which)) - (np.cumsum(lengths) - lengths)[which]
    factor = np.ones(len(world.power))
    factor[ran.starts[which] + within + _LEAD] = shape(ran, which, (within + 0.5) / PER_MS)
    return replace(
        world,
        power=np.minimum(idle + (world.power - idle) * factor, world.program.physics.limit_w),
        busy=world.busy * (factor > 0) if stops else world.busy,
        activity=np.minimum(world.activity * factor, 1.0),
        unmarked=world.unmarked * factor,
        chance=world.chance * factor,
    )


def _added(world: World, starts: Ints, ends: Ints, watts: Floats | float) -> World:
    """`world` with unmarked work between these steps from the recording's start."""
    steps, change = len(world.power), np.zeros(len(world.power) + 1)
    np.add.at(change, np.clip(starts + _LEAD, 0, steps), watts)
    np.subtract.at(change, np.clip(ends + _LEAD, 0, steps), watts)
    # Rounding errors of cancelling sums are no work.
    added = np.minimum(np.round(np.cumsum(change)[:-1], 6), np.maximum(world.program.physics.limit_w - world.power, 0))
    return replace(
        world,
        power=world.power + added,
        busy=np.where(added > 0, 1.0, world.busy),
        activity=np.minimum(world.activity + 0.3 * (added > 0), 1.0),
        unmarked=np.vstack((world.unmarked, added)),
    )


def usual(rng: Rng, **options: Any) -> Program:
    low, fixed = log_uniform(rng, 1.5, 8), rng.random() < 0.5
    drawn: dict[str, Any] = {
        "count": int(rng.integers(3, 8)),
        "length_ms": (low, low * log_uniform(rng, 2, 12)),
        "gap_ms": (0.0, log_uniform(rng, 0.3, 8)),
        "physics": Physics(idle_w=uniform(rng, 40, 120)),
        "fixed": bool(fixed),
        "jitter": log_uniform(rng, 0.01, 0.3),
    }
    return program(int(rng.integers(1 << 30)), **(drawn | options))


def bent(made: Program, bend: Bend, spare: float = 1.0) -> Program:
    return Bent(**vars(made), bend=bend, spare=spare)


def staged(rng: Rng, made: Program, sensors: Sensors = (), **stage: Any) -> Case:
    """A staged case, by default on usual sensors."""
    sets: list[Sensors] = [(COUNTER, GPM), (COUNTER, UTILIZATION), (POWER, UTILIZATION)]
    drawn, seconds = sets[int(rng.choice(3, p=[0.45, 0.35, 0.2]))], float(rng.choice([20.0, 30.0, 40.0]))
    return Staged(made, sensors or drawn, seconds, 0, **stage)


def _stretches(rng: Rng, every_s: float, low_ms: float, high_ms: float) -> Stretches:
    return tuple((float(start), log_uniform(rng, low_ms, high_ms)) for start in np.cumsum(rng.exponential(every_s, 40)))


def _fan(rng: Rng) -> Case:
    """Leakage is a part of all power. It follows the temperature, which the fan's controller drives up and down."""
    size, period_s, turn = log_uniform(rng, 0.01, 0.06), log_uniform(rng, 3, 25), uniform(rng, 0.1, 0.9)

    def device(world: World) -> World:
        phase = np.arange(len(world.power)) / PER_S / period_s % 1
        leak = 1 + size * np.interp(phase, [0, turn, 1], [-1, 1, -1])
        return replace(world, power=world.power * leak, unmarked=world.unmarked * leak, chance=world.chance * leak)

    return staged(rng, usual(rng), device=device)


def _ramp(rng: Rng) -> Case:
    """Clocks fall while the device idles and rise while it works."""
    depth, ramp_ms, idle_ms = uniform(rng, 0.2, 0.6), log_uniform(rng, 5, 60), log_uniform(rng, 5, 200)

    def shape(ran: Executions, which: Ints, ms: Floats) -> Floats:
        lack, lacks = depth, []
        for gap, length in zip((_gaps(ran) / PER_MS).tolist(), (ran.ends - ran.starts).tolist(), strict=True):
            lacks.append(depth + (lack - depth) * float(np.exp(-gap / idle_ms)))
            lack = lacks[-1] * float(np.exp(-length / PER_MS / ramp_ms))
        return 1 - np.array(lacks)[which] * np.exp(-ms / ramp_ms)

    made = usual(rng, pause_every_s=log_uniform(rng, 0.1, 1), pause_s=log_uniform(rng, 0.05, 0.4))
    return staged(rng, made, device=lambda world: _shaped(world, shape))


def _predecessor(rng: Rng) -> Case:
    """The previous execution leaves the caches warm or cold."""
    made, reach_ms = usual(rng, fixed=False), log_uniform(rng, 2, 40)
    factors = rng.uniform(0.75, 1.25, (len(made.regions), len(made.regions)))

    def shape(ran: Executions, which: Ints, ms: Floats) -> Floats:
        after = factors[np.concatenate((ran.regions[:1], ran.regions[:-1])), ran.regions]
        return 1 + (after[which] - 1) * np.exp(-ms / reach_ms)

    return staged(rng, made, device=lambda world: _shaped(world, shape))


def _prefill(rng: Rng) -> Case:
    """A first part of constant length and a rest of variable length: longer executions draw less power."""
    made = changed(usual(rng), spread=0.7, long_share=uniform(rng, 0, 0.05), long_factor=uniform(rng, 2, 6))
    first = np.array([rng.choice([0, 0.1, 0.3, 0.5]) * each.length_ms for each in made.regions])
    high, low = uniform(rng, 1.1, 1.6), uniform(rng, 0.4, 0.9)

    def shape(ran: Executions, which: Ints, ms: Floats) -> Floats:
        lasts = first[ran.regions][which]
        return np.where(lasts == 0, 1.0, np.where(ms < lasts, high, low))

    return staged(rng, made, device=lambda world: _shaped(world, shape))


def _hits(rng: Rng) -> Case:
    """Cache hits come in runs. They are shorter and draw another power. Within a region they count as chance."""
    made, share, run, more = usual(rng), uniform(rng, 0.3, 0.8), log_uniform(rng, 1, 60), uniform(rng, 0.4, 1.4)
    hit_is, seed = rng.choice([1.0, uniform(rng, 0.3, 0.7)], len(made.regions)), int(rng.integers(1 << 30))

    def bend(ran: Executions) -> Executions:
        chance, count = np.random.default_rng(seed), len(ran.regions)
        last = np.maximum.accumulate(np.where(chance.random(count) < 1 / run, np.arange(count), 0))
        hit = (chance.random(count) < share)[last] & (hit_is[ran.regions] < 1)
        ran = _powered(_paced(ran, np.where(hit, hit_is[ran.regions], 1.0)), made, np.where(hit, more, 1.0))
        lengths = ran.ends - ran.starts
        usual = np.bincount(ran.regions, lengths * ran.power_w) / np.maximum(np.bincount(ran.regions, lengths), 1)
        return ran._replace(chance_w=ran.power_w - usual[ran.regions])

    return staged(rng, bent(made, bend, 3.0))


def _tails(rng: Rng) -> Case:
    """Work from a region that continues for some ms after it, in parallel with the following work."""
    made, seed = usual(rng), int(rng.integers(1 << 30))
    tail_ms, watts = (
        rng.choice([0, 1], len(made.regions)) * log_uniform(rng, 0.3, 5),
        rng.uniform(30, 200, len(made.regions)),
    )

    def device(world: World) -> World:
        ran = world.executions
        lasts = tail_ms[ran.regions] * np.random.default_rng(seed).uniform(0.5, 1.5, len(ran.ends)) * PER_MS
        return _added(world, ran.ends, ran.ends + np.rint(lasts).astype(np.int64), watts[ran.regions])

    return staged(rng, made, device=device)


def _copy(rng: Rng) -> Case:
    """Unmarked work after each execution of one region, for 3 to 8 % of the time."""
    made = usual(rng, fixed=True)
    place, share = int(rng.integers(1, len(made.regions) + 1)), uniform(rng, 0.03, 0.08)
    copy = Region("copy", share * sum(each.length_ms for each in made.regions), uniform(rng, 120, 500))
    made = replace(made, regions=(*made.regions[:place], copy, *made.regions[place:]))
    return staged(rng, bent(made, lambda ran: ran._replace(marked=ran.regions != place)))


def _frames(rng: Rng) -> Case:
    """Another process decodes or renders frames at a fixed rate, all the time or in sessions."""
    fps, watts = float(rng.choice([24, 25, 30, 50, 60])) * (1 + uniform(rng, -1e-3, 1e-3)), log_uniform(rng, 60, 250)
    sessions = ((0.0, 4e4),) if rng.random() < 0.3 else _stretches(rng, log_uniform(rng, 1, 6), 300, 8000)
    lasts = round(log_uniform(rng, 1.5, 8) * PER_MS)
    frames = np.concatenate([np.arange(start, start + length / 1000, 1 / fps) for start, length in sessions])
    starts = np.rint(frames * PER_S).astype(np.int64)
    return staged(rng, usual(rng), device=lambda world: _added(world, starts, starts + lasts, watts))


def _traffic(rng: Rng) -> Case:
    """Cold executions take longer and draw another power. Requests of one to three other sorts follow later."""
    made, seed, at_s = usual(rng), int(rng.integers(1 << 30)), np.sort(rng.uniform(3, 30, rng.integers(1, 4)))
    longer, colder, decay_s, sorts = (
        log_uniform(rng, 0.1, 3),
        uniform(rng, -0.4, 0.3),
        log_uniform(rng, 0.5, 8),
        len(at_s) + 1,
    )
    mix, more = (rng.uniform(low, high, (sorts, len(made.regions))) for low, high in ((0.05, 1), (0.8, 1.25)))

    def bend(ran: Executions) -> Executions:
        cold = np.exp(-ran.starts / PER_S / decay_s)
        ran = _paced(ran, 1 + longer * cold)
        sort = np.searchsorted(at_s, ran.starts / PER_S), ran.regions
        comes = np.random.default_rng(seed).random(len(cold)) < mix[sort]
        return _only(_powered(ran, made, more[sort] * (1 + colder * cold)), comes)

    return staged(rng, bent(made, bend))


def _batches(rng: Rng) -> Case:
    """A varying load changes the batch size: length and power are correlated, and neighbours are similar."""
    made, spread, memory_s, by_batch = (
        usual(rng),
        uniform(rng, 0.1, 0.5),
        log_uniform(rng, 0.05, 8),
        uniform(rng, -0.5, 0.7),
    )
    seed = int(rng.integers(1 << 30))

    def bend(ran: Executions) -> Executions:
        drawn, load = np.random.default_rng(seed).normal(size=len(ran.starts)), [0.0]
        keeps = np.exp(-np.diff(ran.starts) / PER_S / memory_s)
        for keep, by in zip(keeps.tolist(), (drawn[1:] * np.sqrt(1 - keeps**2)).tolist(), strict=True):
            load.append(load[-1] * keep + by)
        batch = np.exp(spread * np.clip(load, -2, 2))
        return _powered(_paced(ran, batch), made, batch**by_batch)

    return staged(rng, bent(made, bend, 2.0))


def _late(rng: Rng) -> Case:
    """Stamps late by region (half as much at starts) and by the busy share of the last 0.2 s, up to 4 ms."""
    made = usual(rng, gap_ms=(0.0, log_uniform(rng, 2, 20)), pause_every_s=log_uniform(rng, 0.3, 2), pause_s=0.2)
    by_region, by_load, seed = (
        rng.uniform(0.05, 2, len(made.regions)),
        log_uniform(rng, 0.1, 3),
        int(rng.integers(1 << 30)),
    )

    def late(world: World, host: Ints) -> Ints:
        ran, total = world.executions, sums(world.busy)
        edges = np.stack((ran.starts, ran.ends)) + _LEAD
        load = (total[edges] - total[edges - PER_S // 5]) / (PER_S // 5)
        ms = by_region[ran.regions] * np.random.default_rng(seed).uniform(0.6, 1.4, edges.shape)
        stamps = host + (np.minimum([[0.5], [1.0]] * ms + by_load * load**2, 4) * 1e6).astype(np.int64)
        # Stamps of a thread never decrease.
        return np.maximum.accumulate(stamps.T.ravel()).reshape(-1, 2).T

    return staged(rng, made, late=late)


def _pauses(rng: Rng) -> Case:
    """A garbage collector or a lock stops some executions before or after their work, and the device idles."""
    longer, first = log_uniform(rng, 5, 25), bool(rng.random() < 0.5)
    made = changed(usual(rng), long_share=log_uniform(rng, 0.003, 0.03), long_factor=longer)
    typical = np.array([region.length_ms for region in made.regions])

    def shape(ran: Executions, which: Ints, ms: Floats) -> Floats:
        lengths = (ran.ends - ran.starts) / PER_MS
        part = ms / lengths[which]
        works = (lengths < 1.6 * typical[ran.regions])[which] | (
            (part > 1 - 1 / longer) if first else part < 1 / longer
        )
        return works.astype(np.float64)

    return staged(rng, made, device=lambda world: _shaped(world, shape, stops=True))


def _twelve(rng: Rng) -> Case:
    """Twelve regions in an outer one, two of which run some ten times in all."""
    outer = Outer(per=int(rng.integers(2, 7)), head_ms=log_uniform(rng, 0.5, 5), power_w=uniform(rng, 120, 400))
    times, seed = int(rng.integers(8, 15)), int(rng.integers(1 << 30))

    def bend(ran: Executions) -> Executions:
        kept = np.ones(len(ran.regions), bool)
        for rare in (3, 8):
            kept[np.random.default_rng([seed, rare]).permutation(np.flatnonzero(ran.regions == rare))[times:]] = False
        return _only(ran, kept)

    return staged(rng, bent(usual(rng, count=12, fixed=False, outer=outer), bend))


def _rational(rng: Rng) -> Case:
    """A loop near an unusual ratio to the sensor's period. It may drift across the ratio."""
    over, under = [(2, 3), (3, 4), (4, 5), (5, 4), (4, 3), (5, 3), (7, 4), (5, 2), (7, 3)][int(rng.integers(9))]
    loop_ms = 100 * over / under * (1 + log_uniform(rng, 1e-5, 1e-2) * float(rng.choice([-1, 1])))
    loop: dict[str, Any] = {"fixed": True, "jitter": 0.0, "loop_ms": loop_ms, "gap_ms": (0.5, 0.5), "stamps": LATE}
    made = usual(rng, **loop | {"count": int(rng.integers(2, 6))})
    made, drift = changed(made, profile=rng.choice(["all", "first"])), rng.choice([0.0, log_uniform(rng, 1e-4, 1e-2)])
    return staged(rng, bent(made, lambda ran: _paced(ran, 1 + drift * np.linspace(-0.5, 0.5, len(ran.starts))), 1.1))


def _hiccups(rng: Rng) -> Case:
    """The board's sensor repeats itself and catches up. The host stops polling for a while, or polls twice."""
    board, twice = COUNTER if rng.random() < 0.7 else POWER, log_uniform(rng, 0.01, 0.3)
    stuck, stalled = (_stretches(rng, log_uniform(rng, 1, 8), 150, 1500) for _ in range(2))
    erratic = Erratic(**vars(board), stuck=stuck, stalled=stalled, twice=twice)
    return staged(rng, usual(rng), (erratic, Erratic(**vars(GPM), stalled=stalled)))


def _period(rng: Rng) -> Case:
    """Another client of the driver, or another power state, changes the renewal period of the board's sensor."""
    later = float(rng.choice([20, 50, 200])) if rng.random() < 0.5 else uniform(rng, 96, 104)
    board = COUNTER if rng.random() < 0.7 else POWER
    return staged(rng, usual(rng), (Erratic(**vars(board), change_s=uniform(rng, 6, 15), later_ms=later), UTILIZATION))


def _two_loops(rng: Rng) -> Case:
    """A program trains and evaluates in turns, or one after the other: two loops of different regions."""
    made = usual(rng, count=2 * int(rng.integers(2, 5)), fixed=True)
    turn_s = log_uniform(rng, 2, 15)

    def bend(ran: Executions) -> Executions:
        first = ran.starts / PER_S / turn_s % 2 < 1
        runs = first == (ran.regions < len(made.regions) // 2)
        gaps, lengths = _gaps(ran)[runs], (ran.ends - ran.starts)[runs]
        ends = np.cumsum(gaps + lengths)
        return _only(ran, runs)._replace(starts=ends - lengths, ends=ends)

    return staged(rng, bent(made, bend, 2.5))


KINDS: Final[Mapping[str, Callable[[Rng], Case]]] = {
    "fan hunts": _fan,
    "clocks ramp up after idling": _ramp,
    "power by predecessor": _predecessor,
    "prefill, then decode": _prefill,
    "cache hits in runs": _hits,
    "asynchronous tails": _tails,
    "copy after one region": _copy,
    "frames of a neighbour": _frames,
    "warm-up, then other traffic": _traffic,
    "batches follow load": _batches,
    "stamps late by region and load": _late,
    "pauses inside regions": _pauses,
    "twelve nested, two rare": _twelve,
    "loop near a rational": _rational,
    "sensor hiccups": _hiccups,
    "period changes once": _period,
    "two loops in turns": _two_loops,
}
#: Kinds with work outside all regions.
UNMARKED: Final = frozenset({"asynchronous tails", "copy after one region", "frames of a neighbour"})


def draw(kind: str, seed: int) -> Mixed:
    """The case of this kind and seed."""
    return Mixed(seed, (kind,), _case(kind, seed))


def _case(kind: str, seed: int) -> Case:
    return replace(KINDS[kind](np.random.default_rng([20270301, crc32(kind.encode()), seed])), seed=seed)


#: As rows of the table.
KIND_ROWS: Final = tuple(
    Row(f"kind: {kind}", "unmarked" if kind in UNMARKED else "violated", partial(_case, kind)) for kind in KINDS
)
