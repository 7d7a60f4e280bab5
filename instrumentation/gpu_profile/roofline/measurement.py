"""One operation, run and judged: what `GPUProfiler` does for each call that it is given."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral
from typing import Any, Final, TypeVar

from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds, Verdict, classify
from gpu_profile.regimes.operation import Operation
from gpu_profile.regions.region import region
from gpu_profile.roofline import counting, doubling
from gpu_profile.roofline.call import Call, not_counted, undone
from gpu_profile.roofline.ceilings import Ceilings
from gpu_profile.roofline.machines.machine import Machine, Memory, Timing
from gpu_profile.roofline.position import Caches, Position, nowhere, place
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work, unknown_work
from gpu_profile.units import percent

T = TypeVar("T")

#: Of a call's time, what counting may cost in its only run. Where it would be more, the call is not counted.
COUNTING_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was found of one operation. `host_s` is the median until the call returned, None where it was not taken.

    `growth`: how much longer twice the work takes, as a share of the time of once. `counting_share`: what counting took
    of the run that it was done in.
    """

    name: str
    machine: str
    ceilings: Ceilings
    work: Work
    times: Repeats
    host_s: float | None
    caches: Caches
    growth: float | None
    counting_share: float
    position: Position
    verdict: Verdict
    memory: Memory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """How often a call runs, all of it by the caller's wish. By default once.

    `warmup` runs are not timed, `repeats` are. `flush` overwrites the caches before each. `passes=2` adds one that is
    not timed, in which FLOPs and bytes are counted, if they cannot be told otherwise. `growth` adds those of the
    doubling test.
    """

    repeats: int = 1
    warmup: int = 0
    flush: bool = False
    passes: int = 1
    growth: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (
            ("repeats", self.repeats, 1),
            ("warmup", self.warmup, 0),
            ("passes", self.passes, 1),
        ):
            if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")
        if self.passes > 2:
            raise ValueError(f"passes is 1, or 2 to count in a run of its own, not {self.passes}")

    @property
    def caches(self) -> Caches:
        """What the timed runs find in the caches."""
        if self.flush:
            return "cold"
        return "warm" if self.warmup or self.repeats > 2 else "unknown"


