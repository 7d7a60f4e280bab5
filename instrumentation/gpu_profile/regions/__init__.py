"""Named parts of a program: from a function call to an OpenTelemetry span with GPU attributes.

Read in this order:

- `region`: what users write: a decorator, a `with` block, `start()`.
- `running`: an execution while it runs: its times, its stream's marks, its span. `generators`: the same for generators.
- `execution`: what the join reads of one execution. `streams`: what a framework must offer for device intervals;
  `frameworks/` offers it for PyTorch, CuPy and Numba.
- `session/`: the join at work in this process: what came in, on which devices, when samples cover it, verdicts.
- `telemetry/`: how it leaves the process: span attributes, metrics, log records.

Imports everything below but `report`: the join, the sampler, drivers, recordings. A new attribute of spans is a row of
`catalogue.attributes` and a line of `telemetry.enrichment`; a new framework is a row of `frameworks.libraries`.
"""
