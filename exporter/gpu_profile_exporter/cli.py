"""The command `gpu-profile-exporter`: serves without a subcommand, or runs `demo`, `release` or `healthcheck`."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.core import ParameterSource

from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile_exporter import logs, quiet_interrupts, version
from gpu_profile_exporter.config import SETTINGS, Config, Loaded, load, options, printed
from gpu_profile_exporter.config.setting import places
from gpu_profile_exporter.operating import systemd
from gpu_profile_exporter.operating.control import Action, signals
from gpu_profile_exporter.operating.plain_asyncio import import_asyncio

if TYPE_CHECKING:
    from gpu_profile_exporter.node import ExporterNode

_log = logging.getLogger("gpu_profile_exporter")

_NAME: Final = "gpu-profile-exporter"
#: Subcommands, imported only when they are called: name -> (module, object, line of the help).
_COMMANDS: Final = {
    "demo": ("gpu_profile_exporter.demo.command", "demo", "Show it all on a simulated node, in a minute or two."),
    "release": (
        "gpu_profile_exporter.operating.release",
        "release",
        "Release the GPUs for a while, so that they can be reset.",
    ),
    "healthcheck": ("gpu_profile_exporter.operating.healthcheck", "healthcheck", "Check a running exporter's health."),
}


class _Exporter(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        with quiet_interrupts():
            command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options.write_help(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, brief) for name, (_, _, brief) in _COMMANDS.items()])


@click.pass_context
def _run(ctx: click.Context, /, *, print_config: bool, **_: Any) -> None:
    if ctx.invoked_subcommand is not None:
        for parameter in ctx.command.params:
            if ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
                place = places(ctx).get(parameter.name or "", parameter.opts[0])
                raise UsageError(f"{place}: applies to serving, not to {ctx.invoked_subcommand}")
        logs.set_up("info")
        return

    def reread() -> Loaded:
        return load(ctx.obj)

    loaded = reread()
    if print_config:
        say(printed.in_force(loaded).rstrip("\n"))
        return
    logs.set_up(loaded.config.log.level, loaded.config.log.format)
    for remark in loaded.config.remarks():
        _log.warning(remark)
    serve(loaded.config, lambda: reload(loaded.config, reread().config))


exporter: Final = _Exporter(
    _NAME,
    callback=_run,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[*options.options()],
    help="""Read every GPU of this node and serve what it does to Prometheus.

    Every setting can be made by its flag, by an environment variable (GPU_PROFILE_EXPORTER_OTLP_ENDPOINT for
    --otlp-endpoint) and in a TOML file (endpoint under [otlp]); the first of these wins.""",
)
click.version_option(version(), prog_name=_NAME)(exporter)


def serve(config: Config, reread: Action) -> None:
    """Run an exporter until SIGTERM or SIGINT. SIGHUP reads its files again, SIGUSR1 releases the GPUs."""
    # The matrices of requests' costs and of spans are small: more threads of BLAS would only wait for one another, and
    # take cores from the node's programs. Read when numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with quiet_interrupts():
        import_asyncio(tls=config.web_config_file is not None)
        from gpu_profile_exporter.node import ExporterNode

    with signals() as control, ExporterNode(config) as node:
        systemd.notify(systemd.READY)
        say(node.headline())
        # All present objects live as long as the process: collections during a scrape need not traverse them.
        gc.collect()
        gc.freeze()

        def beat() -> None:
            if node.health().alive:
                systemd.notify(systemd.WATCHDOG)

        try:
            control.wait(_actions(node, reread), beat=beat, beat_s=systemd.watchdog_s())
        finally:
            systemd.notify(systemd.STOPPING)


def _actions(node: ExporterNode, reread: Action) -> dict[int, Action]:
    """The action of each signal."""

    def read_again() -> None:
        systemd.notify(systemd.reloading())
        try:
            # The node's own files first: they take effect even if a setting elsewhere is wrong.
            node.reload()
        finally:
            try:
                reread()
            finally:
                systemd.notify(systemd.READY)

    return {signal.SIGHUP: read_again, signal.SIGUSR1: node.release}


def reload(running: Config, new: Config) -> None:
    """Apply the log settings of `new`, and log the other settings that changed: they need a restart."""
    logs.set_up(new.log.level, new.log.format)
    changed = [row.dotted for row in SETTINGS if row.topic != "log" and row.of(running) != row.of(new)]
    if changed:
        _log.warning("changed, and in force only after a restart: %s", ", ".join(changed))
    else:
        _log.info("the settings were read again")


def say(text: str) -> None:
    """Print a line on standard output. Ignores a closed or broken output."""
    with suppress(OSError, ValueError):
        click.echo(text)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit. Each failure gives one line on standard error and an exit code."""
    _open_standard_files()
    code = run(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # Else the interpreter would flush again at exit and print an error.
            with suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _open_standard_files() -> None:
    """Open /dev/null for each closed standard file. Else a socket would get its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 2 for wrong usage, 1 for other failures."""
    try:
        code = exporter.main(list(arguments), prog_name=_NAME, standalone_mode=False, obj=list(arguments))
    except click.UsageError as error:
        place = "" if error.ctx is None else f"; see {error.ctx.command_path} --help"
        return _fail(f"{error.format_message().rstrip('.')}{place}", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except GpuProfileError as error:
        return _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 0
    except Exception as error:  # noqa: BLE001 - any failure is reported in one line
        _log.debug("it failed here", exc_info=True)
        return _fail(f"{type(error).__name__}: {error} (--log-level debug shows where)", 1)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    with suppress(OSError, ValueError):
        click.echo(f"{_NAME}: {logs.one_line(' '.join(message.split()))}", err=True)
    return code
