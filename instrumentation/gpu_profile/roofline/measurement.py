"""One operation, run and judged: what `GPUProfiler` does for each call that it is given."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Generic, TypeVar

from gpu_profile.operation import Operation
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds, Verdict, classify
from gpu_profile.regions import region
from gpu_profile.roofline import counting
from gpu_profile.roofline.ceilings import Ceilings
from gpu_profile.roofline.doubling import doubled
from gpu_profile.roofline.machines.machine import Machine, Memory, Timing
from gpu_profile.roofline.position import Caches, Position, place
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work, unknown_work
from gpu_profile.units import percent

T = TypeVar("T")
_log = logging.getLogger("gpu_profile")

#: Of a call's time, what counting may cost in its only run. Where it would be more, the call is not counted.
COUNTING_SHARE: Final = 0.05
#: Runs of either size in the doubling test: as many as give a median with a 95 % interval.
_DOUBLING_RUNS: Final = 7


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
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
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
    work = call.work
    counted_s = 0.0
    taken: list[Timing] = []
    result: Any = None
    for i in range(runs.warmup + runs.repeats):
        timed = i >= runs.warmup
        if runs.flush:
            machine.flush()
        # What is not timed can be counted at any cost.
        counter = None if work is not None or i else counting.Counting(share=COUNTING_SHARE if timed else inf)
        if not timed:
            with counter or nullcontext():
                result, _ = machine.run(call)
            work = work or _counted(counter)
            continue
        with _Region(call.name, machine, on=regions) as execution:
            with counter or nullcontext():
                result, timing = machine.run(call)
            execution.stop()
            if counter is not None:
                work, counted_s = _affordable(_counted(counter), timing), counter.counting_s
                timing = _without(timing, counted_s, machine)
            assert work is not None  # noqa: S101 - the first run has counted it
            position = place(work, timing.device_s, ceilings, caches=runs.caches, faults=timing.faults)
            execution.operation = position.operation(work, growth=None, n=1)
        taken.append(timing)
    assert work is not None  # noqa: S101 - as above
    if runs.passes > 1 and (work.flops is None or work.bytes is None):
        with (counter := counting.Counting(share=inf)):
            machine.run(call)
        work = _counted(counter)
    growth = _growth(call, machine, runs) if runs.growth else None
    times = Repeats.of([timing.device_s for timing in taken])
    faults = sorted(timing.faults for timing in taken)[len(taken) // 2]
    position = place(work, times.median_s, ceilings, caches=runs.caches, faults=faults)
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


def judge(operation: Operation, times: Repeats, thresholds: Thresholds) -> Verdict:
    """The verdict on it; less sure of few timings or of timings that differ."""
    return classify(replace(operation.evidence(), half_width=_doubt(times, thresholds)), thresholds)


def _doubt(times: Repeats, thresholds: Thresholds) -> float:
    """How uncertain the shares are. One timing may be off by anything: half of what would be most doubtful."""
    known = times.half_width
    return thresholds.sure_margin / 2 if known is None else min(known, thresholds.sure_margin)


class Call(Generic[T]):
    """A function with its arguments, and what is known beforehand of the work that it does.

    `work` is None if it can only be counted while it runs. Making one runs nothing of the user's.
    """

    def __init__(
        self,
        function: Callable[..., T],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        name: str | None = None,
        flops: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the word of the field
    ) -> None:
        if not callable(function):
            raise TypeError(f"an operation is a function that can be called, not {function!r}")
        self.function = function
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.name = name or name_of(function)
        self.work = _given(flops, bytes) or known_work(function, self.args, self.kwargs)

    def __call__(self) -> T:
        """Run it."""
        return self.function(*self.args, **self.kwargs)


def name_of(function: Callable[..., Any]) -> str:
    """What an operation is called where its caller does not say."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def known_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    """What a call will do, as far as that can be told without running anything of the user's; None: count it."""
    try:
        return counting.known_work(function, args, kwargs)
    except Exception as error:  # noqa: BLE001 - whatever counting meets, the user's function runs
        return _failed(error)


def _given(flops: int | None, moved: int | None) -> Work | None:
    if flops is None and moved is None:
        return None
    for name, value in (("flops", flops), ("bytes", moved)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{name} is a whole number of at least 0, not {value!r}")
    reasons = {name: "not given" for name, value in (("flops", flops), ("bytes", moved)) if value is None}
    return Work(flops=flops, bytes=moved, method="given", reasons=reasons)


def _counted(counter: counting.Counting | None) -> Work:
    try:
        return unknown_work("nothing was counted") if counter is None else counter.work()
    except Exception as error:  # noqa: BLE001 - the user's call has run and is over: only its numbers are missing
        return _failed(error)


def _affordable(work: Work, timing: Timing) -> Work:
    """The work, if counting it took a small enough share of the run; else nothing of it is told."""
    share = work.counting_s / timing.host_s if timing.host_s > 0 else 1.0
    if share < COUNTING_SHARE or work.flops is work.bytes is None:
        return work
    reason = f"needs passes=2: counting took {percent(share, 0)} of the run"
    return unknown_work(reason, method="counted")


def _failed(error: Exception) -> Work:
    _log.warning("gpu-profile: an operation's FLOPs and bytes could not be counted: %r", error)
    return unknown_work(f"counting failed: {error!r}")


def _without(timing: Timing, counting_s: float, machine: Machine) -> Timing:
    """The timing without what counting took of the host; a device of its own went on meanwhile."""
    host_s = max(timing.host_s - counting_s, 0.0)
    device_s = max(timing.device_s - counting_s, 0.0) if _is_host(machine) else timing.device_s
    return timing._replace(device_s=device_s, host_s=host_s)


def _is_host(machine: Machine) -> bool:
    return machine.kind in ("cpu", "host")


def _growth(call: Call[Any], machine: Machine, runs: Runs) -> float | None:
    """How much longer twice the work takes. Runs the user's function several times, which was asked for."""
    choices = doubled(call.args, call.kwargs)
    for i, (args, kwargs) in enumerate(choices):
        twice = functools.partial(call.function, *args, **kwargs)
        try:
            machine.run(twice)
        except Exception:
            if i + 1 < len(choices):
                continue
            raise
        return _ratio(twice, call, machine, runs) - 1.0
    raise AssertionError("there is always a last choice")


def _ratio(twice: Callable[[], Any], once: Callable[[], Any], machine: Machine, runs: Runs) -> float:
    times: dict[bool, list[float]] = {False: [], True: []}
    machine.run(once)
    for _ in range(max(_DOUBLING_RUNS, runs.repeats)):
        # By turns, so that a clock that changes meets both.
        for big, run in ((False, once), (True, twice)):
            if runs.flush:
                machine.flush()
            times[big].append(machine.run(run)[1].device_s)
    small = Repeats.of(times[False]).median_s
    return Repeats.of(times[True]).median_s / small if small else 1.0


class _Region:
    """The region around one run; of one that is not wanted, nothing."""

    def __init__(self, name: str, machine: Machine, *, on: bool) -> None:
        self._region = region(name, device=machine.region_device) if on else None
        self.operation: Operation | None = None
        self._execution: Any = None

    def __enter__(self) -> _Region:
        if self._region is not None:
            self._execution = self._region.__enter__()
        return self

    def stop(self) -> None:
        """The run is over; what follows is not its time."""
        if self._execution is not None:
            self._execution.stop()

    def __exit__(self, *error: Any) -> None:
        if self._region is not None:
            if self.operation is not None:
                self._execution.operation = self.operation
            self._region.__exit__(*error)
