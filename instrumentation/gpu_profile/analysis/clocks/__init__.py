"""The clocks of a job's nodes: how far each is ahead of the others, from the recorded times alone. Pure.

Ranks on several nodes read several clocks. These differ by microseconds to hours, and they drift. In a synchronous job
no rank leaves a collective before the last one has entered it. That bounds the offsets.

Read in this order:

- `jobs`: the processes of one job, with their restarts.
- `meetings`: the entries and exits of ranks at the same collectives, and the test whether ranks wait in a region.
  `steps` are meetings for jobs without such a region.
- `jumps`: clocks that were set by much during the run, and the meetings without that.
- `estimate`: the offset of each clock with an interval, its rate, and clocks that were set during the run.
- `alignment`: compares the clocks of a recording, and converts all its times to one of them.
- `arrivals`: the ranks that enter last, and how late they are.
- `clock_text`: all of it in lines.

Imports the recording and `history`'s arrays. The other modules of `analysis` import it.
"""
