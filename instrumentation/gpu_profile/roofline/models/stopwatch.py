"""Measures the time of each module of a model, with and without the modules inside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from gpu_profile.roofline.counting.signature import Indescribable, Signature, describe
from gpu_profile.roofline.models.hooks import Submodule, watched
from gpu_profile.roofline.models.timers import HostTimer, Timer

#: The largest number of signatures of arguments, in all modules together.
_MOST_KINDS: Final = 2_048
#: Batches, and calls of a batch, to measure the cost of the hooks. The shortest batch counts.
_BATCHES, _BATCH = 7, 32


class HookCost(NamedTuple):
    """The host's seconds per call for PyTorch's dispatch of hooks, without the code of the hooks.

    `inside`: the part between the two readings of the timer. `outside`: the part before and after them.
    """

    inside: float = 0.0
    outside: float = 0.0


@dataclass(slots=True)
class Lap:
    """The calls of one module in one run of the model.

    `own_s`: seconds of its calls without the submodules inside of them. `total_s`: with these; a recursive call counts
    only in the outer call's total. `kinds`: number of calls by signature of their arguments. `indescribable`: why some
    calls are missing there. `nested`: calls of other submodules directly inside of its own. `faults`: first touches of
    memory in its own time.
    """

    calls: int = 0
    nested: int = 0
    depth: int = 0
    faults: int = 0
    own_s: float = 0.0
    total_s: float = 0.0
    kinds: Counter[Signature] = field(default_factory=Counter)
    indescribable: str = ""


@dataclass(slots=True)
class _Frame:
    """One call of a submodule. `since` and `until`: host times around the hooks' code. `began` and `ended`: timer
    readings within it, directly around the module.
    """

    submodule: Submodule
    lap: Lap
    outer: _Frame | None
    outermost: bool
    since: Any
    began: Any = None
    ended: Any = None
    until: Any = None
    # Seconds of the submodules directly inside: with their hooks, as contained in this call's time, and without.
    around_s: float = 0.0
    totals_s: float = 0.0
    faults: int = 0
    inner_faults: int = 0


class Stopwatch:
    """An `Observer` that times the submodules of one run after another.

    `laps`: the latest run's, by submodule; only called ones are in it. `hooks_s`: seconds of the host that the hooks
    took in that run. If the host is the device, the times do not contain them.
    """

    def __init__(self, timer: Timer, cost: HookCost | None = None) -> None:
        self._timer = timer
        self._cost = hook_cost() if cost is None else cost
        self._frames: list[_Frame] = []
        self._unsettled: list[_Frame] = []
        self._kinds = 0
        self.laps: dict[Submodule, Lap] = {}
        self.hooks_s = 0.0
        #: Why the times are incomplete. A failure of the stopwatch must not interrupt the model.
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin a new run: clear the laps."""
        self._frames, self._unsettled, self._kinds = [], [], 0
        self.laps, self.hooks_s = {}, 0.0

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The submodule's forward is about to run."""
        entered = perf_counter()
        try:
            lap = self.laps.get(submodule)
            if lap is None:
                lap = self.laps[submodule] = Lap()
            outer = self._frames[-1] if self._frames else None
            frame = _Frame(submodule, lap, outer, lap.depth == 0, entered)
            self._describe(lap, args, kwargs)
            lap.depth += 1
            self._frames.append(frame)
            frame.faults = -self._timer.faults()
            if not self._timer.at_once:
                self.hooks_s += perf_counter() - entered
            frame.began = self._timer.now()
        except Exception as failure:  # noqa: BLE001 - the model must continue
            self.failure = failure

    def finish(self, submodule: Submodule) -> None:
        """The submodule's forward has returned or raised."""
        try:
            entered = perf_counter()
            ended = self._timer.now()
            if not any(frame.submodule is submodule for frame in self._frames):
                return
            while (frame := self._frames.pop()).submodule is not submodule:
                frame.lap.depth -= 1  # not finished: the model caught a BaseException that is no Exception
            frame.lap.depth -= 1
            frame.ended = ended
            frame.faults += self._timer.faults()
            if self._timer.at_once:
                frame.until = perf_counter()
                self._settle(frame)
            else:
                self._unsettled.append(frame)
                self.hooks_s += perf_counter() - entered
        except Exception as failure:  # noqa: BLE001 - as above
            self.failure = failure

    def stop(self) -> None:
        """The run is over: wait for the device and compute the times."""
        self._timer.settle()
        # In the order in which they ended, so that inner calls precede outer ones.
        for frame in self._unsettled:
            self._settle(frame)
        self._unsettled = []
        for lap in self.laps.values():
            lap.own_s = max(0.0, lap.own_s)

    def _describe(self, lap: Lap, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if lap.indescribable:
            return
        try:
            kind = describe(args, kwargs)
        except Indescribable as unsupported:
            lap.indescribable = f"an argument is {unsupported}"
            return
        if kind not in lap.kinds:
            if self._kinds >= _MOST_KINDS:
                lap.indescribable = f"more than {_MOST_KINDS} shapes of arguments"
                return
            self._kinds += 1
        lap.kinds[kind] += 1

    def _settle(self, frame: _Frame) -> None:
        inner = around = self._timer.seconds(frame.began, frame.ended)
        cost = HookCost()
        if self._timer.at_once:
            around = frame.until - frame.since
            if frame.submodule.how == "hooks":
                cost = self._cost
            self.hooks_s += around - inner + cost.inside + cost.outside
        own = inner - cost.inside - frame.around_s
        total = own + frame.totals_s
        lap, outer = frame.lap, frame.outer
        lap.calls += 1
        lap.own_s += own
        lap.faults += max(0, frame.faults - frame.inner_faults)
        if frame.outermost:
            lap.total_s += total
        if outer is not None:
            outer.lap.nested += 1
            outer.around_s += around + cost.outside
            outer.totals_s += total
            outer.inner_faults += frame.faults


@cache
def hook_cost() -> HookCost:
    """The cost of hooks on this host, measured once with a module that does nothing, in some milliseconds."""
    submodule = Submodule("", torch.nn.Identity(), "hooks")
    stopwatch = Stopwatch(HostTimer(), cost=HookCost())
    bare = min(_batch_s(submodule.module) for _ in range(_BATCHES))
    inside, both = [], []
    with watched([submodule], stopwatch):
        for _ in range(_BATCHES):
            stopwatch.start()
            both.append(_batch_s(submodule.module) - stopwatch.hooks_s - bare)
            inside.append(stopwatch.laps[submodule].own_s - bare)
    within = max(0.0, min(inside))
    return HookCost(within / _BATCH, max(0.0, min(both) - within) / _BATCH)


def _batch_s(module: Any) -> float:
    started = perf_counter()
    for _ in range(_BATCH):
        module(None)
    return perf_counter() - started
