"""Calls the driver in separate processes. The exporter can kill a process that hangs, and survives one that crashes.

In the launcher process, `launcher_process` forks all others, so that their shared modules are in RAM once.

In a reader process: `settings` are its start settings; `child` is its loop; `observed_driver` wraps the driver and
publishes the call in progress in shared memory (`heartbeat`); `wire` encodes messages for the pipe; `ring` writes a
device's samples to the node's timeline. Two processes read nothing: `listening` receives the events of all GPUs;
`counting` counts GPUs where the kernel's list (`presence`) is not visible.

In the exporter, the supervisor of these processes:

- `process` represents one of them, `launcher` requests it, `processes` starts, kills and restarts them.
- `intake` receives their messages, with a ledger for each device. `timeline` writes the table of the node's timeline.
- `pace` finds slow GPUs, `presence` added and lost ones, `registrations` the GPUs to watch for events.
- `usage` measures the CPU time and memory of these processes.
- `readers` combines them: it detects hangs, and gives a slow GPU its own process.

Nothing is imported here, because a reader process needs no numpy. The package imports the library's sampling, drivers
and `history.ledger`, and the exporter's readings.
"""
