"""What an operator and the machine do with a running exporter.

- `control`: signals and the main loop's end. `systemd`: readiness and the watchdog. `logs`: how it logs.
- `healthcheck`: the command that asks a running exporter how it is.
- `release`: lets go of the GPUs for a while, asked for over a socket or by a signal.

Each stands alone and imports at most the configuration; `node` and `cli` put them to use.
"""