def measure(
    call: Call[T],
    machine: Machine,
    ceilings: Ceilings,
    *,
    runs: Runs,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = True,
) -> tuple[T, Measurement]:
    """Run `call` as often as `runs` says, once by default, and judge it. Its exceptions pass through.

    Returns the result of the last timed run. Each timed run is an execution of the region `call.name`.
    """
    if runs.growth:
        doubling.choices(call.args, call.kwargs)  # nothing to double is said before anything runs
    work = call.work
    counted_s = 0.0
    taken: list[Timing] = []
    result: Any = None
    later: str | None = None
    growth, refused = None, ""
    for _ in range(runs.warmup):
        if runs.flush:
            machine.flush()
        # What is not timed can be counted at any cost.
        counter = counting.Counting(share=inf) if work is None else None
        with counter or nullcontext():
            later = undone(machine.run(call)[0])
        work = work or _counted(counter)
    if runs.growth and runs.warmup and later is None:
        growth, refused = _growth(call, machine, runs)  # before the timed runs, whose regions then have it
    for _ in range(runs.repeats):
        result = None  # one result at a time: two may be more than the device has room for
        if runs.flush:
            machine.flush()
        counter = counting.Counting(share=COUNTING_SHARE) if work is None else None
        with region(call.name, device=machine.region_device) if regions else nullcontext() as execution:
            with counter or nullcontext():
                result, timing = machine.run(call)
            if execution is not None:
                execution.stop()
            if counter is not None:
                work, counted_s = _affordable(_counted(counter), timing), counter.counting_s
                timing = _without(timing, counted_s, machine)
            assert work is not None  # noqa: S101 - the first run has counted it
            later = undone(result)
            if execution is not None:
                position = _position(work, timing, ceilings, runs, later)
                execution.operation = position.operation(work, growth=growth, n=1)
        taken.append(timing)
    assert work is not None  # noqa: S101 - as above
    if runs.passes > 1 and later is None and "torch" in sys.modules and (work.flops is None or work.bytes is None):
        with (counter := counting.Counting(share=inf)):
            machine.run(call)
        work = _completed(work, _counted(counter))
    times = Repeats.of([timing.device_s for timing in taken])
    faults = sorted(timing.faults for timing in taken)[len(taken) // 2]
    position = _position(work, Timing(times.median_s, 0.0, faults), ceilings, runs, later)
    if runs.growth and not runs.warmup and later is None:
        growth, refused = _growth(call, machine, runs)
    if refused:
        position.reasons["growth"] = refused
    operation = position.operation(work, growth=growth, n=times.n)
    host_s = Repeats.of([timing.host_s for timing in taken]).median_s
    return result, Measurement(
        name=call.name,
        machine=machine.name,
        ceilings=ceilings,
        work=work,
        times=times,
        host_s=host_s,
        caches=runs.caches,
        growth=growth,
        counting_share=counted_s / (counted_s + host_s) if counted_s else 0.0,
        position=position,
        verdict=judge(operation, times, thresholds),
        memory=machine.memory(),
    )


def _position(work: Work, timing: Timing, ceilings: Ceilings, runs: Runs, later: str | None) -> Position:
    """Where the call stands; nowhere if its work is done `later`."""
    if later is not None:
        return nowhere({"runtime": later, **work.reasons})
    return place(work, timing.device_s, ceilings, caches=runs.caches, faults=timing.faults)


def _growth(call: Call[Any], machine: Machine, runs: Runs) -> tuple[float | None, str]:
    """The doubling test of it: how much longer twice the work takes, or why that is not known."""
    return doubling.growth(call.function, call.args, call.kwargs, machine, runs=runs.repeats, flush=runs.flush)


def judge(operation: Operation, times: Repeats, thresholds: Thresholds) -> Verdict:
    """The verdict on it; less sure of few timings or of timings that differ."""
    return classify(replace(operation.evidence(), half_width=_doubt(times, thresholds)), thresholds)


def _doubt(times: Repeats, thresholds: Thresholds) -> float:
    """How uncertain the shares are. One timing may be off by anything: half of what would be most doubtful."""
    known = times.half_width
    return thresholds.sure_margin / 2 if known is None else min(known, thresholds.sure_margin)


def _counted(counter: counting.Counting | None) -> Work:
    try:
        return unknown_work("nothing was counted") if counter is None else counter.work()
    except Exception as error:  # noqa: BLE001 - the user's call has run and is over: only its numbers are missing
        return not_counted(error)


def _completed(work: Work, counted: Work) -> Work:
    """What was known of the work already, and what a run of its own has found besides."""
    if work.flops is not None:
        counted = replace(counted, flops=work.flops, by_precision=work.by_precision, method=work.method)
    if work.bytes is not None:
        counted = replace(counted, bytes=work.bytes, working_set=work.working_set, largest=work.largest)
    missing = {"flops": counted.flops is None, "bytes": counted.bytes is None}
    return replace(counted, reasons={name: why for name, why in counted.reasons.items() if missing.get(name, True)})


def _affordable(work: Work, timing: Timing) -> Work:
    """The work, if counting it took a small enough share of the run; else nothing of it is told."""
    share = work.counting_s / timing.host_s if timing.host_s > 0 else 1.0
    if share < COUNTING_SHARE or (work.flops is None and work.bytes is None):
        return work
    reason = f"needs passes=2: counting took {percent(share, 0)} of the run"
    return unknown_work(reason, method="counted")


def _without(timing: Timing, counting_s: float, machine: Machine) -> Timing:
    """The timing without what counting took of the host; a device of its own went on meanwhile."""
    host_s = max(timing.host_s - counting_s, 0.0)
    device_s = max(timing.device_s - counting_s, 0.0) if _is_host(machine) else timing.device_s
    return timing._replace(device_s=device_s, host_s=host_s)


def _is_host(machine: Machine) -> bool:
    return machine.kind in ("cpu", "host")
