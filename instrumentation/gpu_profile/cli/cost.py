"""`gpu-profile cost`: run a benchmark of an LLM server and print the costs of its requests and tokens."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.child import ChildCommand, asked_to_end, held_signals
from gpu_profile.cli.meters import CostMeter, DeviceMeter, EngineMeter
from gpu_profile.cli.options import Finite, device_option
from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from gpu_profile.analysis.costs import BenchmarkResult

_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_URL: Final = "http://localhost:9400/metrics"


@click.command(
    short_help="Print the costs of a benchmark of an LLM server.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@click.option("--url", metavar="URL", help=f"The exporter with the engine. By default {_URL}.")
@click.option("--engine", default="", metavar="NAME", help="The engine, if the exporter has several.")
@click.option("--driver", "driver_spec", metavar="SPEC", help="Without an exporter: whole GPUs, such as auto.")
@device_option
@click.option("--result", type=_FILE, metavar="FILE", help="The JSON that COMMAND writes: its settings and tokens.")
@click.option("--output", type=_FILE, metavar="FILE", help="Append the costs as a line of JSON, for compare.")
@click.option("--json", "as_json", is_flag=True, help="Print that line, not text.")
@click.option(
    "--wait",
    "wait_s",
    type=Finite(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait for the costs, before and after.",
)
def cost(
    command: tuple[str, ...],
    *,
    url: str | None,
    engine: str,
    driver_spec: str | None,
    devices: tuple[str, ...],
    result: Path | None,
    output: Path | None,
    as_json: bool,
    wait_s: float,
) -> int:
    """Run COMMAND, a benchmark of an LLM server, and print the costs of its requests and tokens.

    The costs are those that the exporter at URL shares out meanwhile, so the server needs no other load. If COMMAND
    fails, its exit code is passed on and nothing is printed.
    """
    from gpu_profile.analysis.costs import render_costs
    from gpu_profile.catalogue.samples import Interval
    from gpu_profile.report.table import terminal_width

    meter = _meter(url, engine, driver_spec, devices, result, wait_s)
    _append(output, "")
    meter.prepare()
    earlier = _stamp(result)
    try:
        with held_signals() as mask:
            meter.start()
            if number := asked_to_end():
                return 128 + number
            start_ns = time.time_ns()
            code = ChildCommand(command, os.environ, mask).wait(lambda: None)
        during = Interval(start_ns, time.time_ns())
        if code:
            click.echo(f"gpu-profile: {command[0]} ended with {code}: no costs", err=True)
            return code
        counts = None if result is None else _result(result, earlier)
        costs = meter.costs(during, counts)
    finally:
        meter.stop()
    line = costs.line()
    _append(output, line)
    click.echo(line if as_json else render_costs(costs, width=terminal_width(sys.stdout)))
    return 0


def _meter(
    url: str | None, engine: str, driver_spec: str | None, devices: tuple[str, ...], result: Path | None, wait_s: float
) -> CostMeter:
    """The way to measure that the options ask for. UsageError if they contradict each other."""
    from gpu_profile.monitor.top.endpoint import check_url

    if driver_spec is None:
        if devices:
            raise UsageError("--device needs --driver: an exporter's engine has its own GPUs")
        return EngineMeter(check_url(url or _URL), engine, wait_s)
    if url is not None or engine:
        raise UsageError("--driver measures without an exporter: leave out --url and --engine")
    if result is None:
        raise UsageError("--driver needs --result: the tokens and the length of the run are in it")
    return DeviceMeter(driver_spec, devices)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """Changes with each new content of a file. None if there is no file."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status is not None else None


def _result(path: Path, earlier: tuple[int, int, int] | None) -> BenchmarkResult:
    """The result in a file that the command has written. UsageError otherwise.

    `earlier`: its stamp before the command. Times of files are no help: a file server has its own clock.
    """
    from gpu_profile.analysis.costs import read_result

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"--result {path}: {reason}: does the command write it there?") from error
    if _stamp(path) == earlier:
        raise UsageError(f"--result {path}: older than this run: does the command write another file?")
    return read_result(text, f"--result {path}")


def _append(path: Path | None, line: str) -> None:
    """Append a line. An empty one only tries it, so that an error comes before the run and not after it."""
    if path is None:
        return
    try:
        torn = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")
        with path.open("a", encoding="utf-8") as file:
            if line:
                file.write(("\n" if torn else "") + f"{line}\n")
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be written: {error.strerror}") from error
