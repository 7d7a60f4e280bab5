"""The search for a sensor's lag and window, from the same readings that it times.

Read in this order:

- `expected`: priors of timings, measured with a known load; `timings`: the first trial timings.
- `scan`: a rough trial of many timings on a grid of time.
- `likelihood`: the likelihood of readings under a timing; `trials`: these, compared with the best one.
- `timing_search`: the continuous search from the best trials, and the timings that the readings do not reject.
- `correction`: corrects a timing by the coefficients of its probes.

Imports `windows` and `solving`. Several timings that fit are alternatives; the intervals of rates enclose them.
"""
