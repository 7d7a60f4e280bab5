"""Named parts of a program: from a function call to an OpenTelemetry span with GPU attributes.

Read in this order:

- `region`: the user's interface: a decorator, a `with` block, `start()`.
- `running`: an execution while it runs: its times, its stream's marks, its span. `generators`: the same for generators.
- `execution`: the fields of one execution that the join reads. `streams`: the interface of a framework's streams that
  device intervals need; `frameworks/` implements it for PyTorch, CuPy and Numba.
- `session/`: the join in this process: executions, their devices, the samples that cover them, verdicts.
- `telemetry/`: the outputs of the process: span attributes, metrics, log records.

Imports everything below but `report`: the join, the sampler, drivers, recordings. A new attribute of spans is a row of
`catalogue.attributes` and a line of `telemetry.enrichment`; a new framework is a row of `frameworks.libraries`.
"""
