"""Stretches of time in which a source records and regions are collected: one, or one now and then.

Read in this order:

- `window`: one stretch, and `record` around a block.
- `sample`: one that regions open and close by themselves.
- `sampling`: the thread that has samples due, reads them and gives executions their `KernelWork`.

Only one window is open in a process at a time, whoever opens it: `window.OPEN` holds it. Imports `sources`, the report
and the regions. Something else that opens windows gives each `Window` its name as the `owner`, and needs no claim of
its own.
"""
