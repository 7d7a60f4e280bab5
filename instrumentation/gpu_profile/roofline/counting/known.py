"""What is known of a call before it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpu_profile.roofline.work import Work, unknown_work

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
