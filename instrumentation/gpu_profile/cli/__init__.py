"""The command `gpu-profile`. Errors become one line on stderr and an exit code in `command`, and nowhere else.

Each subcommand has a module, and `command` joins them. Its work is in the packages below, which it imports when it
runs: `--help` loads none of them. Read in this order:

- `launch`: `run`, the default command. It starts `child`, samples beside it (`watch`), draws a line at the foot of the
  terminal (`live`), and shows the results (`outcome`).
- `record`: samples alone, into a directory. `analysis`: `analyze`, `classify` and `compare` of recordings. `query`:
  questions in SQL.
- `cost`: the costs of a benchmark of an LLM server, measured by `meters`. `sweep`: requests that show
  its prices, sent to `completions`.
- `kernels`: traces of PyTorch's profiler. `op` (with `op_text`): the bound of an operation.
- `calibrate`: the response of a GPU's sensors to a load. `top`: the live view.
- `doctor`: the checks of this machine. They are in `machine` and `gpus`, and each result is a `finding`.
- For all of them: `options`, `devices` (the choice), `output` (files and descriptors), `ending` (signals), `progress`
  (a line for long work).

Imports everything below. Only the exporter's demonstration imports it. To add a subcommand, write a module with a
click command, and add its name to the loop in `command` and its row to docs/command-line.md.
"""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_profile.cli.command import commands as commands
    from gpu_profile.cli.command import run as run


def __getattr__(name: str) -> Any:
    """`commands` and `run`, which load all modules of the command line."""
    if name not in {"commands", "run"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpu_profile.cli import command

    return getattr(command, name)


def main() -> None:
    """Entry point of the console script."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:  # during the imports, Ctrl-C ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpu_profile.cli.command import run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a locale without box-drawing characters still gets its tables
    sys.exit(run(sys.argv[1:], last=True))
