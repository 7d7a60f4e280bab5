"""The rates of regions that are shorter than a sensor's window, from many of their executions. Pure.

A reading is a mixture: the sum, over regions, of the share of its window in which each was active times the region's
own rate. Many windows give linear equations. The rooms, in the order of the flow, each importing only earlier ones:

- `windows`: the time of each reading, and the executions that were active in it.
- `solving`: the equations of all windows, the rates that solve them, and each rate's interval or refusal.
- `timing`: the search for the sensor's lag and window, and the likelihood of readings under a timing.
- `pools`: all readings of a device, family by family, for as long as the program runs.

Imports the history and the catalogue. For regions, other packages need only `pools.pooling.Pool`, its
`windows.activities` and `solving.rate.Rate`. Costs of LLM requests and shares of MIG instances solve equations of their
own within the same bounds. A new violation of the assumptions is a probe in `windows.probes`; `solving.shrinkage`
gives its size.
"""
