"""The interface of the GMP profiler: named ranges that open and close windows by themselves.

Read in this order:

- `profiler`: what users call. `ranges`: blocks, decorators, pairs of push and pop.
- `collecting`: when a window opens and closes. `totals`: what windows add up to.
- `results`: the totals as console, CSV files and plain values.

Imports `windows`, `sources` and the report; nothing imports it. The interface is that of a document, whose examples are
tests: a new metric of a range is a `Value` in `results`, and nothing else changes there.
"""
