"""Intervals over a device's history: the activity of the device during them. Pure.

Read in this order:

- `reading`: one signal over one interval, by exact overlap.
- `busy`: busy time with bounds, also for an interval shorter than the sensor's window. It uses `trailing` (readings
  that average over a window) and `window_search` (the length of that window).
- `unmixing/`: the rates of regions that are shorter than a window, from many executions.
- `durations`: how long executions took on the host.
- `summary`: all results for one region or one execution, and the evidence for its regime. `remedies`: the next step for
  a result that is missing.
- `spinning`: a device that is busy without movement, second by second. The exporter uses it, so it has no numpy.
- `region_watch`: the regimes of regions over time, period by period.

Imports the history, the regimes and the catalogue. A new quantity of a region is a field of `summary.RegionSummary`,
computed from `reading`, `busy` or `unmixing.pools.pooling.Pool`.
"""
