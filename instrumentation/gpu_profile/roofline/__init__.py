"""What bounds an operation: its FLOPs and bytes against ceilings that were measured on this machine.

Read in this order, which is the way of one call through `GPUProfiler.profile_operation`:

- `profiler`: the public class, which prints a `banner` when it is made. `call` is a function with its arguments,
  `light` the way of `lightweight=True`.
- `counting/`: how much the call has to do, as `work.Work`.
- `machines/`: what it runs on, and how that is timed. `repeats` makes a median of several timings.
- `ceilings/`: what the machine can do at most, by `precision`.
- `measurement`: the runs of one call; `doubling` is the test with twice the work.
- `position`: work and times against the ceilings, as four shares: `compute`, `memory`, `overhead`, `growth`.
  `regimes.operation.Operation` has the same four for spans and recordings, and `regimes` judges them.
- `profile`: all of it as the dict that users get, with the `headroom` of memory.

`models/` does the same module by module, `sweep` over sizes of the operations in `workloads`; `plots/` draws both.

Imports the regions, the report, the regimes, and NVML's library from the drivers. PyTorch, CuPy and matplotlib load
only when something needs them. A new value of a profile is a field of `Position`, a key in `profile.judged`, and a
row in `docs/roofline.md`.
"""

from gpu_profile.roofline.counting import register_formula
from gpu_profile.roofline.models import ModelProfile, profile_model
from gpu_profile.roofline.plots.panels import create_performance_plots
from gpu_profile.roofline.profiler import GPUProfiler

__all__ = ["GPUProfiler", "ModelProfile", "create_performance_plots", "profile_model", "register_formula"]
