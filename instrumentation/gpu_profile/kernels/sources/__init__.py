"""Sources of records while a program runs: PyTorch's profiler, or CUPTI by itself.

Read in this order:

- `source`: the interface of a source: start, push and pop ranges, stop, return records.
- `opening`: the choice of `auto`, and the reason if no source is available.
- `torch_source`: PyTorch's profiler. `cupti/`: CUPTI.

Imports the records and the reader of traces, and each framework only when it records. A new source is a class with the
methods of `source.ProfilerSource`, a name in `opening.SPECS` and a line in `open_source`. Windows, joins and views need
no change.
"""
