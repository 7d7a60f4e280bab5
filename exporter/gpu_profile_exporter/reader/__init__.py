"""Where the driver is called: in processes of their own, which can be killed when a call hangs, and whose death hurts
nobody.

In the launcher: `forking` forks all others, so that the modules they share lie in RAM once.

In a reader process: `settings` is what it is started with; `child` is its loop; `marked` wraps the driver so that
`whereabouts` shows, in shared memory, which call is under way; `wire` is how samples and events are written to the
pipe. Two processes read nothing: `listening` hears the events of all GPUs; `counting` counts GPUs where `presence`, the
kernel's list, cannot be seen.

`ring` writes a device's samples to the node's timeline, of which `timeline` keeps the table, in the exporter.

In the exporter: `process` is one such process; `launcher` asks for it; `processes` starts, ends and restarts them;
`intake` takes in what they send, with a ledger for each device; `pace` and `presence` know which GPUs are slow, have
come, or are lost, `registrations` whose events can be heard; `readers` judges which process hangs and which GPU needs
one of its own, and has what they read.
`usage` is what these processes use of the machine.

Nothing is imported here: a reader process needs no numpy. Imports the library's sampling, drivers and `history.ledger`,
and the exporter's readings.
"""
