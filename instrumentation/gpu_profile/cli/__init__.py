"""The command `gpu-profile`. Errors become one line on stderr and an exit code here, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import click

from gpu_profile import __version__
from gpu_profile.cli.analysis import analyze, classify, compare
from gpu_profile.cli.kernels import kernels
from gpu_profile.cli.record import record
from gpu_profile.errors import GpuProfileError

_NAME: Final = "gpu-profile"


class _Commands(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and not cmd_name.startswith("-"):
            close = get_close_matches(cmd_name, self.commands, n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(self.commands)}"
            raise click.UsageError(f"no command {cmd_name!r}; {meant}", ctx)
        return command


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=_NAME, message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """What GPUs do for the code that uses them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


commands.add_command(record)
commands.add_command(kernels)
commands.add_command(analyze)
commands.add_command(classify)
commands.add_command(compare)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code: 0, 2 for what the user typed, 1 for the rest."""
    try:
        code = commands.main(args=list(arguments), prog_name=_NAME, standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except GpuProfileError as error:
        return _fail(str(error), error.exit_code)
    except click.Abort:
        return 130
    except Exception as error:  # noqa: BLE001 - a user gets one line, never a traceback
        return _fail(f"unexpected {type(error).__name__}: {error}", 1)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    click.echo(f"{_NAME}: {' '.join(message.split())}", err=True)
    return code


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))
