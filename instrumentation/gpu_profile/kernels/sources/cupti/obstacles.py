"""Obstacles to the use of CUPTI in this process. Nothing here imports CUPTI, or starts CUDA."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

_INSTALL: Final = "pip install 'gpu-profile[cupti]'"
#: Major versions in the names of CUPTI libraries that may be loaded.
_MAJORS: Final = range(9, 20)
_TORCH: Final = "or record with PyTorch's profiler"


def hindrance() -> str:
    """Why CUPTI cannot be used now, and the remedy, in one line; "" if no obstacle is detected."""
    if importlib.util.find_spec("cupti") is None:
        return f"CUPTI needs the package cupti-python: {_INSTALL}, {_TORCH}"
    own = _own_major()
    other = next((major for major in _MAJORS if own and major != own and loaded(f"libcupti.so.{major}")), None)
    if other is not None:
        return (
            f"libcupti.so.{other} is loaded{_path(other)} and cupti-python {own} needs libcupti.so.{own}: two "
            f"CUPTIs do not share a process; install a framework for CUDA {own}, {_TORCH}"
        )
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"CUPTI needs NVIDIA's driver: {error}: install it, or start the container with its GPUs (--gpus all)"
    return other_user()


def other_user() -> str:
    """Another user of CUPTI in this process, and the remedy, in one line; "" if none is detected.

    Until CUDA 13.3 and driver 610 there can be only one: the last to register takes the records away from the others.
    """
    profiler = sys.modules.get("torch.autograd.profiler")
    if getattr(profiler, "_is_profiler_enabled", False):
        return "PyTorch's profiler is running and holds CUPTI: end it first, or take its records instead"
    environment = os.environ
    if "NSYS_PROFILING_SESSION_ID" in environment:
        return "Nsight Systems holds CUPTI (NSYS_PROFILING_SESSION_ID): run the program without nsys"
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        tool = environment.get(name, "")
        # libcupti itself receives NVTX's marks in this way.
        if tool and not (name.startswith("NVTX") and "libcupti" in tool):
            return f"a tool is injected and may hold CUPTI ({name}={tool}): run the program without it"
    return ""


def loaded(name: str) -> bool:
    """Whether this process has loaded a library with this name (soname)."""
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def _own_major() -> int | None:
    try:
        return int(metadata.version("cupti-python").partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _path(major: int) -> str:
    """The file that it was loaded from, if it can be determined: a toolkit's is called libcupti.so.2024.3.2."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ""
    files = {line.split()[-1] for line in maps.splitlines() if "/libcupti.so" in line}
    exact = sorted(file for file in files if file.endswith(f"libcupti.so.{major}")) or sorted(files)
    return f" ({exact[0]})" if exact else ""
