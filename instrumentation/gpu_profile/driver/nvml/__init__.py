"""The driver of NVIDIA GPUs through NVML. `pynvml` is imported when a driver is created, never before.

Read in this order:

- `library`: NVML in this process. `errors`: the table from return codes to the driver's actions.
- `enumeration`: lists devices. `device`: an open device, which reads only the signals that it has.
- `readers`: the sources of each signal: `queries` (one call each), `fields` (many in one call), `gpm` (activity
  counters of Hopper and newer) or `buffers` (samples that the driver buffers).
- `wrapping`: the 32-bit counters of PCIe bytes, extended.
- `processes`: the processes on a device. `events`: XID errors. `throttling`: throttle time without a counter.
- `driver`: combines them behind the protocol.

Imports the catalogue, the clock and the protocol. A new signal that is a field value or a GPM metric needs no
change here: its row's `source` names it. Any other signal is a line of `readers._options`. A new return code is a row
of `errors`.
"""

from gpu_profile.driver.nvml.driver import NvmlDriver

__all__ = ["NvmlDriver"]
