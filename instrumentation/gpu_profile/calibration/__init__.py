"""How a GPU's sensors answer to a load that is known: `gpu-profile calibrate`.

Read in this order:

- `workers`: what puts the load on the GPU. `playing`: the load, and every sensor polled meanwhile.
- `renewals`: when a sensor renews its reading. Pure.
- `response`: period, lag, window and gains of one sensor, from both. Pure.
- `loop`: a program's loop, sampled as a running program is and unmixed by what was found: is it near the truth?
- `calibrate`: all of that for one device, and what is kept of it.

Imports drivers, the join and the frameworks' streams. What it keeps, `regions.session.known_sensors` finds again. A
framework that can put a load on a GPU is a function in `workers`.
"""
