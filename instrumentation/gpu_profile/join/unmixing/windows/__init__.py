"""The time of each reading, and the executions that were active in it.

Times are integer nanoseconds since the epoch. Read in this order:

- `activities`: executions on a device, and the stretches in which each was the innermost one.
- `active_time`: exclusive active time per column as a function of time; `piece_sums`: its sums over pieces of
  executions; `shortened`: of shorter executions.
- `sensor`: the time that a reading describes: period, lag, window and response.
- `probes`: the effects of violated assumptions on readings; `beside`: those of regions that run at once.
- `throttling`: time with the clocks held down.
- `pauses`: points at which a long search may yield to the program.

A new kind of sensor is a response in `sensor`; a new violated assumption is a member of `probes`.
"""
