"""All readings of a device, family by family, for as long as the program runs.

Read in this order:

- `family`: windows of signals that share them; `mixture`: one family's windows and the regions in them.
- `schedule`: when the timing of a mixture's sensor is searched, and when it is kept.
- `steadying`: the windows without the slow factor that their power has in common.
- `unmeasured`: the time that a starved sampler leaves out.
- `watch`: detects that new windows no longer fit the rates.
- `periods`: the rates in successive periods of time, each from its own windows, by `period_sums`.
- `meter`: long executions by the energy counter alone; `contrast`: how their windows differ.
- `shares`: a measured total, shared out among regions.
- `pooled`: a region's values from all families; `pooling`: the mixtures of all of a device's signals.

Imports `windows`, `solving` and `timing`. Others use `pooling.Pool` and the values in `pooled`.
"""
