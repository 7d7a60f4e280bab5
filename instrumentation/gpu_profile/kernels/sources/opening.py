"""The choice of a source of records: `auto`, or one by its name."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.sources.source import ProfilerSource, has_driver

#: The names of sources.
SPECS: Final = ("auto", "torch", "cupti")


def check_spec(spec: str) -> None:
    """UsageError for an unknown name."""
    if spec not in SPECS:
        raise UsageError(f"no source of kernel records is named {spec!r}: choose among {', '.join(SPECS)}")


def open_source(spec: str = "auto", *, all_threads: bool = False) -> ProfilerSource:
    """The source of this name; `auto` is PyTorch's profiler if the program has imported PyTorch, else CUPTI.

    `all_threads` is as for `TorchSource`; CUPTI has no such difference.
    Raises UsageError for an unknown name, GpuBackendError with the missing package or driver and the remedy.
    """
    check_spec(spec)
    if spec == "torch" or (spec == "auto" and "torch" in sys.modules):
        from gpu_profile.kernels.sources.torch_source import TorchSource

        return TorchSource(all_threads=all_threads)
    if spec == "auto":
        _require_cupti()
    from gpu_profile.kernels.sources.cupti import CuptiSource

    return CuptiSource()


def _require_cupti() -> None:
    if importlib.util.find_spec("cupti") is None:
        missing = "cupti-python is not installed"
    elif not has_driver():
        missing = "there is no CUDA driver (libcuda.so.1)"
    else:
        return
    raise GpuBackendError(
        f"nothing can record kernels: the program has not imported PyTorch, and {missing}; "
        "import torch first, or pip install 'gpu-profile[cupti]' where there is an NVIDIA driver"
    )
