"""The exporter: reads every GPU of a node and publishes what it finds to Prometheus and OTLP.

The way of the data, from a driver to a scrape:

- `reader/`: processes that call the driver, what they send, and their keeper, which restarts those that hang.
- `readings/`: what the node has to say at a moment, in the catalogue's terms.
- `attribution/`: who holds each device: pods, containers, jobs, processes.
- `naming/`: how each reading is called: OpenTelemetry's names, dcgm-exporter's, or both.
- `exposition/`: readings as Prometheus' text; `push/`: readings over OTLP.
- `server/`: the listener, its routes and the landing page.
- `sidecar/`: the other way in: spans of any program, which go on with what the GPUs did during them.

Around it: `config/` (settings), `operating/` (signals, systemd, health checks, letting go of GPUs), `logs` (lines
of text or JSON), `demo/`. `node` assembles all of it; `cli` is the command. The exporter imports the library, never the
reverse.
"""

from __future__ import annotations


def version() -> str:
    """The version that is installed, or `0+source` when the package runs from its sources."""
    # Not needed by reader processes, which count: it brings 6 MiB along.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("gpu-profile")
    except PackageNotFoundError:
        return "0+source"
