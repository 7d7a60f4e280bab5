"""What operations run on: one protocol, `machine.Machine`, for PyTorch's devices, CuPy's, and the host.

Read in this order:

- `machine`: the protocol: run a call and time it, overwrite the caches, tell the memory and what ceilings depend on.
- `devices`: which machine is meant by `"cuda:1"` or by nothing, and on which devices the tensors of a call are.
- `host_machine`: the host's clock. `processor` reads its cores, caches and memory from `/proc`, `/sys` and cgroups.
- `torch_machine`: the processor through PyTorch, GPUs by events, Apple's by waiting. `cupy_machine`: GPUs through CuPy.
- `nvml_facts`: clocks, power limit and widths of a GPU, which its ceilings hold for.

Frameworks are imported when a machine is made. A new machine is a class with the protocol's members, a branch in
`devices.machine`, and what calibrates it in `ceilings.calibration.benchmarks_for`.
"""
