"""NVIDIA GPUs, read through NVML. `pynvml` is imported when a driver is made, never before.

Read in this order:

- `library`: NVML as this process started it. `errors`: what each return code means for the driver.
- `enumeration`: the devices there are. `device`: an open one, which knows what it can do and reads only that.
- `readers`: one row for each signal of the catalogue, by `queries` (one call each), `fields` (many in a call), `gpm`
  (activity inside Hopper and newer) or `buffers` (the driver's own samples).
- `processes`: who uses a device. `events`: XID errors. `throttling`: throttle time where no counter has it.
- `driver`: all of it behind the protocol.

Imports the catalogue, the clock and the protocol. A new signal that is a field value or a GPM metric needs nothing
here, since its row's `source` names it; another one is a line of `readers._beside`. A new return code is a row of
`errors`.
"""

from gpu_profile.driver.nvml.driver import NvmlDriver

__all__ = ["NvmlDriver"]
