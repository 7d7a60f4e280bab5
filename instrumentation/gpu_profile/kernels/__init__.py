"""Kernels, copies and memory of regions: their sums, and why the GPU was idle between them.

Read in this order:

- `records`: the records of a profiler. All modules after it take these alone as input.
- `trace`: records of a file that PyTorch's profiler (Kineto) saved, read as a stream (`stream`, `trace_events`).
- `sources/`: records of the running program, from PyTorch's profiler or from CUPTI.
- `joining/`: records in columns, each operation with its call, its region, and the idle time before it.
- `activity` (sums of a whole trace), `region` and `region_sums` (of each region), made of `sums`. `memory/` and
  `counters/` add the parts that not every recording has.
- `ranks`: the slowest rank of a distributed run, and what differs.
- `report`: all of a recording. `views` and `render/` show it, as `gpu-profile kernels` does.
- `windows/`: when a running program is recorded: around a block, or at intervals. `claim` allows one open window at a
  time, and none in a forked child. `executions` reports the executions that run meanwhile.
- `gmp/`: the interface of the GMP profiler, on top of the others.

Imports the regions and their sessions, the report's tools and the floors below, but no package of its own floor.
PyTorch and CUPTI load only when something records with them. A new source of records is a class in `sources/`. A new
figure made of counters is a row in `counters.formulas`. A new view is a module in `render/`. A new quantity of an
execution is a row of `gpu_profile.regimes.kernel_work.KernelSums`.
"""

from gpu_profile.kernels.activity import Activity, StreamActivity, evidence, measure
from gpu_profile.kernels.counters.live import CounterReport, CounterSampling, sample_counters
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
    "CounterReport",
    "CounterSampling",
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
    "sample_counters",
    "sample_regions",
    "snapshot",
]
