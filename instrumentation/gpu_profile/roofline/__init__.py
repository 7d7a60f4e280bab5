"""What bounds an operation: its FLOPs and bytes against ceilings that were measured on this machine.

The public names load on first use, and PyTorch, NumPy and matplotlib only when something needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpu_profile.roofline.counting import register_formula
    from gpu_profile.roofline.models import ModelProfile, profile_model
    from gpu_profile.roofline.plots.panels import create_performance_plots
    from gpu_profile.roofline.profiler import GPUProfiler

__all__ = ["GPUProfiler", "ModelProfile", "create_performance_plots", "profile_model", "register_formula"]

_HOMES: Final = {
    "GPUProfiler": "profiler",
    "ModelProfile": "models",
    "create_performance_plots": "plots.panels",
    "profile_model": "models",
    "register_formula": "counting",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
