"""`GPUProfiler`: what bounds an operation, against ceilings that were measured on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.roofline import banner
from gpu_profile.roofline.call import BoundCall
from gpu_profile.roofline.ceilings.cache import ceilings_for
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.light import Light
from gpu_profile.roofline.machines import devices
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.measurement import Measurement, RunCount, measure
from gpu_profile.roofline.profile import as_profile

T = TypeVar("T")

#: repeats, warmup, flush, passes, growth, flops, bytes, name.
_DEFAULTS: Final = (1, 0, False, 1, False, None, None, None)


class GPUProfiler:
    """Times operations on one device and tells what bounds each: launching, memory or arithmetic.

    `device`: a CUDA ordinal, what PyTorch calls a device (`"cuda:1"`, `"cpu"`), `"cupy:0"`, or `"host"` for functions
    without a framework; by default the first GPU that PyTorch has, else the CPU. Its ceilings are measured when the
    first profiler for it is made, which takes some seconds, and are kept between runs; `recalibrate` measures them
    again, `ceilings` gives them. What is going on is printed, unless `quiet`. `thresholds` are those of the rules.
    Each timed run is an execution of a region, named after the function, unless `regions` is False.

    Raises UsageError for a device that is not there.
    """

    def __init__(
        self,
        device: Any = None,
        *,
        quiet: bool = False,
        recalibrate: bool = False,
        ceilings: Ceilings | None = None,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        regions: bool = True,
    ) -> None:
        self.machine: Machine = devices.machine(device)
        self.thresholds = thresholds
        say = _silent if quiet else _print
        say(banner.heading(self.machine, chosen=device is not None))
        remark = "as given"
        if ceilings is None:
            ceilings, remark = ceilings_for(self.machine, recalibrate=recalibrate, say=lambda line: say([f"   {line}"]))
        self.ceilings = ceilings
        say(banner.summary(ceilings, thresholds, remark))
        self.regions = regions
        self._light = Light(self.machine, ceilings, thresholds, regions=regions)

    def profile_with_result(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        lightweight: bool = False,
        repeats: int = 1,
        warmup: int = 0,
        flush: bool = False,
        passes: int = 1,
        growth: bool = False,
        flops: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the word of the field
        name: str | None = None,
        **kwargs: Any,
    ) -> tuple[T, dict[str, Any]]:
        """Run `function(*args, **kwargs)` once; its result, and a dict that says what bounds it.

        It runs more often only if asked to: `repeats` timed runs (the median counts, the last result is returned) after
        `warmup` untimed ones, `passes=2` for one more in which FLOPs and bytes are counted, `growth=True` for the
        doubling test. `flush` overwrites the caches before each run. `flops` and `bytes` say what one call does, where
        that cannot be counted. `lightweight` gives `runtime_ms` and `regime` alone, for some microseconds, and takes
        none of the others. Arguments of the function that have one of these names: use functools.partial.

        What the function raises passes through. TypeError for what cannot be called, ValueError for a number of runs
        that is none and for options beside `lightweight`, UsageError if the arguments are on another device than this
        profiler's.
        """
        if lightweight:
            if (repeats, warmup, flush, passes, growth, flops, bytes, name) != _DEFAULTS:
                raise ValueError("lightweight=True takes none of the other options: leave them out, or it")
            return self._light.profile(function, args, kwargs)
        runs = RunCount(repeats=repeats, warmup=warmup, flush=flush, passes=passes, growth=growth)
        call = BoundCall(function, args, kwargs, name=name, flops=flops, bytes=bytes)
        result, found = self.measure(call, runs)
        return result, as_profile(found)

    def profile_operation(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> dict[str, Any]:
        """As `profile_with_result`, without the result."""
        _, profile = self.profile_with_result(function, *args, **options)
        return profile

    def overhead_test(
        self, function: Callable[..., Any], /, *args: Any, repeats: int = 7, flush: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """The doubling test: whether twice the work takes hardly longer. Runs the function some twenty times.

        The first array argument is doubled along its first dimension, with those of the same shape if the function
        takes that; UsageError if it takes neither. `ratio` is how long twice the work takes over once;
        `overhead_bound` whether that is below 1.5.
        """
        profile = self.profile_operation(function, *args, repeats=repeats, flush=flush, growth=True, **kwargs)
        if profile["growth"] is None:
            reasons = profile["reasons"]
            why = reasons.get("growth") or reasons["regime"]
            raise UsageError(f"{profile['operation']}: the doubling test cannot be done: {why}")
        ratio = 1.0 + profile["growth"]
        return {
            "ratio": ratio,
            "overhead_bound": ratio < 1.0 + self.thresholds.grows,
            "runtime_ms": profile["runtime_ms"],
            "regime": profile["regime"],
        }

    def measure(self, call: BoundCall[T], runs: RunCount) -> tuple[T, Measurement]:
        """The typed form of `profile_with_result`."""
        call.check_device(self.machine)
        return measure(call, self.machine, self.ceilings, runs=runs, thresholds=self.thresholds, regions=self.regions)


def _print(lines: Iterable[str]) -> None:
    """To standard output, in what characters it has. Where there is none, or it is closed, nobody wants to know."""
    text = "".join(f"{line}\n" for line in lines)
    with suppress(AttributeError, OSError, ValueError):
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()


def _silent(lines: Iterable[str]) -> None:
    del lines
