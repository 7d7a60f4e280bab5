"""The interface of the GMP profiler: named ranges that open and close windows by themselves.

Read in this order:

- `profiler`: the functions that users call. `ranges`: blocks, decorators, pairs of push and pop.
- `collecting`: when a window opens and closes. `totals`: the sums over windows.
- `results`: the totals as console text, CSV files and plain values.

Imports `windows`, `sources` and the report; nothing imports it. A document specifies the interface, and its examples
are tests. A new metric of a range is a `Value` in `results`, and nothing else changes there.
"""
