"""What each module of a model does: counted without running it where PyTorch knows it, else in a run for that alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from gpu_profile.roofline import counting
from gpu_profile.roofline.counting.totals import NOTHING_SEEN
from gpu_profile.roofline.models.hooks import Submodule
from gpu_profile.roofline.models.shapes import stand_in, under
from gpu_profile.roofline.models.stopwatch import Lap
from gpu_profile.roofline.models.work_totals import NOTHING, added, less
from gpu_profile.roofline.work import Work, unknown_work

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
            with under(call.setting, kind):
                found = counting.known_work(submodule.module, *stand_in(call.arguments))
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
    """Counts one run of the model, submodule by submodule; see `Observer`. `works` has what each did by itself."""

    def __init__(self) -> None:
        self._open: list[tuple[Submodule, counting.Counting, list[Work]]] = []
        self._found: dict[Submodule, list[Work]] = {}
        #: A failure of ours, which never becomes the model's: what is open is not counted then.
        self._failure: Exception | None = None

    @property
    def works(self) -> dict[Submodule, Work]:
        """By submodule; one that was not called is not in it."""
        if self._failure is not None:
            return dict.fromkeys(self._found, unknown_work(f"counting failed: {self._failure!r}"))
        return {submodule: added((work, 1) for work in found) for submodule, found in self._found.items()}

    def begin(self, submodule: Submodule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:  # noqa: ARG002 - Observer's
        """Its forward is about to run: count what it does."""
        self._found.setdefault(submodule, [])
        counter = counting.Counting(share=math.inf)
        try:
            counter.__enter__()
        except Exception as failure:  # noqa: BLE001 - the model runs on
            self._failure = failure
        else:
            self._open.append((submodule, counter, []))

    def finish(self, submodule: Submodule) -> None:
        """Its forward has run, or failed: its own share is what was counted, less what the submodules inside did."""
        if any(each is submodule for each, _, _ in self._open):
            while self._close() is not submodule:
                pass

    def close(self) -> None:
        """Count no more, also of what was left without an end."""
        while self._open:
            self._close()

    def _close(self) -> Submodule:
        submodule, counter, inside = self._open.pop()
        try:
            counter.__exit__(None, None, None)
            work = counter.work()
            seen = NOTHING if work.reasons.get("flops") == NOTHING_SEEN else work
            if self._open:
                self._open[-1][2].append(seen)
            self._found[submodule].append(less(seen, added((each, 1) for each in inside)) if inside else work)
        except Exception as failure:  # noqa: BLE001 - as above
            self._failure = failure
        return submodule
