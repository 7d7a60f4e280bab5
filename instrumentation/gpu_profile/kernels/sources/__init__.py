"""Who records while a program runs: PyTorch's profiler, or CUPTI by itself.

Read in this order:

- `source`: what a source does: start, be told the ranges, stop, hand out records.
- `opening`: which one `auto` takes, and why it took no other.
- `torch_source`: PyTorch's profiler. `cupti/`: CUPTI.

Imports the records and the reader of traces, and each framework only when it records. A new source is a class with the
methods of `source.Source`, a name in `opening.SPECS` and a line in `open_source`; windows, joins and views stay as they
are.
"""
