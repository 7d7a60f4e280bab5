"""GPU memory: what regions took and gave back, and how much was given out over time.

From a profiler's records: `region` (the level of each allocator, and a region's part in it), then `timeline` (the level
as steps, thinned for a plot). Without a profiler: `allocator` (PyTorch's own counts around a piece of code), `history`
(PyTorch's own record of every allocation).

`region` and `timeline` are pure, and import the columns; the other two look at a PyTorch that the program has loaded.
A new allocator needs nothing here: its records name it in `source`.
"""
