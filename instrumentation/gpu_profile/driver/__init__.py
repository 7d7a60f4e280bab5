"""The sources of samples: drivers that read devices through one protocol, and the grammar that names them.

Read in this order:

- `protocol`: the methods of a driver. `grammar`: the names of drivers, and how `auto` chooses.
- `nvml/`: NVIDIA's GPUs through NVML. `smi`: through `nvidia-smi`, if NVML cannot be loaded.
- `node/`: samples from another process of this node, and the format of their files.
- `simulated/`: simulated GPUs beneath NVML's Python binding. `replay`: plays a recording. `null`: no GPUs.
- `visible`: the devices that CUDA shows to a process.
- `own_process`: the devices on which the driver lists this process.

Imports the catalogue and, for `replay`, the recordings, but neither the history nor the outputs. To add a driver, write
a module with a class that implements `protocol.Driver`, and add a row in `grammar.open_driver`. Another package adds a
driver with an entry point of the group `gpu_profile.drivers`.
"""

from gpu_profile.driver.protocol import Capability, Driver, is_simulated, lag_s, live_driver

__all__ = ["Capability", "Driver", "is_simulated", "lag_s", "live_driver"]
