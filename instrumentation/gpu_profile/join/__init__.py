"""Intervals over a device's history: what the device did during them. Pure.

Read in this order:

- `reading`: one signal over one interval, by exact overlap.
- `busy`: busy time with bounds, also of an interval shorter than the sensor's window. It stands on `trailing` (readings
  that average over a window) and `window_search` (how long that window is).
- `unmixing/`: the rates of regions that are shorter than a window, from many executions.
- `durations`: how long executions took on the host.
- `summary`: all of it for one region or one execution, and the evidence that regimes are judged by.

Imports the history, the regimes and the catalogue. A new quantity of a region is a field of `summary.RegionSummary`;
what it is computed from is a question to `reading`, `busy` or `unmixing.pooling.Pool`.
"""
