"""Counting as the rest of the room asks for it: PyTorch is loaded only where there is something to count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.roofline.machines.torch_machine import load_torch
from gpu_profile.roofline.work import Work, unknown_work

if TYPE_CHECKING:
    from gpu_profile.roofline.counting.counter import Counting

#: Without a framework there is nothing that could be counted.
UNCOUNTED: Final = "without PyTorch nothing is counted: give flops= and bytes="


def known_work(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Work | None:
    """The work of a call as far as it can be told without running it; None if it is to be counted in its run.

    By a registered formula; PyTorch's own functions on copies without data; compiled ones by what is known of them.
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
    """Counts what runs within it; see `Counting`. UsageError if PyTorch is not installed."""
    load_torch("counting")
    from gpu_profile.roofline.counting.counter import Counting

    return Counting(share=share)
