"""The table of cases: ideal programs and sensors, and the faults of real programs, boards and drivers.

A row builds a case from a seed. Programs have six regions of 2 to 20 ms (log-uniform) that draw 150 to 650 W. Half of
them are always busy, the others 20 to 90 % of the time. Device and sensors have only the faults that the row names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

import numpy as np

from laboratory.found import FOUND
from laboratory.oracle import judge
from laboratory.programs import Outer, Physics, Profile, Program, Region, Stamps, Unmarked
from laboratory.recordings import Case, analysed, replayed
from laboratory.score import Kind, Outcome
from laboratory.sensors import COUNTER, GPM, H200, POWER, SAMPLED, UTILIZATION, Sensor

#: Stamps of a host that waits for its device: late by the time of waking up, in some cases by much more.
LATE: Final = Stamps((0.2, 1.0), tail=0.02)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    kind: Kind
    build: Callable[[int], Case]

    def outcomes(self, seed: int) -> list[Outcome]:
        """Run one case of the row."""
        return outcomes(self.name, self.build(seed), replay=self.kind == "replay")


def outcomes(name: str, case: Case, *, replay: bool = False) -> list[Outcome]:
    """Record a case, analyse it, and pair the answers with the truth."""
    run = case.run()
    answers = analysed(run)
    live = replayed(run) if replay else {}
    return [
        Outcome(name, case.seed, region, quantity, target, answers[region, quantity], live.get((region, quantity)))
        for (region, quantity), target in judge(run).items()
        if (region, quantity) in answers
    ]


def program(seed: int, *, count: int = 6, length_ms: tuple[float, float] = (2.0, 20.0), **options: Any) -> Program:
    """A program with random regions. `options` are fields of `Program`."""
    rng = np.random.default_rng([seed, count])
    low, high = np.log(length_ms)
    regions = tuple(
        Region(
            f"r{k}",
            length_ms=round(float(np.exp(rng.uniform(low, high))), 2),
            power_w=round(float(rng.uniform(150, 650)), 1),
            duty=1.0 if k % 2 else round(float(rng.uniform(0.2, 0.9)), 1),
            activity=round(float(rng.uniform(0.1, 0.9)), 2),
            varies=0.02,
        )
        for k in range(count)
    )
    return Program(regions, **options)


def changed(base: Program, **changes: Any) -> Program:
    """`base` with changed fields in each region. A callable is called with the region's index."""
    return replace(
        base,
        regions=tuple(
            replace(region, **{key: value(k) if callable(value) else value for key, value in changes.items()})
            for k, region in enumerate(base.regions)
        ),
    )


def _case(seed: int, *, sensors: tuple[Sensor, ...] = (COUNTER, GPM), seconds: float = 60.0, **options: Any) -> Case:
    """A case with `options` of `Program`. `regions`: changed fields of all regions."""
    changes = options.pop("regions", {})
    return Case(changed(program(seed, **options), **changes), sensors, seconds, seed)


def _thirds(seed: int) -> Case:
    thirds: tuple[Profile, ...] = get_args(Profile)[1:4]
    return _case(seed, fixed=True, jitter=0.1, regions={"profile": lambda k: thirds[(seed + k) % 3]})


def _threads(seed: int) -> Case:
    """Two threads, with added power above idle. The power limit sometimes applies."""
    return _case(seed, physics=Physics(limit_w=700.0), gap_ms=(0.0, 8.0), regions={"thread": lambda k: k % 2})


def _marks(seed: int) -> Case:
    """The host launches asynchronously: its stamps differ by the time that launches take to reach the device."""
    return _case(seed, stamps=Stamps((0.0, 5.0), marks_us=5.0))


def _gain(seed: int) -> Case:
    gain = 0.95 if seed % 2 else 1.05
    return _case(seed, sensors=(replace(COUNTER, gain=gain), GPM))


def _service(seed: int) -> Case:
    """Requests with tokenisation on the host only, the two phases of a model on the device, and pauses between them."""
    regions = (
        Region("tokenize", 4.0, 90.0, duty=0.0, spread=0.3),
        Region("prefill", 18.0, 520.0, spread=0.3, activity=0.8, by_length=0.2),
        Region("decode", 45.0, 310.0, spread=0.5, duty=0.7, activity=0.3),
        Region("detokenize", 2.0, 90.0, duty=0.0, spread=0.3),
    )
    late = Stamps((0.02, 0.5), tail=0.02)
    made = Program(regions, fixed=True, jitter=0.3, gap_ms=(0.0, 4.0), pause_every_s=0.25, pause_s=0.12, stamps=late)
    return Case(made, (COUNTER, GPM), 240.0, seed)


