"""Hardware counters of kernels, joined with regions by name, and who may read them.

Read in this order: `formulas` (which metrics add up, and what is made of their sums), `sums` (the join with the kernels
of a timed run, and what it is worth), `permissions` (whether this process may read counters; for `gpu-profile doctor`).

Imports the records and the sums of kernels. A new figure is a row of `formulas.FORMULAS`; a ratio that can be rebuilt
from sums is one of `formulas._REBUILT`.
"""
