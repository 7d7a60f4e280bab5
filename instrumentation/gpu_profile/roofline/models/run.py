"""Runs a model, observes it module by module, and builds its profile. Loads PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile.regions.region import region
from gpu_profile.roofline.machines.machine import Timing
from gpu_profile.roofline.measurement import RunCount
from gpu_profile.roofline.models.hooks import Submodule, submodules, watched
from gpu_profile.roofline.models.module_work import NEEDS, ModuleCounter, work_without_running
from gpu_profile.roofline.models.profile import ModelProfile, ModuleRow
from gpu_profile.roofline.models.stopwatch import Lap, Stopwatch
from gpu_profile.roofline.models.timers import timer_for
from gpu_profile.roofline.position import Position, place
from gpu_profile.roofline.profiler import GPUProfiler
from gpu_profile.roofline.repeats import Repeats
from gpu_profile.roofline.work import Work, added, unknown_work
from gpu_profile.units import percent, si

_log = logging.getLogger("gpu_profile")
#: How many modules without calls a note names.
_NAMED: Final = 5


class ModelRun:
    """The runs of one model on one machine.

    `on_devices`: the devices of the model and its arguments, by PyTorch's names. Raises UsageError if none of them is
    the machine's.
    """

    def __init__(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], profiler: GPUProfiler, on_devices: set[str]
    ) -> None:
        self._model, self._args, self._kwargs = model, args, kwargs
        self._profiler = profiler
        self._machine = machine = profiler.machine
        self._elsewhere = sorted(each for each in on_devices if each.partition(":")[0] != machine.kind)
        if on_devices and len(self._elsewhere) == len(on_devices):
            raise UsageError(
                f"{type(model).__name__} is on {', '.join(self._elsewhere)}, the profiler is for {machine.kind} "
                f"({machine.name}): make one for the model's device, or move the model"
            )
        self._submodules = submodules(model)
        self._name = self._submodules[0].kind
        self._stopwatch = Stopwatch(timer_for(machine))
        self._laps: dict[Submodule, list[Lap]] = {}
        self._works: dict[Submodule, Work] = {}
        #: The work of modules as it was counted in a run.
        self._counted: dict[Submodule, Work] = {}
        #: Timings of the whole model, by run.
        self._timings: list[Timing] = []

    def profile(self, runs: RunCount) -> ModelProfile:
        """Run the model as `runs` specifies, and return its profile."""
        for done in range(runs.warmup):
            if done and done == runs.warmup - 1:
                # Not in the first one, which may compile the model: that must not happen with hooks.
                self._count()
            else:
                self._machine.run(self._call)
        output: Any = None
        for _ in range(runs.repeats):
            output = None  # release it first: two outputs may exceed the device's memory
            output = self._timed()
        if runs.passes > 1 and any(map(_needs_a_run, self._works.values())):
            self._count()
            self._works = {submodule: self._completed(submodule, work) for submodule, work in self._works.items()}
        return self._result(output)

    def _call(self) -> Any:
        return self._model(*self._args, **self._kwargs)

    def _timed(self) -> Any:
        watch, root = self._stopwatch, self._submodules[0]
        watch.start()
        with ExitStack() as hooks:
            hooks.enter_context(watched(self._submodules, watch))
            device, regions = self._machine.region_device, self._profiler.regions
            with region(self._name, device=device) if regions else nullcontext() as execution:
                output, timing = self._machine.run(self._call)
                if execution is not None:
                    execution.stop()
                # Remove the hooks first: a module with hooks counts as the user's code, whose work is unknown.
                hooks.close()
                watch.stop()
                whole_s = watch.laps[root].total_s if root in watch.laps else timing.device_s
                self._timings.append(_timing(whole_s, timing.faults))
                self._keep(watch.laps)
                if execution is not None:
                    modules = [(lap.own_s, self._works[submodule]) for submodule, lap in watch.laps.items()]
                    whole = self._whole(self._timings[-1:], modules)
                    execution.operation = whole.position.operation
        if watch.failure is not None:
            _log.warning("gpu-profile: the modules of %s could not be timed: %r", self._name, watch.failure)
        return output

    def _keep(self, latest: Mapping[Submodule, Lap]) -> None:
        for submodule, lap in latest.items():
            laps = self._laps.setdefault(submodule, [])
            if not laps or laps[-1].kinds != lap.kinds:
                work = work_without_running(submodule, lap, self._machine.kind)
                self._works[submodule] = self._completed(submodule, work)
            laps.append(lap)

    def _count(self) -> None:
        """Run the model only to count the work of its modules."""
        with ModuleCounter() as counter, watched(self._submodules, counter):
            self._machine.run(self._call)
        self._counted = counter.works()

    def _completed(self, submodule: Submodule, work: Work) -> Work:
        """The counted work if `work` has to be counted in a run, else `work`."""
        return self._counted.get(submodule, work) if _needs_a_run(work) else work

    def _result(self, output: Any) -> ModelProfile:
        rows = [self._row(submodule, laps) for submodule, laps in self._laps.items()]
        spent = sum(row.own_s for row in rows)
        rows = [replace(row, share=row.own_s / spent if spent else 0.0) for row in rows]
        rows.sort(key=lambda row: -row.own_s)
        return ModelProfile(
            model=self._name,
            machine=self._machine.name,
            ceilings=self._profiler.ceilings,
            whole=self._whole(self._timings, [(row.own_s, row.work) for row in rows]),
            rows=tuple(rows),
            hooks_s=self._stopwatch.hooks_s,
            memory=self._machine.memory(),
            notes=tuple(self._notes()),
            output=output,
        )

    def _row(self, submodule: Submodule, laps: Sequence[Lap]) -> ModuleRow:
        position = self._position(self._works[submodule], [_timing(lap.own_s, lap.faults) for lap in laps])
        return ModuleRow(
            name=submodule.path or self._name,
            type="" if submodule is self._submodules[0] else submodule.kind,
            calls=laps[-1].calls,
            share=0.0,
            total_s=Repeats.of([lap.total_s for lap in laps]).median_s,
            position=position,
            verdict=position.verdict(self._profiler.thresholds),
        )

    def _whole(self, timings: Sequence[Timing], modules: Sequence[tuple[float, Work]]) -> ModuleRow:
        """The model as one operation. `modules`: `(seconds, work)` of each.

        The verdict ignores uncounted modules that take less than the share `balanced` of the time: they can move no
        score by more than that, and scores that close count as equal. FLOPs and bytes are reported only if all modules
        are counted.
        """
        work, spent = added((each, 1) for _, each in modules), sum(own_s for own_s, _ in modules)
        counted: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for name in ("flops", "bytes"):
            unknown = [(own_s, each) for own_s, each in modules if getattr(each, name) is None]
            missing = sum(own_s for own_s, _ in unknown)
            if modules and (not unknown or missing < self._profiler.thresholds.balanced * spent):
                counted[name] = sum(getattr(each, name) or 0 for _, each in modules)
            if modules and not unknown:
                continue
            share = percent(missing / spent if spent else 1.0, 0)
            largest = max(unknown, key=lambda each: each[0], default=(0.0, unknown_work(NEEDS)))[1]
            reasons[name] = f"modules that take {share} of the time are not counted: {largest.reasons.get(name, NEEDS)}"
        reported = replace(work, reasons=reasons)
        position = self._position(replace(reported, **{"at_least": None, **counted}), timings)
        verdict = position.verdict(self._profiler.thresholds)
        if reported.flops is None or reported.bytes is None:
            position = replace(
                position, work=reported, attainable=None,
                flops_per_s=None if reported.flops is None else position.flops_per_s,
                bytes_per_s=None if reported.bytes is None else position.bytes_per_s,
            )  # fmt: skip
        return ModuleRow(self._name, "", 1, 1.0, position.times.median_s, position, verdict)

    def _position(self, work: Work, timings: Sequence[Timing]) -> Position:
        # Another module has just written the arguments. Only the speed of this one can show whether a cache has them.
        return place(work, timings, self._profiler.ceilings, caches="unknown")

    def _notes(self) -> Iterator[str]:
        if doubt := self._profiler.ceilings.doubt:
            yield doubt
        if self._elsewhere:
            yield f"work on {', '.join(self._elsewhere)} is in the times only while {self._machine.kind} waits for it"
        if (failure := self._stopwatch.failure) is not None:
            yield f"the times are not complete: {failure!r}"
        idle = [
            submodule.path
            for submodule in self._submodules
            if submodule not in self._laps and not list(submodule.module.children())
        ]
        if idle:
            more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
            yield (
                f"modules without calls of their own; the enclosing modules contain their time, if any: "
                f"{', '.join(idle[:_NAMED])}{more}"
            )
        hooks = f"the hooks took {si(self._stopwatch.hooks_s, 's')} of the host"
        if self._machine.kind == "cpu":
            yield f"{hooks}; the times do not contain it"
        else:
            yield f"{hooks}; the times contain it as far as the device waited for the host"


def _timing(seconds: float, faults: int) -> Timing:
    return Timing(seconds, seconds, faults)


def _needs_a_run(work: Work) -> bool:
    return any(NEEDS in reason for reason in work.reasons.values())
