"""The join in one process: it takes in executions, waits for samples that cover them, and judges regions.

Read in this order:

- `inbox`: the part of a session that every region touches, with the queue of new executions.
- `placement`: the devices that a region runs on. `sensor_priors`: the calibration of their sensors.
- `backlog`: executions from their beginning until every pool has taken them in.
- `verdicts`: counts, durations and the newest verdict of each region.
- `spinning_regions`: open regions whose device is busy without movement.
- `changes`: the changes of regions' regimes, logged as they happen.
- `turns`: limits the join's share of the interpreter.
- `joiner`: pools of executions and samples, their backlog and verdicts, behind one lock.
- `session`: the threads of the sampler and the join, from start to stop.
- `process`: the one session of this process, its settings, `configure`, forks and the exit.
- `exits`: process ends that skip `atexit`.
- `recorder`: writes a session's samples and executions into a recording.

Nothing here imports OpenTelemetry: `telemetry/` asks a session and its joiner. A new figure of a region is a method of
`joiner.Joiner`. A consumer of executions adds a hook to its `on_end` or `on_settled`.
"""
