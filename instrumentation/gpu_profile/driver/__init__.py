"""Where samples come from: drivers read devices, behind one protocol, and are named by one grammar.

Read in this order:

- `protocol`: what a driver does. `grammar`: the words that name one, and how `auto` chooses.
- `nvml/`: NVIDIA's GPUs through NVML. `smi`: through `nvidia-smi`, where NVML cannot be loaded.
- `node/`: the samples of another process of this node, and the format of their files.
- `simulated/`: simulated GPUs beneath NVML's binding. `replay`: a recording, played again. `null`: no GPUs.
- `visible`: which devices CUDA shows to a process. `own_process`: on which of them the driver lists it.

Imports the catalogue and, for `replay`, the recordings; it knows neither the history nor how samples are published. A
new driver is a module with a class that fulfils `protocol.Driver`, and a row in `grammar.open_driver`; a driver of
another package is an entry point of the group `gpu_profile.drivers`.
"""

from gpu_profile.driver.protocol import Capability, Driver, lag_s, live_driver

__all__ = ["Capability", "Driver", "lag_s", "live_driver"]
