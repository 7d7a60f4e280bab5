"""Windows: stretches of time in which a source records and regions are collected; one, or one at intervals.

Read in this order:

- `window`: one stretch, and `record` around a block.
- `sample`: one that regions open and close by themselves.
- `sampling`: the thread that prepares samples, reads them and adds a `KernelWork` to executions.

Only one window is open in a process at a time, whichever module opens it; `window.OPEN` contains it. Imports `sources`,
the report and the regions. Other code that opens windows passes its name to each `Window` as the `owner`, and needs no
claim of its own.
"""
