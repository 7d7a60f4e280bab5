"""Machines: the devices that operations run on. PyTorch's, CuPy's and the host share one protocol, `machine.Machine`.

Read in this order:

- `machine`: the protocol: time a call, overwrite the caches, report memory, and identify the machine for its ceilings.
- `devices`: creates the machine for a name such as `"cuda:1"`, or the default one. Finds the devices of tensors.
- `host_machine`: the host's clock. `processor` reads its cores, caches and memory from `/proc`, `/sys` and cgroups.
- `torch_machine`: PyTorch's devices: the processor, GPUs timed by events, Apple's GPUs timed by waiting.
  `cupy_machine`: GPUs through CuPy.
- `nvml_facts`: clocks, power limit and widths of a GPU. Its ceilings are valid only for these.

Creating a machine imports its framework. A new machine is a class with the protocol's members, a branch in
`devices.machine`, and its benchmarks in `ceilings.calibration.benchmarks_for`.
"""
