"""Kernels, copies and memory of regions: what they add up to, and why the GPU was idle between them.

`Trace` reads PyTorch's (Kineto's) Chrome traces as a stream, `record` and `sample_regions` record in a running program,
`create_profiler` has the interface of the GMP profiler, and `report_of` joins what any of them yields with regions.
The public names load on first use, and PyTorch and CUPTI only when something records with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpu_profile.kernels.activity import Activity, StreamActivity, evidence, measure
    from gpu_profile.kernels.gmp.profiler import (
        GmpProfiler,
        create_profiler,
        init_global_profiler,
        print_results,
        profile_function,
        profile_memory,
        profile_range,
    )
    from gpu_profile.kernels.gmp.results import ProfileType, Reduction
    from gpu_profile.kernels.joining.idle import Idle
    from gpu_profile.kernels.memory.allocator import AllocatorMeter, snapshot
    from gpu_profile.kernels.memory.history import recording_history
    from gpu_profile.kernels.records import Call, Kind, Operation
    from gpu_profile.kernels.region import RegionKernels
    from gpu_profile.kernels.trace import Trace
    from gpu_profile.kernels.views import KernelReport, report_of
    from gpu_profile.kernels.windows.sampling import Sampling, sample_regions
    from gpu_profile.kernels.windows.window import Recording, record

__all__ = [
    "Activity",
    "AllocatorMeter",
    "Call",
    "GmpProfiler",
    "Idle",
    "KernelReport",
    "Kind",
    "Operation",
    "ProfileType",
    "Recording",
    "Reduction",
    "RegionKernels",
    "Sampling",
    "StreamActivity",
    "Trace",
    "create_profiler",
    "evidence",
    "init_global_profiler",
    "measure",
    "print_results",
    "profile_function",
    "profile_memory",
    "profile_range",
    "record",
    "recording_history",
    "report_of",
    "sample_regions",
    "snapshot",
]

_HOMES: Final = {
    "Activity": "activity",
    "AllocatorMeter": "memory.allocator",
    "Call": "records",
    "GmpProfiler": "gmp.profiler",
    "Idle": "joining.idle",
    "KernelReport": "views",
    "Kind": "records",
    "Operation": "records",
    "ProfileType": "gmp.results",
    "Recording": "windows.window",
    "Reduction": "gmp.results",
    "RegionKernels": "region",
    "Sampling": "windows.sampling",
    "StreamActivity": "activity",
    "Trace": "trace",
    "create_profiler": "gmp.profiler",
    "evidence": "activity",
    "init_global_profiler": "gmp.profiler",
    "measure": "activity",
    "print_results": "gmp.profiler",
    "profile_function": "gmp.profiler",
    "profile_memory": "gmp.profiler",
    "profile_range": "gmp.profiler",
    "record": "windows.window",
    "recording_history": "memory.history",
    "report_of": "views",
    "sample_regions": "windows.sampling",
    "snapshot": "memory.allocator",
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
