"""Which modules of a PyTorch model take its time, and what bounds each.

Read in this order:

- `model`: `profile_model`, which checks what it is given.
- `run`: a model's runs, from the first to its profile.
- `hooks`: which modules are watched, and how. Two observers are told of their calls:
- `stopwatch`: how long each takes, by itself and with those inside of it; `timers` are the clocks of the devices.
- `module_work`: how much each does: told beside the run, or counted in a run for that alone.
- `profile`: the modules as rows, as text, as JSON values and as points of a roofline.

`hooks`, `stopwatch`, `module_work` and `run` load PyTorch. Imports all of `roofline` but `sweep` and `light`. A new
column of the table is a property of `ModuleRow` and a cell in `profile`.
"""

from gpu_profile.roofline.models.model import profile_model
from gpu_profile.roofline.models.profile import ModelProfile

__all__ = ["ModelProfile", "profile_model"]
