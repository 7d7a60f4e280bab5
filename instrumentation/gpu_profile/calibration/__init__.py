"""Measures how a GPU's sensors respond to a known load: `gpu-profile calibrate`.

Read in this order:

- `workers`: put the load on the GPU. `playing`: plays the load and polls every sensor meanwhile.
- `load`: the load over time, and its share in any window. Pure.
- `renewals`: the period and the moments at which a sensor renews its reading. Pure.
- `response`: period, lag, window and gains of one sensor, from the load and its readings. Pure.
- `loop`: a loop of regions, sampled as a running program is and unmixed with the responses, compared with the truth.
- `calibrate`: all of that for one device, and the file that keeps it.

Imports drivers, the join and the frameworks' streams. `regions.session.sensor_priors` reads the file. To support
another framework's load, add a function to `workers`.
"""