def _drawn_loop(seed: int) -> Case:
    """A loop about as long as the sensors' periods, of one or two regions that work in a part of their time."""
    rng = np.random.default_rng([seed, 40, 210])
    loop_ms, jitter = round(float(rng.uniform(40, 210)), 1), float(rng.choice([0.0, 0.002, 0.02]))
    count, gap_ms = int(rng.integers(1, 3)), round(loop_ms * float(rng.uniform(0.05, 0.2)), 2)
    loop: dict[str, Any] = {"fixed": True, "loop_ms": loop_ms, "jitter": jitter, "gap_ms": (gap_ms, gap_ms)}
    return _case(seed, count=count, length_ms=(20.0, 40.0), stamps=LATE, regions={"profile": "first"}, **loop)


def _sampled(seed: int, *, other: bool = False, **options: Any) -> Case:
    """With the driver's own power samples, of a board with the measured response or another one."""
    rng = np.random.default_rng([seed, 20])
    lag_ms, window_ms = (rng.uniform(10, 40), rng.uniform(25, 80)) if other else rng.normal((4.5, 15.0), (0.5, 1.0))
    sampled = replace(SAMPLED[-1], lag_ms=float(lag_ms), window_ms=float(window_ms))
    stamps = options.pop("stamps", Stamps((0.0, 5.0), marks_us=20.0))
    return _case(seed, sensors=(*SAMPLED[:-1], sampled), stamps=stamps, **options)


def _gapless(seed: int, sensors: tuple[Sensor, ...]) -> Case:
    """Executions of one region without pauses, in and out of step with a sensor that measures a part of 100 ms.

    Nothing is known of the board.
    """
    rng = np.random.default_rng([seed, 25, 100])
    profiles: tuple[Profile, ...] = get_args(Profile)[1:]
    region = Region("r0", 50.0, float(rng.uniform(200, 600)), profile=profiles[seed % len(profiles)], varies=0.02)
    loop_ms = (100.0, 75.0, 200.0, 100.3, 120.0, 50.0, 250.0, 160.0, 90.0, 110.0, 66.0, 130.0)[seed % 12]
    made = Program((region,), fixed=True, loop_ms=loop_ms, gap_ms=(0.0, 0.0))
    return Case(made, sensors, 45.0, seed, "Laboratory")


def _found(name: str, seed: int) -> Case:
    return replace(FOUND[name], seed=seed)


def _row(name: str, kind: Kind = "violated", **options: Any) -> Row:
    return Row(name, kind, partial(_case, **options))


def _counter(**options: Any) -> tuple[Sensor, ...]:
    return replace(COUNTER, **options), GPM


def _loop(name: str, loop_ms: float, stamps: Stamps = LATE, **options: Any) -> Row:
    return _row(name, fixed=True, loop_ms=loop_ms, gap_ms=(0.2, 0.2), stamps=stamps, **options)


def _power(**options: Any) -> tuple[Sensor, ...]:
    return (replace(POWER, **options),)


#: Pauses as long as the slow effects: without them the device would never be idle long enough.
_PAUSES: Final[dict[str, Any]] = {"pause_every_s": 3.0, "pause_s": 3.0}

#: In a loop that repeats with the sensor, steady rates with another timing explain these equally well.
_PARTS: Final[dict[str, Any]] = {"count": 2, "length_ms": (20.0, 40.0), "regions": {"profile": "first"}}

#: Training: a few regions in a fixed order.
_LOOPED: Final[dict[str, Any]] = {"fixed": True, "jitter": 0.05, "count": 3, "seconds": 12.0}
_RISING: Final[dict[str, Any]] = {"regions": {"profile": "first"}}

