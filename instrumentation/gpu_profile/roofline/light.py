"""The lightweight profiler: one timing and a regime per call, for the cost of a dictionary look-up."""

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
from gpu_profile.roofline.call import BoundCall, name_of, why_deferred
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.machines.machine import Machine, Timing
from gpu_profile.roofline.position import place
from gpu_profile.roofline.work import Work, unknown_work

T = TypeVar("T")

#: The cache is emptied at this many operations, each a function with the shapes of its arguments.
_MOST_CACHED: Final = 4_096
#: Replaces the shapes in the cache's key if the arguments have no signature: the key is then the function alone.
_ANY: Final = ()


class _Answer(NamedTuple):
    regime: str
    operation: RegionOperation


@dataclass(slots=True)
class _CachedOperation:
    """One operation on arguments of given shapes: its work, and its answers by bucket of durations."""

    name: str
    work: Work
    answers: dict[int, _Answer] = field(default_factory=dict)


class Light:
    """Judges by the same rules as a full measurement, once for each operation and bucket of durations.

    Durations in one bucket differ by at most an eighth. Work that only a run could count stays unknown: the regime is
    then OVERHEAD_BOUND if launching takes most of the time, else UNKNOWN.
    """

    def __init__(self, machine: Machine, ceilings: Ceilings, thresholds: Thresholds, *, regions: bool) -> None:
        self._machine = machine
        self._ceilings = ceilings
        self._thresholds = thresholds
        self._regions = regions
        self._device = machine.region_device
        self._cache: dict[Hashable, _CachedOperation] = {}
        #: `dry_run.signature`, once PyTorch is loaded.
        self._signature: Callable[..., Hashable | None] = _unsigned

    def profile(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[T, dict[str, Any]]:
        """Run once; returns the result, and a dict with `runtime_ms` and `regime`."""
        cached = self._look_up(function, args, kwargs)
        call = functools.partial(function, *args, **kwargs)
        with region(cached.name, span=False, device=self._device) if self._regions else nullcontext() as execution:
            result, timing = self._machine.run(call)
            answer = self._answer(cached, timing, result)
            if execution is not None:
                execution.operation = answer.operation
        return result, {"runtime_ms": timing.device_s * 1e3, "regime": answer.regime}

    def _look_up(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _CachedOperation:
        # Without PyTorch, or if the arguments have no signature, the key is the function alone.
        if self._signature is _unsigned and "torch" in sys.modules:
            from gpu_profile.roofline.counting.dry_run import signature

            self._signature = signature
        try:
            identity, given = _identity(function, args)
            shapes = self._signature(given, kwargs)
            key = (identity, _ANY if shapes is None else shapes)
            cached = self._cache.get(key)
        except TypeError:  # a callable object that cannot be hashed
            return _CachedOperation(name_of(function), unknown_work("the function cannot be looked up"))
        if cached is None:
            call = BoundCall(function, args, kwargs)
            call.check_device(self._machine)
            # Without shapes, the work of the next call may differ.
            work = call.work if shapes is not None else None
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            cached = self._cache[key] = _CachedOperation(call.name, work or unknown_work("needs passes=2"))
        return cached

    def _answer(self, cached: _CachedOperation, timing: Timing, result: object) -> _Answer:
        if (later := why_deferred(result)) is not None:
            return _Answer(str(Regime.UNKNOWN), RegionOperation(reason=later))
        device_s, _, faults = timing
        # The bucket: four leading binary digits of the nanoseconds, and the order of magnitude of the first touches.
        nanoseconds = int(device_s * 1e9)
        length = nanoseconds.bit_length()
        bucket = (length << 4) | (nanoseconds >> (length - 4) if length > 4 else nanoseconds)
        if faults:
            bucket |= faults.bit_length() << 12
        answer = cached.answers.get(bucket)
        if answer is None:
            answer = cached.answers[bucket] = self._judge(cached.work, timing)
        return answer

    def _judge(self, work: Work, timing: Timing) -> _Answer:
        position = place(work, [timing], self._ceilings)
        verdict = position.verdict(self._thresholds)
        return _Answer(str(verdict.regime if verdict.confidence else Regime.UNKNOWN), position.operation)


def _unsigned(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """No signature: without PyTorch there are no shapes."""


def _identity(function: Any, args: tuple[Any, ...]) -> tuple[Hashable, tuple[Any, ...]]:
    """A key of the function, and the arguments. Weak references: tensors of its closure may fill the device's memory.

    Python creates a bound method anew for each access, so its key is the object and the function. For a method in C it
    is the type of the object and the name; the object is then prepended to the arguments.
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
    except TypeError:  # no weak reference to it: slots of types, which live as long as the program
        return cast(Hashable, function), args
