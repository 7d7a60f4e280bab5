"""All readings of a node at one time, in the catalogue's terms: metric, attributes, value.

Read in this order:

- `readings`: the readings of a sampler's devices: signals, counters, states, events.
- `health`: whether devices and the driver answer, when a reading expires, and why there is none.
- `node_readings`: the readings of all devices, and of every part of the exporter that reports on itself.

A scrape and a push start from `node_readings.NodeReadings`. Nothing here calls a driver or imports other parts of the
exporter. To publish one more value, add a row to the library's `catalogue` and a line to `readings` (a signal needs no
line).
"""
