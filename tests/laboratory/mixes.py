"""Mixed cases: random combinations of program, sensors and violations of the usual assumptions.

Each case has a number, which determines it completely. **Programs**: 2 to 8 regions (uniform) of lengths between
a low of 1 to 10 ms and a high of 2 to 20 times that (log-uniform); half in random order, half in a fixed one with 0.5
to 30 % jitter (log-uniform); gaps up to 0.2 to 10 ms (log-uniform); 20 % nested, 25 % with device marks, 30 % with
pauses; 20, 40, 60 or 90 s. **Sensors**: 45 % energy counter and GPM, 35 % counter and utilisation, 20 % power and
utilisation. **Violations**: 0 to 3 different ones (15, 40, 30 and 15 %), all equally likely among those that apply to
the sensors. The function of each defines its sizes. A scale-free size is log-uniform between a hardly visible one and
the worst one documented for boards and programs. `tests/unit/laboratory/test_mixes.py` checks a digest of the draw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

import numpy as np

from laboratory.programs import Outer, Physics, Profile, Program, Stamps
from laboratory.recordings import Case
from laboratory.rows import changed, outcomes, program
from laboratory.score import Outcome
from laboratory.sensors import COUNTER, GPM, POWER, UTILIZATION, Sensor

Rng = np.random.Generator
Sensors = tuple[Sensor, ...]
#: Changes a program and its sensors.
Violation = Callable[[Rng, Program, Sensors], tuple[Program, Sensors]]


def log_uniform(rng: Rng, low: float, high: float) -> float:
    """A log-uniform size between `low` and `high`, to four digits."""
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.4g}")


def uniform(rng: Rng, low: float, high: float) -> float:
    """A uniform size between `low` and `high`, to four digits."""
    return float(f"{rng.uniform(low, high):.4g}")


def _of_program(change: Callable[[Rng, Program], Mapping[str, Any]]) -> Violation:
    return lambda rng, made, sensors: (replace(made, **change(rng, made)), sensors)


def _of_regions(change: Callable[[Rng], Mapping[str, Any]]) -> Violation:
    return lambda rng, made, sensors: (changed(made, **change(rng)), sensors)


def _of_physics(change: Callable[[Rng], Mapping[str, Any]]) -> Violation:
    return lambda rng, made, sensors: (replace(made, physics=replace(made.physics, **change(rng))), sensors)


def _of_unmarked(change: Callable[[Rng], Mapping[str, Any]]) -> Violation:
    return lambda rng, made, sensors: (replace(made, unmarked=replace(made.unmarked, **change(rng))), sensors)


def _of_sensors(kinds: set[str], change: Callable[[Rng], Mapping[str, Any]]) -> Violation:
    """The same change for each sensor with one of these signals."""

    def apply(rng: Rng, made: Program, sensors: Sensors) -> tuple[Program, Sensors]:
        drawn = change(rng)
        return made, tuple(replace(each, **drawn) if kinds & {*each.signals} else each for each in sensors)

    return apply


def _profiles(rng: Rng, made: Program, sensors: Sensors) -> tuple[Program, Sensors]:
    profiles: tuple[Profile, ...] = get_args(Profile)[1:]
    drawn = [profiles[k] for k in rng.integers(len(profiles), size=len(made.regions))]
    return changed(made, profile=lambda k: drawn[k]), sensors


def _late(rng: Rng, made: Program) -> Mapping[str, Any]:
    late = log_uniform(rng, 0.05, 2.0)
    return {"stamps": Stamps((late / 4, late), tail=log_uniform(rng, 0.003, 0.05))}


def _loop(rng: Rng, made: Program) -> Mapping[str, Any]:
    """A loop of 50, 100, 150 or 200 ms, exactly or up to 1 % off."""
    loop_ms = 50.0 * int(rng.integers(1, 5)) * (1 + (rng.random() < 0.5) * uniform(rng, -0.01, 0.01))
    # Gaps take at most a tenth of the loop, so that all of them fit on the grid.
    gap = round(min(1.0, loop_ms / 10 / len(made.regions)), 2)
    return {"fixed": True, "jitter": 0.0, "loop_ms": round(loop_ms, 3), "gap_ms": (gap, gap), "outer": None}


_BOARD: Final = {"energy", "power_average"}
#: All polled signals. Utilisation is missing, because the driver buffers it.
_POLLED: Final = {*_BOARD, "graphics"}

#: Violations by name. Members of `UNMARKED` add unmarked work.
VIOLATIONS: Final[Mapping[str, Violation]] = {
    "locked loop": _of_program(_loop),
    "uneven work": _profiles,
    "unmarked executions": _of_unmarked(lambda rng: {"share": log_uniform(rng, 0.003, 0.1)}),
    "foreign bursts": _of_unmarked(
        lambda rng: {
            "bursts_per_min": log_uniform(rng, 1, 30),
            "burst_s": log_uniform(rng, 0.05, 3),
            "burst_w": log_uniform(rng, 30, 300),
        }
    ),
    "work in gaps": _of_unmarked(
        lambda rng: {"gap_share": log_uniform(rng, 0.05, 1), "gap_w": log_uniform(rng, 30, 300)}
    ),
    "power by length": _of_regions(
        lambda rng: {
            "long_share": log_uniform(rng, 0.003, 0.05),
            "long_factor": log_uniform(rng, 2, 20),
            "by_length": uniform(rng, 0.1, 0.5),
        }
    ),
    "late stamps": _of_program(_late),
    "renewal off by 0.01-3 %": _of_sensors(_BOARD, lambda rng: {"period_ms": 100 * (1 + log_uniform(rng, 1e-4, 0.03))}),
    "lag": _of_sensors(_BOARD, lambda rng: {"lag_ms": log_uniform(rng, 5, 1000)}),
    "measures part of the time": _of_sensors({"energy"}, lambda rng: {"window_ms": log_uniform(rng, 10, 80)}),
    "other power window": _of_sensors({"power_average"}, lambda rng: {"window_ms": log_uniform(rng, 20, 1000)}),
    "power smoothed": _of_sensors(
        {"power_average"}, lambda rng: {"kind": "rc", "window_ms": log_uniform(rng, 20, 400), "period_ms": 20.0}
    ),
    "other utilisation window": _of_sensors(
        {"utilization"}, lambda rng: {"window_ms": log_uniform(rng, 20, 1000), "period_ms": uniform(rng, 100, 167)}
    ),
    "polled faster": _of_sensors(_BOARD, lambda rng: {"poll_ms": log_uniform(rng, 20, 80)}),
    "polls wander": _of_sensors(_POLLED, lambda rng: {"wander_ms": log_uniform(rng, 1, 30)}),
    "samples lost": _of_sensors(_POLLED, lambda rng: {"lost": log_uniform(rng, 0.01, 0.5)}),
    "coarse counter": _of_sensors({"energy"}, lambda rng: {"quantum": log_uniform(rng, 0.01, 5)}),
    "noise": _of_sensors(_BOARD, lambda rng: {"noise": log_uniform(rng, 0.005, 0.05)}),
    "gain": _of_sensors(_BOARD, lambda rng: {"gain": 1 + uniform(rng, -0.05, 0.05)}),
    "idle power decays": _of_physics(
        lambda rng: {"awake_w": log_uniform(rng, 10, 100), "awake_s": log_uniform(rng, 0.3, 10)}
    ),
    "power cap": _of_physics(lambda rng: {"cap_w": uniform(rng, 180, 400)}),
    "warming": _of_physics(
        lambda rng: {"warming": log_uniform(rng, 0.02, 0.3), "warming_s": log_uniform(rng, 10, 120)}
    ),
    "throttled": _of_physics(
        lambda rng: {
            "clocks": ((uniform(rng, 5, 15), uniform(rng, 0.5, 0.95)), (uniform(rng, 16, 40), uniform(rng, 0.5, 1)))
        }
    ),
    "two threads": _of_regions(lambda rng: {"thread": lambda k: k % 2}),
}
UNMARKED: Final = frozenset({"unmarked executions", "foreign bursts", "work in gaps"})


@dataclass(frozen=True)
class Mixed:
    """A drawn case and its violations."""

    number: int
    violations: tuple[str, ...]
    case: Case

    def outcomes(self) -> list[Outcome]:
        """Run the case."""
        return outcomes(", ".join(self.violations) or "none", self.case)


def draw(number: int) -> Mixed:
    """The case with this number."""
    return compose(np.random.default_rng([20261123, number]), number)


def compose(rng: Rng, number: int) -> Mixed:
    """A case by the choices of `rng`. `number` seeds its regions and all later random choices."""
    low = log_uniform(rng, 1, 10)
    high = low * log_uniform(rng, 2, 20)
    count = int(rng.integers(2, 9))
    fixed = bool(rng.random() < 0.5)
    made = program(
        number,
        count=count,
        length_ms=(low, high),
        fixed=fixed,
        jitter=log_uniform(rng, 0.005, 0.3) if fixed else 0.0,
        gap_ms=(0.0, log_uniform(rng, 0.2, 10)),
        outer=Outer() if rng.random() < 0.2 else None,
        stamps=Stamps(marks_us=log_uniform(rng, 1, 20)) if rng.random() < 0.25 else Stamps(),
        physics=Physics(idle_w=uniform(rng, 40, 120)),
    )
    if rng.random() < 0.3:
        made = replace(made, pause_every_s=log_uniform(rng, 0.5, 5), pause_s=log_uniform(rng, 0.2, 3))
    sets: list[Sensors] = [(COUNTER, GPM), (COUNTER, UTILIZATION), (POWER, UTILIZATION)]
    sensors = sets[int(rng.choice(3, p=[0.45, 0.35, 0.2]))]
    seconds = float(rng.choice([20.0, 40.0, 60.0, 90.0]))
    names, wanted = list(VIOLATIONS), int(rng.choice(4, p=[0.15, 0.4, 0.3, 0.15]))
    applied: list[str] = []
    for name in (names[k] for k in rng.permutation(len(names))):
        if len(applied) == wanted:
            break
        before = made, sensors
        made, sensors = VIOLATIONS[name](rng, made, sensors)
        if (made, sensors) != before:  # otherwise the case has no such sensor
            applied.append(name)
    if made.outer and any(region.thread for region in made.regions):
        made = replace(made, outer=None)
    return Mixed(number, tuple(applied), Case(made, sensors, seconds, number))


def digest(count: int) -> str:
    """A digest of the first `count` descriptions, which changes with any of them."""
    return hashlib.sha256("\n".join(repr(draw(number)) for number in range(count)).encode()).hexdigest()[:16]
