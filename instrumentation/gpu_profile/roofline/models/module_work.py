"""The work of each module of a model, computed without running it if possible, else counted in a separate run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Self

from torch import nn

from gpu_profile.roofline.call import not_counted
from gpu_profile.roofline.counting.counter import Counting
from gpu_profile.roofline.counting.known import known_work
from gpu_profile.roofline.counting.recorder import OperationLog
from gpu_profile.roofline.counting.signature import stand_in, under
from gpu_profile.roofline.counting.totals import NOTHING_SEEN
from gpu_profile.roofline.models.hooks import Submodule
from gpu_profile.roofline.models.stopwatch import Lap
from gpu_profile.roofline.work import NOTHING, Work, added, unknown_work

#: The reason of unknown work for modules that run the user's code.
NEEDS: Final = "needs passes=2"


def work_without_running(submodule: Submodule, lap: Lap, kind: str) -> Work:
    """The own work of a module in the run of `lap`, on devices of this kind, computed without running the module.

    This is possible for PyTorch's own modules, from the shapes of their arguments. It is not for a module that called
    others, except for a plain sequence, which does no work itself.
    """
    if lap.nested:
        return NOTHING if _is_sequence(submodule.module) else unknown_work(NEEDS)
    if lap.indescribable:
        return unknown_work(f"{lap.indescribable}: {NEEDS}")
    works = []
    for call, times in lap.kinds.items():
        try:
            with under(call, kind):
                work = known_work(submodule.module, *stand_in(call))
        except Exception as failure:  # noqa: BLE001 - for example no memory for a stand-in
            return unknown_work(f"counting beside the run failed: {failure!r}: {NEEDS}")
        if work is None:
            return unknown_work(NEEDS)
        works.append((work, times))
    return added(works)


def _is_sequence(module: Any) -> bool:
    """Whether the module only calls others one after the other: no subclass changes that, and it has no hooks."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and not hooks


class ModuleCounter:
    """An `Observer` and context manager that counts the work of each submodule in one run of the model."""

    def __init__(self) -> None:
        self._counting = Counting(share=math.inf)
        self._open: list[Submodule] = []
        self._calls: Counter[Submodule] = Counter()
        #: The own operations of each submodule, and why they are incomplete.
        self._records: dict[Submodule, OperationLog] = {}
        self._missed: dict[Submodule, str] = {}
        #: Submodules that called others.
        self._around: set[Submodule] = set()

    def __enter__(self) -> Self:
        self._counting.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._counting.__exit__(*exc)

    def works(self) -> dict[Submodule, Work]:
        """The own work of each submodule that was called."""
        return {submodule: self._work(submodule) for submodule in self._records}

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:  # noqa: ARG002 - Observer's
        """The submodule's forward is about to run: operations from now on are its work."""
        self._count_into(self._records.setdefault(submodule, OperationLog()))
        self._around.update(self._open[-1:])
        self._calls[submodule] += 1
        self._open.append(submodule)

    def finish(self, submodule: Submodule) -> None:
        """The submodule's forward has returned or raised: operations from now on are its caller's work."""
        if submodule in self._open:
            outer = len(self._open) - 1 - self._open[::-1].index(submodule)
            self._count_into(self._records[self._open[outer - 1]] if outer else OperationLog())
            del self._open[outer:]

    def _count_into(self, record: OperationLog) -> None:
        missed = self._counting.into(record)
        if missed is not None and self._open:
            self._missed.setdefault(self._open[-1], missed)

    def _work(self, submodule: Submodule) -> Work:
        if submodule in self._missed:
            return unknown_work(self._missed[submodule], method="counted")
        try:
            totals, touched = self._records[submodule].totals()
            work = totals.work("counted", working_set=touched if self._calls[submodule] == 1 else None)
        except Exception as failure:  # noqa: BLE001 - a failure to count must not become the model's
            return not_counted(failure)
        if submodule not in self._around:
            return work
        # Other modules ran between its operations and replaced its data in the caches.
        return NOTHING if work.reasons.get("flops") == NOTHING_SEEN else replace(work, working_set=None, largest=None)
