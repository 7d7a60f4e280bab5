"""The command `gpu-profile-exporter`: bare options serve, `demo` shows."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

import click

from gpu_profile.errors import GpuProfileError
from gpu_profile_exporter import version
from gpu_profile_exporter.config import ENVIRONMENT, Config, parse_listen

_NAME: Final = "gpu-profile-exporter"
_DRIVERS: Final = "auto|nvml|smi|none|simulated[:DIR]|replay:DIR"
#: Commands besides serving, loaded only when they are called: name -> (module, object, what it does).
_COMMANDS: Final = {
    "demo": ("gpu_profile_exporter.demo.command", "demo", "Show it all on a simulated node, in a minute or two."),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, brief) for name, (_, _, brief) in _COMMANDS.items()])


def _env(name: str, *more: str) -> list[str]:
    return [f"{ENVIRONMENT}_{name}", *more]


@click.group(
    _NAME,
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--listen", default=":9400", envvar=_env("LISTEN"), show_default=True, help="Address to serve on.")
@click.option(
    "--driver",
    default="auto",
    envvar=_env("DRIVER", "GPU_PROFILE_BACKEND"),
    show_default=True,
    metavar=_DRIVERS,
    help="What to read the GPUs through.",
)
@click.option(
    "--interval", default=0.1, envvar=_env("INTERVAL"), show_default=True, help="Seconds between two readings."
)
@click.option("--retention", default=120.0, envvar=_env("RETENTION"), show_default=True, help="Seconds that are kept.")
@click.option(
    "--log-level",
    default="info",
    envvar=_env("LOG_LEVEL"),
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What to log to standard error.",
)
@click.version_option(version(), prog_name=_NAME)
@click.pass_context
def exporter(
    ctx: click.Context, *, listen: str, driver: str, interval: float, retention: float, log_level: str
) -> None:
    """Read every GPU of this node and serve what it does to Prometheus.

    Every option can also be set by an environment variable: GPU_PROFILE_EXPORTER_LISTEN and so on. The driver is
    taken from GPU_PROFILE_BACKEND too.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if ctx.invoked_subcommand is None:
        serve(Config(listen=parse_listen(listen), driver=driver, interval_s=interval, retention_s=retention))


def serve(config: Config) -> None:
    """Run an exporter until SIGTERM or SIGINT."""
    from gpu_profile_exporter.node import Node

    with _stop_signals() as wait, Node(config) as node:
        click.echo(node.headline())
        wait()


@contextmanager
def _stop_signals() -> Iterator[Callable[[], object]]:
    # The interpreter itself writes to the pipe when a signal comes: a handler in Python might only run after a read
    # that has just begun to block, which is never.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}

    def wait() -> None:
        while not set(os.read(reading, 64)) & set(numbers):
            pass

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        os.close(reading)
        os.close(writing)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: every failure is one line on standard error and an exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 2 for what the user typed, 1 for the rest."""
    try:
        exporter.main(list(arguments), prog_name=_NAME, standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except GpuProfileError as error:
        return _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 0
    except Exception as error:
        logging.getLogger("gpu_profile_exporter").debug("it failed here", exc_info=True)
        return _fail(f"{type(error).__name__}: {error} (--log-level debug shows where)", 1)
    return 0


def _fail(message: str, code: int) -> int:
    click.echo(f"{_NAME}: {' '.join(message.split())}", err=True)
    return code
