"""`gpu-profile [run] [--] COMMAND…`: run a command and show the GPUs' use during it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.child import ChildCommand, CommandNotFoundError, asked_to_end, held_signals
from gpu_profile.cli.devices import chooser
from gpu_profile.cli.live import LiveLine, describe
from gpu_profile.cli.options import (
    BACKEND_VARIABLE,
    RECORD_VARIABLE,
    SAMPLED_VARIABLE,
    Finite,
    backend_option,
    device_option,
    interval_option,
    record_option,
    usual_backend,
)
from gpu_profile.cli.output import Output
from gpu_profile.cli.watch import DeviceWatch
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.units import nanoseconds

if TYPE_CHECKING:
    from gpu_profile.cli.outcome import RunOutcome

#: The context's object if this process ends right after the command line.
LAST: Final = "last"

_FILE: Final = "PATH"
_STDOUT: Final = "standard output"


@click.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] [--]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@device_option
@interval_option(0.2)
@backend_option("--backend", "--driver", default=None)
@click.option("--warmup", type=Finite(min=0), default=0.0, metavar="SECONDS", help="Leave this much out at the start.")
@click.option("--strict", is_flag=True, help="Start nothing if no GPU can be read.")
@click.option("--json", "as_json", is_flag=True, help="The result as the last line on standard output, not as text.")
@click.option("--json-file", metavar=f"{_FILE}|fd:N", help="The result as JSON into a file or an open descriptor.")
@click.option("--report", metavar=_FILE, help="Write a page (HTML) that needs nothing else.")
@click.option("--trace", metavar=_FILE, help="Write a trace for ui.perfetto.dev.")
@record_option("Keep the recording")
@click.option("--live/--no-live", default=True, help="Show what the GPUs do now, if standard error is a terminal.")
@click.pass_context
def run(
    context: click.Context,
    *,
    command: tuple[str, ...],
    devices: tuple[str, ...],
    interval: float,
    backend: str | None,
    warmup: float,
    strict: bool,
    as_json: bool,
    json_file: str | None,
    report: str | None,
    trace: str | None,
    record: Path | None,
    live: bool,
) -> int:
    """Run COMMAND and sum up the GPUs' use during it.

    All words after COMMAND, or `--`, belong to the command. Its exit code is passed on (128 + n if signal n ended it).
    Its standard input and output are not touched. Regions of its processes are shown as well.
    """
    began_ns = time.time_ns()
    with ExitStack() as stack:
        targets = {"report": report, "trace": trace, "json": json_file, _STDOUT: "fd:1" if as_json else None}
        outputs = {kind: stack.enter_context(Output(target)) for kind, target in targets.items() if target is not None}
        mask = stack.enter_context(held_signals(for_good=context.find_root().obj == LAST))
        logging.getLogger("gpu_profile").addHandler(logging.NullHandler())  # the terminal is the command's
        directory, problems = _directory(stack, record)
        spec = _backend(backend, stack)
        environment = dict(os.environ)
        environment[BACKEND_VARIABLE] = spec
        if directory is not None:
            environment[RECORD_VARIABLE] = str(directory)
            environment.pop(SAMPLED_VARIABLE, None)
            if not devices:
                environment[SAMPLED_VARIABLE] = spec
        watch = DeviceWatch(
            spec, interval_s=interval, choose=chooser(devices, visible=True), directory=directory, strict=strict
        )
        if strict:
            stack.callback(watch.stop)
            watch.start()
            watch.require(lambda: asked_to_end() > 0)
        if number := asked_to_end():
            return 128 + number
        start_ns = time.time_ns()
        watch.keep_from(start_ns + nanoseconds(warmup))
        try:
            child = ChildCommand(command, environment, mask)
        except CommandNotFoundError as error:
            raise _with_hint(error, command[0], context) from error
        if not strict:
            watch.start()
        started_s = time.monotonic()
        line = LiveLine(lambda: describe(watch, started_s), on=live)
        try:
            code = child.wait(line.tick, stopping=line.clear)
        finally:
            line.clear()
        end_ns = time.time_ns()
        watch.finish()
        try:
            from gpu_profile.catalogue.samples import Interval
            from gpu_profile.cli.outcome import RunOutcome

            outcome = RunOutcome(
                command,
                code,
                Interval(start_ns, end_ns),
                watch,
                directory,
                since_ns=began_ns,
                warmup_s=warmup,
                problems=problems,
            )
            _report(outcome, outputs)
        except Exception as error:  # noqa: BLE001 - a defect here must not hide the command's exit code
            click.echo(f"gpu-profile: unexpected {type(error).__name__}: {error}", err=True)
        return code


def _report(outcome: RunOutcome, outputs: dict[str, Output]) -> None:
    """Write the results. Errors become lines: the exit code is the command's."""
    from gpu_profile.report.table import terminal_width

    makers = {"report": outcome.page, "trace": outcome.trace, "json": outcome.json_line, _STDOUT: outcome.json_line}
    for kind, output in outputs.items():
        try:
            problem = output.write(makers[kind]())
        except GpuProfileError as error:
            problem = f"{output.target}: not written: {error}"
        except Exception as error:  # noqa: BLE001 - the others are still to be written
            problem = f"{output.target}: not written: unexpected {type(error).__name__}: {error}"
        outcome.problems += [problem] if problem else []
    text = outcome.text(width=terminal_width(sys.stderr)) if _STDOUT not in outputs else outcome.problem_lines()
    if text:
        click.echo(text, err=True)


def _backend(backend: str | None, stack: ExitStack) -> str:
    """The driver's name for this process and the command's processes. All must see the same simulated node."""
    if backend is not None:
        from gpu_profile.driver.grammar import check_spec

        check_spec(backend)
    word, _, place = (backend or usual_backend()).strip().partition(":")
    if word == "simulated" and not place:
        from gpu_profile.driver.simulated.temporary import TemporaryFolder

        temporary = TemporaryFolder()
        stack.callback(temporary.remove)
        place = str(temporary.path)
    if word in ("node", "simulated", "replay") and place:
        place = str(Path(place).absolute())  # the command may change its directory
    return f"{word}:{place}" if place else word


def _directory(stack: ExitStack, record: Path | None) -> tuple[Path | None, list[str]]:
    """The directory of the recording. UsageError if the user's cannot be used, a line if ours cannot be made."""
    inherited = os.environ.get(RECORD_VARIABLE)
    if record is None and inherited:
        record = Path(inherited)
    if record is not None:
        try:
            record.mkdir(parents=True, exist_ok=True)
            if not os.access(record, os.W_OK | os.X_OK):
                raise PermissionError(None, "Permission denied")
        except OSError as error:
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise UsageError(f"{record}: cannot be recorded into: {reason}") from error
        return record.absolute(), []
    from gpu_profile.driver.simulated.temporary import TemporaryFolder

    try:
        made = TemporaryFolder("gpu-profile-run-")
    except OSError as error:
        return None, [f"regions are not shown: no temporary directory: {error.strerror}"]
    stack.callback(made.remove)
    return made.path, []


def _with_hint(error: CommandNotFoundError, name: str, context: click.Context) -> CommandNotFoundError:
    """The error with the subcommand that was probably meant: an unknown first word is a command to run."""
    group = context.parent.command if context.parent is not None else None
    if not isinstance(group, click.Group) or "/" in name:
        return error
    close: Sequence[str] = get_close_matches(name, group.commands, n=1)
    meant = f"; did you mean the subcommand {close[0]!r}?" if close else ""
    return CommandNotFoundError(f"{error.message}{meant}")
