"""The command line: its subcommands, and failures as one line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from gpu_profile import __version__
from gpu_profile.cli.analysis import analyze, classify, compare
from gpu_profile.cli.calibrate import calibrate
from gpu_profile.cli.cost import cost
from gpu_profile.cli.doctor import doctor
from gpu_profile.cli.kernels import kernels
from gpu_profile.cli.launch import LAST
from gpu_profile.cli.launch import run as run_command
from gpu_profile.cli.op import op
from gpu_profile.cli.query import query
from gpu_profile.cli.record import record
from gpu_profile.cli.sweep import sweep
from gpu_profile.cli.top import top
from gpu_profile.errors import GpuProfileError

_NAME: Final = "gpu-profile"


#: Options of `gpu-profile` itself. Any other first word that is no subcommand begins the arguments of `run`.
_OWN_OPTIONS: Final = ("-h", "--help", "--version")
#: GPURegimeProfiler's options of the program itself, and the subcommands that replace them.
_OP_OPTIONS: Final = {"--profile": ["op"], "--visualize": ["op", "--visualize"]}


class _Commands(click.Group):
    """Adds `run` before options, `--` and words that are no subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        word, _, value = args[0].partition("=") if args else ("", "", "")
        if word in _OP_OPTIONS:
            args = [*_OP_OPTIONS[word], *([value] if value else []), *args[1:]]
        if args and args[0] not in self.commands and args[0] not in _OWN_OPTIONS:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="[run] [OPTIONS] [--] COMMAND... | SUBCOMMAND",
    options_metavar="",
)
@click.version_option(__version__, prog_name=_NAME, message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Profile the GPU use of a command, a recording or an operation.

    `gpu-profile python train.py` is `gpu-profile run -- python train.py`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for each in (run_command, record, kernels, op, analyze, classify, compare, query, cost, sweep, calibrate, doctor, top):
    commands.add_command(each)


def run(arguments: Sequence[str], *, last: bool = False) -> int:
    """Run the command line and return its exit code: 0, 2 for a usage error, 1 for any other; `run` its command's.

    `last`: this process ends right after it.
    """
    try:
        code = commands.main(args=list(arguments), prog_name=_NAME, standalone_mode=False, obj=LAST if last else None)
    except click.UsageError as error:
        place = "" if error.ctx is None else f"; see {error.ctx.command_path} --help"
        return _fail(f"{error.format_message().rstrip('.')}{place}", error.exit_code)
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
