"""Profiles the modules of a PyTorch model: the time of each, its work, and its regime.

Read in this order:

- `model`: `profile_model`, which checks its arguments.
- `run`: runs the model and builds its profile.
- `hooks`: selects the modules to observe and notifies an observer of their calls. There are two observers:
- `stopwatch`: measures the time of each module, with and without inner modules. `timers`: the clocks of the devices.
- `module_work`: determines the work of each module, without running it, or by counting in an additional run.
- `profile`: the modules as rows, as text, as JSON values and as points of a roofline.

`hooks`, `stopwatch`, `module_work` and `run` load PyTorch. Imports all of `roofline` but `sweep` and `light`. A new
column of the table is a property of `ModuleRow` and a cell in `profile`.
"""

from gpu_profile.roofline.models.model import profile_model
from gpu_profile.roofline.models.profile import ModelProfile

__all__ = ["ModelProfile", "profile_model"]
