"""The rates of regions that are shorter than a sensor's window, from many of their executions. Pure.

A reading is a mixture: the sum, over regions, of the share of its window in which each was active times the region's
own rate. Many windows give linear equations. Read in this order:

- `activities`: executions on a device, and the stretches in which each was the innermost one.
- `active_time`: exclusive active time per column as a function of time, by `piece_sums`; `sampled_time`: on a grid.
- `region_columns`: the columns of the equations, one or two per region.
- `sensor`: the time that a reading describes; `timings`: the first trial timings; `expected`: priors of timings.
- `probes`: effects of violated assumptions on readings; `stamps`: bounds on stamp errors; `unmarked`: work in pauses.
- `design`: the equations of windows under a timing; `equations`: their sums over all windows; `least_squares`: their
  solution within bounds.
- `shrinkage`: the solution with each violation as large as the readings support.
- `unmix`: a `rate` with its confidence interval or refusal; `undetermined`: rates that only physics bounds.
- `scan`: a rough trial of many timings; `likelihood`: the likelihood of readings under a timing, as `trials`;
  `timing_search`: the search for the sensor's lag and window.
- `correction`: corrects the timing by its probes; `pauses`: points at which the search may yield to the program.
- `family`: windows of signals that share them; `shares`: a measured total, shared out among regions.
- `watch`: detects that new windows no longer fit the rates.
- `meter`: long executions by the energy counter alone; `contrast`: how their windows differ; `throttling`: time with
  the clocks held down. `period_sums`: the windows of 10 s.
- `mixture`: one family's windows and the regions in them; `pooling`: all of a device's, `pooled`, or by `periods`.

Imports the history and the catalogue. For regions, other packages need only `pooling.Pool`, its activities and
`rate.Rate`. Costs of LLM requests and shares of MIG instances solve equations of their own within the same bounds.
"""
