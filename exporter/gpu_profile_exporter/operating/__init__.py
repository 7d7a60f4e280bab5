"""What an operator and the machine do with a running exporter.

Read in this order:

- `control`: signals, and what the main loop does of them.
- `systemd`: readiness and the watchdog.
- `healthcheck`: the command that asks a running exporter how it is.
- `release`: lets go of the GPUs for a while, asked for over a socket or by a signal. `runtime`: where that socket lies.

Each stands alone and imports at most the configuration; `node` and `cli` put them to use. A new command is a module
here, with a row in `cli._COMMANDS`.
"""
