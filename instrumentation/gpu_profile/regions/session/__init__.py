"""The join at work in one process: executions come in, samples cover them, verdicts come out.

Read in this order:

- `entrance`: what a region touches of a session, and the queue that it leaves its execution in.
- `placement`: which devices a region runs on. `known_sensors`: how their sensors were calibrated.
- `backlog`: executions from their beginning until every pool has taken them in.
- `verdicts`: what is known of each region: counts, durations, the newest verdict.
- `turns`: how the join lets the program run while it computes.
- `joiner`: pools of executions and samples, their backlog and verdicts, behind one lock.
- `session`: the life of it all: a thread of its own beside the sampler, from start to stop.
- `process`: the one session of this process, its settings, `configure`, forks and the exit.
- `exits`: the ways out of a process that skip `atexit`.
- `recorder`: writes what a session sees into a recording.

Nothing here imports OpenTelemetry: `telemetry/` asks a session and its joiner. A new figure of a region is a method of
`joiner.Joiner`; who wants to hear of executions adds a hook to `on_end` or `on_settled`.
"""
