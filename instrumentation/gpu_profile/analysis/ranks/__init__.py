"""The ranks of a job, region by region: the slowest rank, why it is late, and the costs of each. Pure.

A rank is one process of a distributed job. All of its ranks run the same regions, and wait for the last of them at
each collective operation. Read in this order:

- `regions`: the same region on several ranks, its slowest rank with the excess, and the order of their arrivals.
- `causes`: why a rank takes longer than the others: a difference of its GPU, of its host, or of its work.
- `costs`: the time, energy and memory of an execution on each rank, and for the whole job.
- `text` and `data`: all of it in lines, and as JSON.

Imports `runs`, `clocks` and `chance`. `account` calls it with the regions of each rank.
"""
