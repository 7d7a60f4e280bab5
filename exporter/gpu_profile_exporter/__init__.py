"""The exporter: reads every GPU of a node and publishes the readings to Prometheus and OTLP.

From the driver to a scrape:

- `reader/`: processes that call the driver, and their supervisor, which restarts a process that hangs.
- `readings/`: all readings of the node at one time, as metrics of the catalogue.
- `attribution/`: the pods, containers, jobs and processes that use each device.
- `naming/`: the name of each reading: OpenTelemetry's, dcgm-exporter's, or both.
- `exposition/`: readings as Prometheus' text; `push/`: readings over OTLP.
- `server/`: the listener, its routes and the landing page.
- `sidecar/`: receives the spans of any program, adds the GPUs' activity to them and forwards them.
- `serving/`: shares the energy of LLM engines out to their requests.

The rest: `config/` (settings), `operating/` (signals, systemd, health checks, releasing the GPUs), `logs` (lines of
text or JSON), `demo/`. `node` assembles all of it; `cli` is the command. The exporter imports the library, never the
reverse.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

#: The directory that an installer makes in a directory of `sys.path`: this, the version, and the ending.
_INSTALLED: Final = ("gpu_profile-", ".dist-info")


def version() -> str:
    """The installed version, or `0+source` if the package runs from its sources.

    `importlib.metadata` finds the same, and takes 2 MiB of RAM in the exporter.
    """
    begin, end = _INSTALLED
    for directory in sys.path:
        with suppress(OSError):
            for name in os.listdir(directory or os.curdir):  # noqa: PTH208 - names alone
                if name.startswith(begin) and name.endswith(end):
                    return name.removeprefix(begin).removesuffix(end)
    return "0+source"


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Around imports: meanwhile Ctrl-C ends the process without a traceback. Only in the main thread."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
