"""How long each module of a model takes, by itself and with those inside of it."""

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

#: Calls on arguments of different shapes that are kept apart, in all modules together.
_MOST_KINDS: Final = 2_048
#: Timings of the hooks' own cost: the least of so many batches of so many calls.
_BATCHES, _BATCH = 7, 32


class HookCost(NamedTuple):
    """What watching costs the host per call besides the hooks' own code, in seconds.

    `inside` of it falls between the moments that are noted of the module, `outside` before and after them.
    """

    inside: float = 0.0
    outside: float = 0.0


@dataclass(slots=True)
class Lap:
    """What one module did in one run of the model.

    `own_s` is what its calls took without those of submodules inside of them, `total_s` with them; a call within one of
    the same module is in the outer one's total only. `kinds` counts its calls by what they work on; `indescribable`
    says why some are not in it. `nested`: calls of other submodules directly inside of its own. `faults`: first touches
    of memory in its own time.
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
    """One call of a submodule. `since` and `until` are around the hooks' own code, `began` and `ended` within it."""

    submodule: Submodule
    lap: Lap
    outer: _Frame | None
    outermost: bool
    since: Any
    began: Any = None
    ended: Any = None
    until: Any = None
    # Of the submodules directly inside: as this one's time has them, and without their hooks.
    around_s: float = 0.0
    totals_s: float = 0.0
    faults: int = 0
    inner_faults: int = 0


class Stopwatch:
    """Times the submodules of one run after another; see `Observer`.

    `laps` has the latest run's, by submodule; those that were not called are not in it. `hooks_s` is what the hooks
    took of the host in it. Where the host is the device, that is in none of the times.
    """

    def __init__(self, timer: Timer, cost: HookCost | None = None) -> None:
        self._timer = timer
        self._cost = hook_cost() if cost is None else cost
        self._frames: list[_Frame] = []
        self._unsettled: list[_Frame] = []
        self._kinds = 0
        self.laps: dict[Submodule, Lap] = {}
        self.hooks_s = 0.0
        #: Why the times are not complete; a failure of ours never becomes the model's.
        self.failure: Exception | None = None

    def start(self) -> None:
        """Forget the run before."""
        self._frames, self._unsettled, self._kinds = [], [], 0
        self.laps, self.hooks_s = {}, 0.0

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Its forward is about to run."""
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
        except Exception as failure:  # noqa: BLE001 - the model runs on
            self.failure = failure

    def finish(self, submodule: Submodule) -> None:
        """Its forward has run, or failed."""
        try:
            entered = perf_counter()
            ended = self._timer.now()
            if not any(frame.submodule is submodule for frame in self._frames):
                return
            while (frame := self._frames.pop()).submodule is not submodule:
                frame.lap.depth -= 1  # left by something that is no Exception, which the model caught
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
        """The run is over: wait for what it left on the device, and work out the times."""
        self._timer.settle()
        # In the order in which they ended: those inside before those around them.
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
        except Indescribable as found:
            lap.indescribable = f"an argument is {found}"
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
    """Measured once, on a module that does nothing; takes some milliseconds."""
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
