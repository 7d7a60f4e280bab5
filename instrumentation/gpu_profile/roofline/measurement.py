"""Runs one call of an operation and judges it, for `GPUProfiler`."""

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
from gpu_profile.roofline.call import BoundCall, not_counted, why_deferred
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

#: The largest share of a call's only run that counting may take. Beyond it, counting stops and the counts are dropped.
COUNTING_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of one operation. `host_s`: median seconds until the call returned. None if not measured.

    `share_of_run`: the share of a run that counting took in it. `not_doubled`: why the doubling test failed, or empty.
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
    """How often a call runs: once, unless the caller asks for more.

    `warmup` runs are not timed, `repeats` runs are. `flush` overwrites the caches before each. `passes=2` adds an
    untimed run that counts FLOPs and bytes, if they cannot be determined without it. `growth` adds the runs of the
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
        """The state of the caches at the start of the timed runs."""
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
    """Run `call` as `runs` specifies and judge it. Returns the last timed run's result, and the measurement.

    Each timed run is an execution of the region `call.name`, unless `regions` is False. Exceptions of the call
    propagate.
    """
    if runs.growth:
        doubling.choices(call.args, call.kwargs)  # raises before any run if no argument can be doubled
    series = _RunSeries(call, machine, ceilings, runs)
    for _ in range(runs.warmup):
        series.run()
    if runs.warmup:
        series.double()  # before the timed runs, so that their regions get the growth
    result: Any = None
    for _ in range(runs.repeats):
        result = None  # release it first: two results may exceed the device's memory
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
    """The runs of one call, with their timings and the work counted so far."""

    def __init__(self, call: BoundCall[T], machine: Machine, ceilings: Ceilings, runs: RunCount) -> None:
        self._call, self._machine, self._ceilings, self._runs = call, machine, ceilings, runs
        #: None until the first run has counted the work.
        self._work = call.work
        #: Why the call has not done its work yet when it returns.
        self._later: str | None = None
        self._growth: float | None = None
        self.not_doubled = ""
        self.counting_s = 0.0
        self.timings: list[Timing] = []

    def run(self) -> None:
        """Run the call untimed. If its work is unknown, count it, however long counting takes."""
        self._flush()
        counter = counting(share=inf) if self._work is None else None
        with counter or nullcontext():
            self._later = why_deferred(self._machine.run(self._call)[0])
        if counter is not None:
            self._work = _counted(counter)

    def run_timed(self, within: AbstractContextManager[Region | None]) -> T:
        """Run and time the call within a region. If its work is unknown, count it while that takes little time."""
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
            self._later = why_deferred(result)
            self.timings.append(timing)
            if execution is not None:
                execution.operation = self.position([timing]).operation
        return result

    def count(self) -> None:
        """Run the call only to count it, if `passes=2` and its FLOPs or bytes are unknown."""
        if self._runs.passes == 1 or self._later is not None or "torch" not in sys.modules:
            return
        work = self._known_work()
        # FLOPs that are unknown for lack of a formula stay unknown in another run.
        if (work.flops is None and not work.unknown) or work.bytes is None:
            with (counter := counting(share=inf)):
                self._machine.run(self._call)
            self._work = _completed(work, _counted(counter))

    def double(self) -> None:
        """Run the doubling test, if `growth` is set."""
        call, runs = self._call, self._runs
        if runs.growth and self._later is None:
            self._growth, self.not_doubled = doubling.growth(
                call.function, call.args, call.kwargs, self._machine, runs=runs.repeats, flush=runs.flush
            )

    def position(self, timings: list[Timing]) -> Position:
        """The position of runs with these timings."""
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
    except Exception as error:  # noqa: BLE001 - the user's call has already run: only its counts are missing
        return not_counted(error)


def _completed(work: Work, counted: Work) -> Work:
    """`counted`, the result of a run of its own, with FLOPs and bytes of `work` where these are known."""
    if work.flops is not None:
        counted = replace(counted, flops=work.flops, at_least=None, by_precision=work.by_precision, method=work.method)
    if work.bytes is not None:
        counted = replace(counted, bytes=work.bytes, working_set=work.working_set, largest=work.largest)
    missing = {"flops": counted.flops is None, "bytes": counted.bytes is None}
    return replace(counted, reasons={name: why for name, why in counted.reasons.items() if missing.get(name, True)})


def _affordable(work: Work, timing: Timing) -> Work:
    """The work, if counting took less than `COUNTING_SHARE` of the run; otherwise unknown work with the reason."""
    share = work.counting_s / timing.host_s if timing.host_s > 0 else 1.0
    if share < COUNTING_SHARE or (work.flops is None and work.bytes is None):
        return work
    reason = f"needs passes=2: counting took {percent(share, 0)} of the run"
    return unknown_work(reason, method="counted")


def _without(timing: Timing, counting_s: float, machine: Machine) -> Timing:
    """The timing less the host's time for counting. `device_s` changes only if the host is the device."""
    host_s = max(timing.host_s - counting_s, 0.0)
    device_s = max(timing.device_s - counting_s, 0.0) if _is_host(machine) else timing.device_s
    return timing._replace(device_s=device_s, host_s=host_s)


def _is_host(machine: Machine) -> bool:
    return machine.kind in ("cpu", "host")
