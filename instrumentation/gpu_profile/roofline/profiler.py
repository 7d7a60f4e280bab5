"""`GPUProfiler`: profiles operations against ceilings that were measured on this machine."""

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

#: The defaults of repeats, warmup, flush, passes, growth, flops, bytes and name.
_DEFAULTS: Final = (1, 0, False, 1, False, None, None, None)


class GPUProfiler:
    """Times operations on one device and reports what bounds each: launching, memory or arithmetic.

    `device`: a CUDA ordinal, a PyTorch device (`"cuda:1"`, `"cpu"`), `"cupy:0"`, or `"host"` for functions without a
    framework. By default the first GPU of PyTorch, else the CPU. The first profiler for a device measures its ceilings,
    which takes some seconds, and caches them on disk. `recalibrate` measures them again; `ceilings` supplies them.
    Progress is printed, unless `quiet`. `thresholds` are the thresholds of the rules. Each timed run is an execution of
    a region, named after the function, unless `regions` is False.

    Raises UsageError if there is no such device.
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
        """Run `function(*args, **kwargs)` once and return its result and its profile, a dict.

        These options run it more often. `repeats`: timed runs; the median counts, the last result is returned.
        `warmup`: untimed runs before these. `passes=2`: one more run that counts FLOPs and bytes. `growth=True`: the
        doubling test. `flush` overwrites the caches before each run. `flops` and `bytes` are the work of one call, if
        it cannot be counted. `lightweight` returns only `runtime_ms` and `regime`, costs some microseconds, and
        excludes the other options. Bind arguments of the function that have one of these names with functools.partial.

        Exceptions of the function propagate. Raises TypeError if it is not callable, and ValueError for an invalid
        number of runs or options beside `lightweight`. UsageError: the arguments are on another device.
        """
        if lightweight:
            if (repeats, warmup, flush, passes, growth, flops, bytes, name) != _DEFAULTS:
                raise ValueError("lightweight=True takes none of the other options: leave them out, or it")
            return self._light.profile(function, args, kwargs)
        runs = RunCount(repeats=repeats, warmup=warmup, flush=flush, passes=passes, growth=growth)
        call = BoundCall(function, args, kwargs, name=name, flops=flops, bytes=bytes)
        result, measurement = self.measure(call, runs)
        return result, as_profile(measurement)

    def profile_operation(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> dict[str, Any]:
        """Like `profile_with_result`, without the result."""
        _, profile = self.profile_with_result(function, *args, **options)
        return profile

    def overhead_test(
        self, function: Callable[..., Any], /, *args: Any, repeats: int = 7, flush: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """The doubling test: whether twice the work takes hardly longer. Runs the function about twenty times.

        Doubles the first array argument along its first dimension, together with all others of its shape if the
        function accepts that. Raises UsageError if it accepts neither. `ratio` is the time of twice the work, divided
        by the time of once. `overhead_bound` is true if it is below `1 + thresholds.grows`, 1.5 by default.
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
    """Print to standard output, with `?` for characters that it cannot encode. A missing or closed one is ignored."""
    text = "".join(f"{line}\n" for line in lines)
    with suppress(AttributeError, OSError, ValueError):
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()


def _silent(lines: Iterable[str]) -> None:
    del lines
