"""What the GPU did during a block of code or a call, for a person to read or a program to use.

Read in this order:

- `context`: `GpuMonitor`, which samples around a block. `decorator`: `gpu_profile`, the same around each call.
- `run`: what both have in common, from before a run to after it. `options`: what the user asked for, checked.
  `pauses`: waiting, for threads and for event loops. `holds`: who needs samples, and the samplers of other drivers.
- `gpu_summary`: a run's samples as one `GpuSummary`, which formats itself as a line and as a dictionary. `trace`:
  utilisation that the device's history no longer has.

Imports the regions, whose session's sampler it shares, the sampling, the drivers and the join. The command line and the
integrations for pytest and notebooks stand on it. One more number of a run is a field of `GpuSummary`, filled in
`gpu_summary.summarise_run`.
"""

from gpu_profile.monitor.context import GpuMonitor
from gpu_profile.monitor.decorator import gpu_profile
from gpu_profile.monitor.gpu_summary import GpuSample, GpuSummary, ProfiledResult

__all__ = ["GpuMonitor", "GpuSample", "GpuSummary", "ProfiledResult", "gpu_profile"]
