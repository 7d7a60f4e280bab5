"""Starved samplers: no reading for 0.3 to 8 s at a time. The program goes on, stands still, or waits for a kernel.

The process or the sampling thread is stopped, has no processor, or waits for another thread's lock. In the first kind
only the sampler is. In the second one the program stands still too, so an execution lasts longer by the stop, and the
device soon idles. In the third one the device works on: the program waits for it. Regions are short, or 0.3 to 10 s
long. As from the driver, a reading of a mean covers at most 2 s before it (utilisation: 1 s).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from zlib import crc32

import numpy as np

from gpu_profile.catalogue import Signal
from laboratory.curves import World
from laboratory.kinds import Erratic, Stretches, bent, staged, usual
from laboratory.mixes import Rng, log_uniform, uniform
from laboratory.programs import LEAD_S, PER_MS, PER_S, Executions, Floats, Physics
from laboratory.recordings import Case
from laboratory.rows import Row, outcomes, program
from laboratory.score import Outcome
from laboratory.sensors import COUNTER, GPM, POWER, UTILIZATION, Readings, Sensor

SECONDS: Final = 60.0
_LONGEST_ROW_NS: Final = {"utilization": 10**9, "power_average": 2 * 10**9}


@dataclass(frozen=True)
class Starved(Erratic):
    """A sensor without polls while `stalled`, with rows of the driver's lengths."""

    def readings(self, signal: Signal, total: Floats, stamps: Floats, renewals: Floats, rng: Rng) -> Readings:
        made = super().readings(signal, total, stamps, renewals, rng)
        longest = _LONGEST_ROW_NS.get(signal.key)
        return (
            made if longest is None else made._replace(starts_ns=np.maximum(made.starts_ns, made.stamps_ns - longest))
        )


def _stops(rng: Rng) -> Stretches:
    """3 to 20 stops, by more than a second apart."""
    count = int(rng.integers(3, 21))
    lengths = np.array([log_uniform(rng, 300, 8000) for _ in range(count)])
    lengths *= min(1.0, 25_000 / lengths.sum())
    starts = np.sort(rng.uniform(2, SECONDS - 30, count)) + np.concatenate(([0], np.cumsum(lengths)[:-1])) / 1000
    return tuple(zip(starts.tolist(), lengths.tolist(), strict=True))


def _starved(rng: Rng, *, stops: bool, works: bool) -> Case:
    stretches = _stops(rng)
    made = usual(rng)
    if rng.random() < 0.5:
        made = program(
            int(rng.integers(1 << 30)), count=int(rng.integers(1, 4)), length_ms=(300.0, 10_000.0),
            gap_ms=(0.0, log_uniform(rng, 1, 1000)), physics=Physics(idle_w=uniform(rng, 40, 120)),
        )  # fmt: skip
    drain_ms = log_uniform(rng, 0.5, 50)
    at, length = (np.array(part) for part in zip(*stretches, strict=True))
    # The stops in the program's own time.
    begins = np.rint((at - np.concatenate(([0], np.cumsum(length)[:-1])) / 1000) * PER_S).astype(np.int64)

    def bend(ran: Executions) -> Executions:
        later = np.concatenate(([0], np.rint(np.cumsum(length) * PER_MS))).astype(np.int64)
        starts = ran.starts + later[np.searchsorted(begins, ran.starts, side="right")]
        return ran._replace(starts=starts, ends=ran.ends + later[np.searchsorted(begins, ran.ends)])

    def device(world: World) -> World:
        still = np.zeros(len(world.power), bool)
        for start_s, length_ms in stretches:
            begin = int((start_s + LEAD_S) * PER_S)
            still[begin + round(drain_ms * PER_MS) : begin + round(length_ms * PER_MS)] = True
        idle = world.program.physics.idle_w
        return replace(
            world, power=np.where(still, idle, world.power), busy=np.where(still, 0.0, world.busy),
            activity=np.where(still, 0.0, world.activity), unmarked=np.where(still, 0.0, world.unmarked),
            chance=np.where(still, 0.0, world.chance),
        )  # fmt: skip

    polled = replace(UTILIZATION, buffered=False)
    sets: list[tuple[Sensor, ...]] = [(COUNTER, GPM), (COUNTER, polled), (POWER, polled), (POWER, UTILIZATION)]
    sensors = tuple(
        each if each.buffered else Starved(**vars(each), stalled=stretches)
        for each in sets[int(rng.integers(len(sets)))]
    )
    case = staged(rng, bent(made, bend) if stops else made, sensors, device=device if stops and not works else None)
    return replace(case, seconds=SECONDS)


STARVED: Final[Mapping[str, Callable[[Rng], Case]]] = {
    "the sampler alone": partial(_starved, stops=False, works=False),
    "and the device idles": partial(_starved, stops=True, works=False),
    "and the device works on": partial(_starved, stops=True, works=True),
}


def case(kind: str, seed: int) -> Case:
    """The case of this kind and seed."""
    return replace(STARVED[kind](np.random.default_rng([20270302, crc32(kind.encode()), seed])), seed=seed)


def outcomes_of(kind: str, seed: int) -> list[Outcome]:
    """The outcomes of the case of this kind and seed."""
    return outcomes(kind, case(kind, seed))


#: As rows of the table.
STARVED_ROWS: Final = tuple(Row(f"starved: {kind}", "violated", partial(case, kind)) for kind in STARVED)
