"""GPU memory: the memory that regions allocated and freed, and the allocated bytes over time.

Read in this order:

- `region`: from a profiler's records, the level of each allocator (its allocated bytes), and a region's part in it.
- `timeline`: the level as steps, thinned for a plot.
- `allocator`: without a profiler, PyTorch's own counts around a piece of code.
- `history`: PyTorch's own record of every allocation, for exact peaks.

The first two are pure, and import the columns. The other two read a PyTorch that the program has loaded. A new
allocator needs no change here: its records name it in `source`.
"""
