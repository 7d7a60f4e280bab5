"""Operation of a running exporter: signals, systemd, health checks, releasing the GPUs.

Read in this order:

- `control`: waits for signals and runs their actions.
- `systemd`: readiness and the watchdog.
- `healthcheck`: the command that checks a running exporter.
- `release`: the command that releases the GPUs for a while, and the socket that receives it.
- `runtime`: the directories of that socket.
- `plain_asyncio`: leaves out OpenSSL where it is not needed.

`node` and `cli` use these modules. Of each other they import only `runtime`; of the rest, at most the configuration and
the log. A new command is a module here, with a row in `cli._COMMANDS`.
"""
