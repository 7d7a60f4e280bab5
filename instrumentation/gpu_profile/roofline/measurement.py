"""One operation, run and judged: what `GPUProfiler` does for each call that it is given."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds, Verdict
from gpu_profile.regions.region import Region, region
from gpu_profile.roofline import doubling
from gpu_profile.roofline.call import BoundCall, not_counted, undone
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.counting.known import counting
from gpu_profile.roofline.machines.machine import Machine, Memory, Timing
from gpu_profile.roofline.position import Caches, Position, place
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work, unknown_work
from gpu_profile.units import percent

if TYPE_CHECKING:
    from gpu_profile.roofline.counting.counter import Counting

T = TypeVar("T")

#: Of a call's time, what counting may cost in its only run. Where it would be more, the call is not counted.
COUNTING_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was found of one operation. `host_s` is the median until the call returned, None where it was not taken.

    `share_of_run`: what counting took of the run that it was done in. `not_doubled`: why there is no doubling test.
    """

    name: str
    machine: str
    host_s: float | None
    caches: Caches
    share_of_run: float
    not_doubled: str
    position: Position
    verdict: Verdict
    memory: Memory | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCount:
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
    call: BoundCall[T],
    machine: Machine,
    ceilings: Ceilings,
    *,
    runs: RunCount,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    regions: bool = True,
) -> tuple[T, Measurement]:
    """Run `call` as often as `runs` says, once by default, and judge it. Its exceptions pass through.

    Returns the result of the last timed run. Each timed run is an execution of the region `call.name`.
    """
    if runs.growth:
        doubling.choices(call.args, call.kwargs)  # nothing to double is said before anything runs
    series = _RunSeries(call, machine, ceilings, runs)
    for _ in range(runs.warmup):
        series.run()
    if runs.warmup:
        series.double()  # before the timed runs, whose regions then have it
    result: Any = None
    for _ in range(runs.repeats):
        result = None  # one result at a time: two may be more than the device has room for
        result = series.run_timed(region(call.name, device=machine.region_device) if regions else nullcontext())
    series.count()
    if not runs.warmup:
        series.double()
    position = series.position(series.timings)
    host_s = Repeats.of([timing.host_s for timing in series.timings]).median_s
    return result, Measurement(
        name=call.name,
        machine=machine.name,
        host_s=host_s,
        caches=runs.caches,
        share_of_run=series.counting_s / (series.counting_s + host_s) if series.counting_s else 0.0,
        not_doubled=series.not_doubled,
        position=position,
        verdict=position.verdict(thresholds),
        memory=machine.memory(),
    )


class _RunSeries(Generic[T]):
    """The runs of one call, and what they have told so far."""

    def __init__(self, call: BoundCall[T], machine: Machine, ceilings: Ceilings, runs: RunCount) -> None:
        self._call, self._machine, self._ceilings, self._runs = call, machine, ceilings, runs
        #: None until the first run has counted it.
        self._work = call.work
        #: Why the call has not done its work yet when it returns.
        self._later: str | None = None
        self._growth: float | None = None
        self.not_doubled = ""
        self.counting_s = 0.0
        self.timings: list[Timing] = []

    def run(self) -> None:
        """Run it untimed, and count it at any cost if its work is not known."""
        self._flush()
        counter = counting(share=inf) if self._work is None else None
        with counter or nullcontext():
            self._later = undone(self._machine.run(self._call)[0])
        if counter is not None:
            self._work = _counted(counter)

    def run_timed(self, within: AbstractContextManager[Region | None]) -> T:
        """Run it timed, within a region, and count it if that costs next to nothing; its result."""
        self._flush()
        counter = counting(share=COUNTING_SHARE) if self._work is None else None
        with within as execution:
            with counter or nullcontext():
                result, timing = self._machine.run(self._call)
            if execution is not None:
                execution.stop()
            if counter is not None:
                self._work, self.counting_s = _affordable(_counted(counter), timing), counter.counting_s
                timing = _without(timing, self.counting_s, self._machine)
            self._later = undone(result)
            self.timings.append(timing)
            if execution is not None:
                execution.operation = self.position([timing]).operation
        return result

    def count(self) -> None:
        """Run it for counting alone, if it was asked for and its FLOPs or bytes are not known."""
        if self._runs.passes == 1 or self._later is not None or "torch" not in sys.modules:
            return
        work = self._known_work()
        # What has no formula has none in another run either.
        if (work.flops is None and not work.unknown) or work.bytes is None:
            with (counter := counting(share=inf)):
                self._machine.run(self._call)
            self._work = _completed(work, _counted(counter))

    def double(self) -> None:
        """The doubling test, if it was asked for."""
        call, runs = self._call, self._runs
        if runs.growth and self._later is None:
            self._growth, self.not_doubled = doubling.growth(
                call.function, call.args, call.kwargs, self._machine, runs=runs.repeats, flush=runs.flush
            )

    def position(self, timings: list[Timing]) -> Position:
        """Where runs that took so long stand."""
        caches, growth = self._runs.caches, self._growth
        return place(self._known_work(), timings, self._ceilings, caches=caches, growth=growth, later=self._later)

    def _known_work(self) -> Work:
        assert self._work is not None  # noqa: S101 - the first run has counted it
        return self._work

    def _flush(self) -> None:
        if self._runs.flush:
            self._machine.flush()


def _counted(counter: Counting) -> Work:
    try:
        return counter.work()
    except Exception as error:  # noqa: BLE001 - the user's call has run and is over: only its numbers are missing
        return not_counted(error)


def _completed(work: Work, counted: Work) -> Work:
    """What was known of the work already, and what a run of its own has found besides."""
    if work.flops is not None:
        counted = replace(counted, flops=work.flops, at_least=None, by_precision=work.by_precision, method=work.method)
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
