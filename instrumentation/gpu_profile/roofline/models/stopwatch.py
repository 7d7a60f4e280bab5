"""How long each module of a model takes, by itself and with those inside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from functools import cache
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from gpu_profile.roofline.models.moments import HostMoments, Moments
from gpu_profile.roofline.models.parts import Part, watched
from gpu_profile.roofline.models.shapes import Indescribable, Setting, describe, setting

#: Calls on arguments of different shapes that are kept apart, in all modules together.
_MOST_KINDS: Final = 2_048
#: Timings of the hooks' own cost: the least of so many batches of so many calls.
_BATCHES, _BATCH = 7, 32


class Kind(NamedTuple):
    """Calls of a module that do the same work: the modes they ran in, and their arguments' shapes."""

    setting: Setting
    arguments: Hashable


class HookCost(NamedTuple):
    """What watching costs the host per call besides the hooks' own code, in seconds.

    `inside` of it falls between the moments that are noted of the module, `outside` before and after them.
    """

    inside: float = 0.0
    outside: float = 0.0


class Lap:
    """What one module did in one run of the model.

    `own_s` is what its calls took without those of parts inside of them, `total_s` with them; a call within one of the
    same module is in the outer one's total only. `kinds` counts its calls by what they work on; `blurred` says why some
    are not in it. `nested`: calls of other parts directly inside of its own.
    """

    __slots__ = ("blurred", "calls", "depth", "kinds", "nested", "own_s", "total_s")

    def __init__(self) -> None:
        self.calls = 0
        self.nested = 0
        self.depth = 0
        self.own_s = 0.0
        self.total_s = 0.0
        self.kinds: Counter[Kind] = Counter()
        self.blurred = ""


class _Frame:
    """One call of a part. `since` and `until` are around the hooks' own code, `began` and `ended` within it."""

    __slots__ = ("around_s", "began", "ended", "lap", "outer", "outermost", "part", "since", "totals_s", "until")

    def __init__(self, part: Part, lap: Lap, outer: _Frame | None, since: Any) -> None:
        self.part = part
        self.lap = lap
        self.outer = outer
        self.outermost = lap.depth == 0
        self.since = self.began = self.ended = self.until = since
        # Of the parts directly inside: as this one's time has them, and without their hooks.
        self.around_s = self.totals_s = 0.0


class Stopwatch:
    """Times the parts of one run after another; see `Observer`.

    `laps` has the latest run's, by part; parts that were not called are not in it. `hooks_s` is what the hooks took of
    the host in it. Where the host is the device, that is in none of the times.
    """

    def __init__(self, moments: Moments, kind: str, cost: HookCost | None = None) -> None:
        self._moments = moments
        self._kind = kind
        self._cost = hook_cost() if cost is None else cost
        self._frames: list[_Frame] = []
        self._unsettled: list[_Frame] = []
        self._kinds = 0
        self.laps: dict[Part, Lap] = {}
        self.hooks_s = 0.0
        #: Why the times are not complete; a failure of ours never becomes the model's.
        self.failure: Exception | None = None

    def start(self) -> None:
        """Forget the run before."""
        self._frames, self._unsettled, self._kinds = [], [], 0
        self.laps, self.hooks_s = {}, 0.0

    def begin(self, part: Part, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Its forward is about to run."""
        entered = perf_counter()
        try:
            lap = self.laps.get(part)
            if lap is None:
                lap = self.laps[part] = Lap()
            outer = self._frames[-1] if self._frames else None
            frame = _Frame(part, lap, outer, entered)
            self._describe(lap, args, kwargs)
            lap.depth += 1
            self._frames.append(frame)
            if not self._moments.at_once:
                self.hooks_s += perf_counter() - entered
            frame.began = self._moments.now()
        except Exception as failure:  # noqa: BLE001 - the model runs on
            self.failure = failure

    def finish(self, part: Part) -> None:
        """Its forward has run, or failed."""
        try:
            entered = perf_counter()
            ended = self._moments.now()
            if not any(frame.part is part for frame in self._frames):
                return
            while (frame := self._frames.pop()).part is not part:
                frame.lap.depth -= 1  # left by something that is no Exception, which the model caught
            frame.lap.depth -= 1
            frame.ended = ended
            if self._moments.at_once:
                frame.until = perf_counter()
                self._settle(frame)
            else:
                self._unsettled.append(frame)
                self.hooks_s += perf_counter() - entered
        except Exception as failure:  # noqa: BLE001 - as above
            self.failure = failure

    def stop(self) -> None:
        """The run is over: wait for what it left on the device, and work out the times."""
        self._moments.settle()
        # In the order in which they ended: those inside before those around them.
        for frame in self._unsettled:
            self._settle(frame)
        self._unsettled = []
        for lap in self.laps.values():
            lap.own_s = max(0.0, lap.own_s)

    def _describe(self, lap: Lap, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if lap.blurred:
            return
        try:
            kind = Kind(setting(self._kind), describe(args, kwargs))
        except Indescribable as found:
            lap.blurred = f"an argument is {found}"
            return
        if kind not in lap.kinds:
            if self._kinds >= _MOST_KINDS:
                lap.blurred = f"more than {_MOST_KINDS} shapes of arguments"
                return
            self._kinds += 1
        lap.kinds[kind] += 1

    def _settle(self, frame: _Frame) -> None:
        inner = around = self._moments.seconds(frame.began, frame.ended)
        cost = HookCost()
        if self._moments.at_once:
            around = frame.until - frame.since
            if frame.part.how == "hooks":
                cost = self._cost
            self.hooks_s += around - inner + cost.inside + cost.outside
        own = inner - cost.inside - frame.around_s
        total = own + frame.totals_s
        lap, outer = frame.lap, frame.outer
        lap.calls += 1
        lap.own_s += own
        if frame.outermost:
            lap.total_s += total
        if outer is not None:
            outer.lap.nested += 1
            outer.around_s += around + cost.outside
            outer.totals_s += total


@cache
def hook_cost() -> HookCost:
    """Measured once, on a module that does nothing; takes some milliseconds."""
    part = Part("", torch.nn.Identity(), "hooks", inner=False)
    stopwatch = Stopwatch(HostMoments(), "cpu", cost=HookCost())
    bare = min(_batch_s(part.module) for _ in range(_BATCHES))
    inside, both = [], []
    with watched([part], stopwatch):
        for _ in range(_BATCHES):
            stopwatch.start()
            both.append(_batch_s(part.module) - stopwatch.hooks_s - bare)
            inside.append(stopwatch.laps[part].own_s - bare)
    within = max(0.0, min(inside))
    return HookCost(within / _BATCH, max(0.0, min(both) - within) / _BATCH)


def _batch_s(module: Any) -> float:
    started = perf_counter()
    for _ in range(_BATCH):
        module(None)
    return perf_counter() - started
