"""The command `gpu-profile`. Errors become one line on stderr and an exit code here, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from gpu_profile import __version__
from gpu_profile.cli.record import record
from gpu_profile.errors import GpuProfileError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-profile", message="%(prog)s %(version)s")
def commands() -> None:
    """What GPUs do for the code that uses them."""


commands.add_command(record)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        code = commands.main(args=list(arguments), prog_name="gpu-profile", standalone_mode=False)
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except click.Abort:
        return 130
    except GpuProfileError as error:
        click.echo(f"gpu-profile: {error}", err=True)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - a user gets one line, never a traceback
        click.echo(f"gpu-profile: unexpected {type(error).__name__}: {error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))
