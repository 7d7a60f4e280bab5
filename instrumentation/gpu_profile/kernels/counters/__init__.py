"""Hardware counters of kernels, joined with regions by name, and the permission to read them.

Read in this order:

- `formulas`: NVIDIA's metrics that add up, and figures made of their sums.
- `sums`: counters of one run, joined with the kernels of a timed one, and how far the two agree.
- `permissions`: whether this process may read counters, for `gpu-profile doctor`.
- `live/`: counters of a running program's regions, sampled beside it.

Imports the records and the sums of kernels. A new figure is a row of `formulas.FORMULAS`; a ratio that can be rebuilt
from sums is a row of `formulas._REBUILT`.
"""
