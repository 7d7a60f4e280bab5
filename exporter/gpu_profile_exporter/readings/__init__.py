"""What a node has to say at a moment, in the catalogue's terms: metric, attributes, value.

Read in this order:

- `readings`: of a sampler's devices: signals, counters, states, events.
- `health`: whether devices and the driver answer, how old a reading may be, and why there is none.
- `node_readings`: those of all devices and of every part of the exporter that reports on itself.

A scrape and a push start from `node_readings.NodeReadings`. Nothing here calls a driver, and nothing of the exporter is
imported. To publish one more value: a row in the library's `catalogue`, and a line in `readings` (a signal needs none).
"""
