"""The lightweight profiler: one timing and a regime per call, at the cost of a look-up."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, TypeVar, cast
from weakref import ref

from gpu_profile.regimes import Regime, Thresholds
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.regions.region import region
from gpu_profile.roofline.call import BoundCall, name_of, undone
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.machines.machine import Machine, Timing
from gpu_profile.roofline.position import place
from gpu_profile.roofline.work import Work, unknown_work

T = TypeVar("T")

#: Operations, by function and shapes of arguments, of which the work is remembered.
_MOST_KNOWN: Final = 4_096
#: What an operation whose arguments cannot be told apart is remembered under: its function alone.
_ANY: Final = ()


class _Answer(NamedTuple):
    regime: str
    operation: RegionOperation


@dataclass(slots=True)
class _Known:
    """One operation on arguments of one shape: its work, and the verdict by how long it takes."""

    name: str
    work: Work
    answers: dict[int, _Answer] = field(default_factory=dict)


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
        #: `dry_run.signature`, once PyTorch is loaded.
        self._signature: Callable[..., Hashable | None] = _unsigned

    def profile(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[T, dict[str, Any]]:
        """Run once; the result, and `runtime_ms` and `regime`."""
        known = self._look_up(function, args, kwargs)
        call = functools.partial(function, *args, **kwargs)
        with region(known.name, span=False, device=self._device) if self._regions else nullcontext() as execution:
            result, timing = self._machine.run(call)
            answer = self._answer(known, timing, result)
            if execution is not None:
                execution.operation = answer.operation
        return result, {"runtime_ms": timing.device_s * 1e3, "regime": answer.regime}

    def _look_up(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Known:
        # Without PyTorch, or with arguments that cannot be keyed, a function is known by itself alone.
        if self._signature is _unsigned and "torch" in sys.modules:
            from gpu_profile.roofline.counting.dry_run import signature

            self._signature = signature
        try:
            identity, given = _identity(function, args)
            shapes = self._signature(given, kwargs)
            key = (identity, _ANY if shapes is None else shapes)
            known = self._known.get(key)
        except TypeError:  # a callable object that cannot be hashed
            return _Known(name_of(function), unknown_work("the function cannot be looked up"))
        if known is None:
            call = BoundCall(function, args, kwargs)
            call.check_device(self._machine)
            # Without shapes the work of this call says nothing of the next.
            work = call.work if shapes is not None else None
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = _Known(call.name, work or unknown_work("needs passes=2"))
        return known

    def _answer(self, known: _Known, timing: Timing, result: object) -> _Answer:
        if (later := undone(result)) is not None:
            return _Answer(str(Regime.UNKNOWN), RegionOperation(reason=later))
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
        position = place(work, [timing], self._ceilings)
        verdict = position.verdict(self._thresholds)
        return _Answer(str(verdict.regime if verdict.confidence else Regime.UNKNOWN), position.operation)


def _unsigned(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Without PyTorch there are no shapes to tell apart."""


def _identity(function: Any, args: tuple[Any, ...]) -> tuple[Hashable, tuple[Any, ...]]:
    """What stands for a function without keeping alive what it holds: its tensors may be all that a device has.

    Methods are made anew for each call: their object and function stand for them, or, where they are not Python's, the
    object's type and their name; the object is then among the arguments, which are returned.
    """
    kind = type(function)
    if kind is BuiltinMethodType:
        owner = function.__self__
        if owner is not None and not isinstance(owner, ModuleType):
            return (type(owner), function.__name__), (owner, *args)
    elif kind is MethodType:
        return (ref(function.__self__), ref(function.__func__)), args
    try:
        return ref(function), args
    except TypeError:  # what belongs to a type lives as long as the program
        return cast(Hashable, function), args
