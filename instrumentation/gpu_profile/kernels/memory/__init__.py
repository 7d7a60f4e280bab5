"""GPU memory: what regions took and gave back, and how much was given out over time.

Read in this order:

- `region`: from a profiler's records, the level of each allocator, and a region's part in it.
- `timeline`: the level as steps, thinned for a plot.
- `allocator`: without a profiler, PyTorch's own counts around a piece of code.
- `history`: PyTorch's own record of every allocation, for exact peaks.

The first two are pure, and import the columns; the other two look at a PyTorch that the program has loaded. A new
allocator needs nothing here: its records name it in `source`.
"""
