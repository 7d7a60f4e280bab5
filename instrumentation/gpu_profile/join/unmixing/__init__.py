"""The rates of regions that are shorter than a sensor's window, from many of their executions. Pure.

A reading is a mixture: its value is the sum, over regions, of the share of its window in which each was active times
the region's own rate. Over many windows these are linear equations. Read in this order:

- `activities`: executions on a device, and the stretches in which each was the innermost.
- `active_time`: exclusive active time per region as a function of time.
- `region_columns`: the columns of the equations: which regions have one of their own.
- `sensor`: which stretch of time a reading describes; `timings`: the ones that are tried first; `expected`: what was
  known of that before.
- `probes`: what readings would show if an assumption were violated; `stamps`: how far stamps may be off.
- `design`: the equations of readings under a timing of the sensor; `equations`: their sums over all readings;
  `least_squares`: what solves them within bounds.
- `shrinkage`: the solution, with every violation as large as the readings call for.
- `unmix`: rates, confidence intervals and refusals; `undetermined`: what physics alone bounds.
- `scan`: many timings tried roughly; `likelihood`: how likely readings are under one; `timing_search`: the
  sensor's lag and window, found in the readings.
- `correction`: the same, corrected by what probes say of them. `pauses`: where it may give way to a program.
- `family`: the windows of signals that share them; `shares`: a measured total, shared out among regions for good.
- `watch`: whether new windows are still what the rates say of them.
- `meter`: long executions by the energy counter alone; `throttling`: when the clocks were held down.
- `mixture`: one family's windows beside what ran in them; `pooling`: all of a device's, `pooled` region by region.

Imports the history and the catalogue. Nothing outside `join` needs more of this package than `pooling.Pool`, the
activities that are put into it, and `unmix.Rate`.
"""
