"""Roofline profiling: compares the FLOPs and bytes of an operation with ceilings measured on this machine.

The modules, in the order in which `GPUProfiler.profile_operation` uses them:

- `profiler`: the public class. It prints a `banner` when it is created. `call` binds a function to its arguments.
  `light` implements `lightweight=True`.
- `counting/`: counts the FLOPs and bytes of a call, as `work.Work`.
- `machines/`: devices that run and time calls. `repeats` computes the median of several timings.
- `ceilings/`: the peak rates of memory and of arithmetic, per `precision`.
- `measurement`: runs one call; `doubling` runs the test with twice the work.
- `position`: work and times relative to the ceilings, as four shares: `compute`, `memory`, `overhead`, `growth`.
  `regimes.operation.RegionOperation` carries the same four in spans and recordings, and `regimes` judges them.
- `profile`: the result as a dict for users, with the `headroom` of memory.

`models/` profiles the modules of a model. `sweep` runs the operations of `workloads` over sizes. `plots/` draws both.

Imports regions, report, regimes, and the NVML library of the drivers. PyTorch, CuPy and matplotlib load only when
needed. A new value of a profile is a field of `Position`, a key in `profile.judged`, and a row in `docs/roofline.md`.
"""

from gpu_profile.roofline.counting import register_formula
from gpu_profile.roofline.models import ModelProfile, profile_model
from gpu_profile.roofline.plots.panels import create_performance_plots
from gpu_profile.roofline.profiler import GPUProfiler

__all__ = ["GPUProfiler", "ModelProfile", "create_performance_plots", "profile_model", "register_formula"]
