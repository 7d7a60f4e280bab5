"""Where the driver is called: in processes of their own, which can be killed when a call hangs, and whose death hurts
nobody.

In a reader process: `child` is its loop; `marked` wraps the driver so that `whereabouts` shows, in shared memory, which
call is under way; `wire` is how samples and events are written to the pipe.

In the exporter: `process` is one reader process; `intake` takes in what it sends, with a ledger for each device;
`readers` keeps as many processes as it takes, restarts those that hang or die, and has what they read. `usage` is what
these processes use of the machine.

Nothing is imported here: a reader process needs no numpy. Imports the library's sampling, drivers and `history.ledger`,
and the exporter's readings.
"""
