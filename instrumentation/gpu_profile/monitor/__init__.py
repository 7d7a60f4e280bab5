"""Measures GPUs during a block of code or a call, with a summary for people and programs.

Read in this order:

- `context`: `GpuMonitor`, which samples around a block. `decorator`: `gpu_profile`, the same around each call.
- `run`: one measured run, shared by both. `options`: the user's checked options. `pauses`: waits for threads and event
  loops. `holds`: requests for samples, and the samplers of drivers other than the process's own.
- `gpu_summary`: a run's samples as one `GpuSummary`, which formats itself as text, a dictionary and JSON. `trace`:
  utilisation that the device's history no longer contains.
- `top/`: the live view of a terminal, `gpu-profile top`.

Imports the regions, the sampling, the drivers and the join. It shares the sampler of the regions' session. The command
line and the integrations for pytest and notebooks use it. Another number of a run is a field of `GpuSummary`, filled
in `gpu_summary.summarise_run`.
"""

from gpu_profile.monitor.context import GpuMonitor
from gpu_profile.monitor.decorator import gpu_profile
from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary, ProfiledResult

__all__ = ["GpuMonitor", "GpuSample", "GpuSummary", "ProfiledResult", "gpu_profile"]
