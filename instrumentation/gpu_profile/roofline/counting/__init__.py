"""Counting what an operation does: floating-point operations by closed forms, bytes by the tensors that are touched.

`count_without_running` is for PyTorch's own functions, `Counting` counts the user's while they run once,
`compiled_work` tells what is known of compiled ones. What is not known is absent with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_profile.errors import UsageError
from gpu_profile.roofline.counting.known import known_work
from gpu_profile.roofline.counting.registry import register_formula

if TYPE_CHECKING:
    from gpu_profile.roofline.counting.compiled import compiled_part, compiled_work
    from gpu_profile.roofline.counting.counter import Counting
    from gpu_profile.roofline.counting.dry_run import count_without_running, signature

__all__ = [
    "Counting",
    "compiled_part",
    "compiled_work",
    "count_without_running",
    "known_work",
    "register_formula",
    "signature",
]

_MODULES = {
    "Counting": "counter",
    "compiled_part": "compiled",
    "compiled_work": "compiled",
    "count_without_running": "dry_run",
    "signature": "dry_run",
}


def __getattr__(name: str) -> Any:
    """PyTorch is loaded with the first name that needs it; UsageError if it is not installed."""
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "torch":
            raise
        raise UsageError("counting needs PyTorch: pip install 'gpu-profile[torch]'") from missing
    globals()[name] = found
    return found
