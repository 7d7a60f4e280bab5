"""The entry points of counting for the rest of `roofline`. Loads PyTorch only if there is something to count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.roofline.machines.torch_machine import load_torch
from gpu_profile.roofline.work import Work, unknown_work

if TYPE_CHECKING:
    from gpu_profile.roofline.counting.counter import Counting

#: The reason of unknown work if PyTorch is not loaded.
UNCOUNTED: Final = "without PyTorch nothing is counted: give flops= and bytes="


def known_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    """The work of a call, determined without running it. None if it has to be counted in its run.

    Uses a registered formula, runs PyTorch's own functions on copies without data, and treats compiled callables as
    `compiled_work` does.
    """
    if "torch" not in sys.modules:
        return unknown_work(UNCOUNTED)
    from gpu_profile.roofline.counting.compiled import compiled_part, compiled_work
    from gpu_profile.roofline.counting.dry_run import count_without_running

    work = count_without_running(function, args, kwargs)
    if work is None and compiled_part(function) is not None:
        return compiled_work(function, args, kwargs)
    return work


def counting(*, share: float) -> Counting:
    """A context that counts the operations within it; see `Counting`. Raises UsageError if PyTorch is not installed."""
    load_torch("counting")
    from gpu_profile.roofline.counting.counter import Counting

    return Counting(share=share)