ROWS: Final[tuple[Row, ...]] = (
    _row("clean: random order, 100 ms counter", "clean", sensors=(COUNTER,)),
    _row("clean: GPM and counter", "clean"),
    _row("clean: fixed order, 5 % jitter", "clean", fixed=True, jitter=0.05),
    _row("clean: nested", "clean", outer=Outer()),
    Row("clean: device marks", "clean", _marks),
    _row("clean: mean power", "clean", sensors=(POWER, UTILIZATION)),
    _row("clean: first 10 s", "clean", seconds=10.0),
    _loop("1: loop of 50 ms, late stamps", 50.0),
    _loop("1: loop of 100 ms, late stamps", 100.0),
    _loop("1: loop of 99.5 ms, late stamps", 99.5),
    Row("2: work in a third of each region, fixed order ±10 %", "violated", _thirds),
    *(
        _row(f"3: {share:.0%} of executions unmarked", "unmarked", unmarked=Unmarked(share))
        for share in (0.01, 0.02, 0.05)
    ),
    _row("3: bursts of another process", "unmarked", unmarked=Unmarked(bursts_per_min=10, burst_s=0.5)),
    _row("3: work in half of the gaps", "unmarked", gap_ms=(0.0, 6.0), unmarked=Unmarked(gap_share=0.5)),
    _row(
        "4: power grows with length, 1 % are 8 times as long",
        regions={"long_share": 0.01, "long_factor": 8.0, "by_length": 0.3},
    ),
    *(
        _row(f"5: counter renewed every {period} ms", sensors=_counter(period_ms=period))
        for period in (100.03, 100.5, 102.0)
    ),
    *(
        _row(
            f"6: utilisation over {window} ms renewed each {period} ms",
            sensors=(COUNTER, replace(UTILIZATION, window_ms=window, period_ms=period)),
        )
        for window, period in ((500.0, 100.0), (1000.0, 100.0), (1000.0, 167.0))
    ),
    *(_row(f"7: counter with a lag of {lag} ms", sensors=_counter(lag_ms=lag)) for lag in (130.0, 160.0, 250.0)),
    _loop("8: loop of exactly two windows", 200.0, Stamps((0.02, 0.1)), length_ms=(10.0, 60.0)),
    _row("9: idle power decays over seconds", physics=Physics(awake_w=60.0, awake_s=3.0), **_PAUSES),
    _row("9: power cap", physics=Physics(cap_w=300.0), **_PAUSES),
    _row("9: warming", seconds=120.0, physics=Physics(warming=0.25, warming_s=40.0)),
    _row("9: throttled in steps", physics=Physics(clocks=((20.0, 0.8), (40.0, 0.65)))),
    *(_row(f"10: power over {window} ms", sensors=_power(window_ms=window)) for window in (40.0, 60.0, 150.0)),
    *(
        _row(f"10: power smoothed by RC of {tau} ms", sensors=_power(kind="rc", window_ms=tau, period_ms=20.0))
        for tau in (35.0, 150.0, 350.0)
    ),
    _row("11: power over 100 ms polled every 50 ms", sensors=_power(poll_ms=50.0)),
    _loop("12: loop of 50 ms, exact stamps", 50.0, Stamps((0.0, 0.0))),
    Row("13: two threads", "violated", _threads),
    Row("14: gain of the board's sensor ±5 %", "violated", _gain),
    _row("15: live as analysed", "replay"),
    _row("15: live as analysed, nested", "replay", outer=Outer()),
    _row("15: live as analysed, power and utilisation", "replay", sensors=(POWER, UTILIZATION)),
    Row("16: a service, 4 min, host-only regions", "violated", _service),
    _row("more: counter measures 25 of each 100 ms", sensors=_counter(window_ms=25.0)),
    _row(
        "more: counter measures 13 of each 100 ms, fixed order",
        sensors=_counter(window_ms=13.0),
        fixed=True,
        jitter=0.05,
    ),
    _row("more: counter renewed every 20 ms", sensors=_counter(period_ms=20.0)),
    _row("more: power over 25 ms renewed each 100 ms", sensors=_power(window_ms=25.0)),
    _row("more: power over 1 s", sensors=_power(window_ms=1000.0), seconds=120.0),
    _row("more: a third of the samples lost", sensors=(replace(COUNTER, lost=0.3), replace(GPM, lost=0.3))),
    _row("more: polls wander by 20 ms", sensors=(replace(COUNTER, wander_ms=20.0), replace(GPM, wander_ms=20.0))),
    _row("more: counter lags by 1 s", sensors=_counter(lag_ms=1000.0)),
    _row("more: power rises within each region", fixed=True, jitter=0.1, regions={"profile": "rise"}),
    _row("more: late stamps, random order", stamps=LATE),
    *(_loop(f"more: loop of {loop:g} ms, work in a part of its regions", loop, **_PARTS) for loop in (75.0, 110.0)),
    Row("more: loops of 40 to 210 ms, each of another length, work in a part", "violated", _drawn_loop),
    Row(
        "more: loops without pauses, power over 25 ms renewed each 100 ms",
        "violated",
        partial(_gapless, sensors=_power(window_ms=25.0)),
    ),
    *(
        Row(
            f"more: loops without pauses, counter measures {part:g} of each 100 ms",
            "violated",
            partial(_gapless, sensors=_counter(window_ms=part)),
        )
        for part in (25.0, 50.0)
    ),
    _row("H200: GPM alone", sensors=H200[:2]),
    _row("H200: GPM and utilisation", sensors=H200),
    _row("H200: GPM and utilisation, pauses", sensors=H200, gap_ms=(5.0, 30.0)),
    _loop("H200: loop of 100 ms", 100.0, Stamps((0.0, 0.1)), sensors=H200),
    Row("H200: power samples", "violated", _sampled),
    *(
        Row(f"H200: power samples, loop of {loop:g} ms, 12 s", "violated", partial(_sampled, loop_ms=loop, **_LOOPED))
        for loop in (33.0, 75.0)
    ),
    Row(
        "H200: power samples, stamps 3 ms late",
        "violated",
        partial(_sampled, fixed=True, jitter=0.05, stamps=Stamps((3.0, 3.3))),
    ),
    Row("H200: power samples, loop of 100 ms", "violated", partial(_sampled, loop_ms=100.0, fixed=True)),
    Row("H200: power samples, work in a third", "violated", partial(_sampled, fixed=True, jitter=0.1, **_RISING)),
    Row("H200: power samples of another board", "violated", partial(_sampled, other=True, fixed=True, jitter=0.05)),
    *(Row(f"found: {name}", "violated", partial(_found, name)) for name in FOUND),
)
