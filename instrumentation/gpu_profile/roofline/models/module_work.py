"""What each module of a model does: counted without running it where PyTorch knows it, else in a run for that alone."""

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

#: Why a module that runs code of the user's is not counted.
NEEDS: Final = "needs passes=2"


def work_without_running(submodule: Submodule, lap: Lap, kind: str) -> Work:
    """What the calls of a module did in the run that `lap` is of, on devices of this kind, told without running it.

    That can be told of PyTorch's own modules, by the shapes that they were called with. What a module does beside
    those inside of it cannot, but that a plain sequence of modules does nothing.
    """
    if lap.nested:
        return NOTHING if _is_sequence(submodule.module) else unknown_work(NEEDS)
    if lap.indescribable:
        return unknown_work(f"{lap.indescribable}: {NEEDS}")
    works = []
    for call, times in lap.kinds.items():
        try:
            with under(call, kind):
                found = known_work(submodule.module, *stand_in(call))
        except Exception as failure:  # noqa: BLE001 - no memory for a stand-in, for one
            return unknown_work(f"counting beside the run failed: {failure!r}: {NEEDS}")
        if found is None:
            return unknown_work(NEEDS)
        works.append((found, times))
    return added(works)


def _is_sequence(module: Any) -> bool:
    """Whether it calls one module after the other, and neither its class nor its hooks do anything else."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and not hooks


class ModuleCounter:
    """Counts one run of the model, submodule by submodule, while it is entered; see `Observer`."""

    def __init__(self) -> None:
        self._counting = Counting(share=math.inf)
        self._open: list[Submodule] = []
        self._calls: Counter[Submodule] = Counter()
        #: What each did by itself, and why that is not all that it did.
        self._records: dict[Submodule, OperationLog] = {}
        self._missed: dict[Submodule, str] = {}
        #: Those that called others.
        self._around: set[Submodule] = set()

    def __enter__(self) -> Self:
        self._counting.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._counting.__exit__(*exc)

    def works(self) -> dict[Submodule, Work]:
        """What each did by itself; one that was not called is not in it."""
        return {submodule: self._work(submodule) for submodule in self._records}

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:  # noqa: ARG002 - Observer's
        """Its forward is about to run: what is dispatched from now on is its work."""
        self._count_into(self._records.setdefault(submodule, OperationLog()))
        self._around.update(self._open[-1:])
        self._calls[submodule] += 1
        self._open.append(submodule)

    def finish(self, submodule: Submodule) -> None:
        """Its forward has run, or failed: what is dispatched from now on is the work of the one that called it."""
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
        except Exception as failure:  # noqa: BLE001 - a failure of ours never becomes the model's
            return not_counted(failure)
        if submodule not in self._around:
            return work
        # Between its operations others have run, whose data is in the caches then.
        return NOTHING if work.reasons.get("flops") == NOTHING_SEEN else replace(work, working_set=None, largest=None)
