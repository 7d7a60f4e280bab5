"""The lightweight profiler: one timing and a regime per call, at the cost of a look-up."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from gpu_profile.operation import Operation
from gpu_profile.regimes import Regime, Thresholds
from gpu_profile.regions import region
from gpu_profile.roofline import counting
from gpu_profile.roofline.ceilings import Ceilings
from gpu_profile.roofline.machines.machine import Machine, Timing
from gpu_profile.roofline.measurement import judge, known_work, name_of
from gpu_profile.roofline.position import place
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work, unknown_work

T = TypeVar("T")

#: Operations, by function and shapes of arguments, of which the work is remembered.
_MOST_KNOWN: Final = 4_096
#: What an operation whose arguments cannot be told apart is remembered under: its function alone.
_ANY: Final = ()


class _Answer(NamedTuple):
    regime: str
    operation: Operation


class _Known:
    """One operation on arguments of one shape: its work, and the verdict by how long it takes."""

    __slots__ = ("answers", "name", "work")

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        self.work = work
        self.answers: dict[int, _Answer] = {}


class Light:
    """Judges by the same rules as a whole measurement. They are asked once for each operation and duration.

    Durations within an eighth of each other count as one. What only a run could count is not counted: of such an
    operation the regime is OVERHEAD_BOUND where launching takes most of its time, else UNKNOWN.
    """

    def __init__(self, machine: Machine, ceilings: Ceilings, thresholds: Thresholds, *, regions: bool) -> None:
        self._machine = machine
        self._ceilings = ceilings
        self._thresholds = thresholds
        self._regions = regions
        self._device = machine.region_device
        self._known: dict[Hashable, _Known] = {}

    def profile(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[T, dict[str, Any]]:
        """Run once; the result, and `runtime_ms` and `regime`."""
        known = self._look_up(function, args, kwargs)
        call = functools.partial(function, *args, **kwargs)
        if self._regions:
            with region(known.name, span=False, device=self._device) as execution:
                result, timing = self._machine.run(call)
                answer = self._answer(known, timing)
                execution.operation = answer.operation
        else:
            result, timing = self._machine.run(call)
            answer = self._answer(known, timing)
        return result, {"runtime_ms": timing.device_s * 1e3, "regime": answer.regime}

    def _look_up(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Known:
        # Without PyTorch, or with arguments that cannot be keyed, a function is known by itself alone.
        shapes = counting.signature(args, kwargs) if "torch" in sys.modules else None
        key = (function, _ANY if shapes is None else shapes)
        try:
            known = self._known.get(key)
        except TypeError:  # a callable object that cannot be hashed
            return _Known(name_of(function), unknown_work("the function cannot be looked up"))
        if known is None:
            work = known_work(function, args, kwargs) if shapes is not None else None
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = _Known(name_of(function), work or unknown_work("needs passes=2"))
        return known

    def _answer(self, known: _Known, timing: Timing) -> _Answer:
        device_s, _, faults = timing
        # Four leading binary digits of the nanoseconds, and the order of magnitude of the first touches.
        nanoseconds = int(device_s * 1e9)
        length = nanoseconds.bit_length()
        bucket = (length << 4) | (nanoseconds >> (length - 4) if length > 4 else nanoseconds)
        if faults:
            bucket |= faults.bit_length() << 12
        answer = known.answers.get(bucket)
        if answer is None:
            answer = known.answers[bucket] = self._judge(known.work, timing)
        return answer

    def _judge(self, work: Work, timing: Timing) -> _Answer:
        position = place(work, timing.device_s, self._ceilings, faults=timing.faults)
        operation = position.operation(work, growth=None, n=1)
        verdict = judge(operation, Repeats.of([timing.device_s]), self._thresholds)
        return _Answer(str(verdict.regime if verdict.confidence else Regime.UNKNOWN), operation)
