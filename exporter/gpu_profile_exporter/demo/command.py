"""`gpu-profile-exporter demo`: runs the exporter and the service as two processes and shows their results."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.cli.ending import end_signals
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.simulated.temporary import TemporaryFolder
from gpu_profile.errors import GpuProfileError
from gpu_profile.regimes.palette import COLOURS
from gpu_profile.report import REGION_COLUMNS, text_table
from gpu_profile.report.table import HOST_TIME, TWO_JOULES, fitted_table, folded, terminal_width, uncertain
from gpu_profile.units import percent, si
from gpu_profile_exporter.demo.comparison import MOST_EXECUTIONS
from gpu_profile_exporter.demo.result import PAGE, DemoResult
from gpu_profile_exporter.reader.launcher import module_paths

#: Preferred ports. A port in use is replaced by a free one.
EXPORTER_PORT, SERVICE_PORT = 9400, 9464
#: Longest wait for the service's first message and for each later one.
_START_S, _SILENCE_S = 30, 60
_COLOURS: Final = {str(regime): colour.terminal for regime, colour in COLOURS.items()}
#: Indices of the columns to omit on a narrow terminal, in this order.
_SPARE: Final = [[REGION_COLUMNS.index(name)] for name in ("p95", "busy time", "energy", "mean", "per call", "calls")]

#: The columns of errors by the two joins.
_JOINS: Final = ("by device intervals", "by host intervals")

Message = dict[str, Any]


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), help="End after this long; without it, on Ctrl-C.")
@click.option("--simulated", is_flag=True, help="Use simulated GPUs even where there are real ones.")
@click.option("--report", metavar="PATH", help=f"Write the page of the run here; without it, {PAGE}.")
def demo(seconds: float | None, *, simulated: bool, report: str | None) -> int:
    """Watch the GPUs of this machine, or simulated ones, and a small service that uses them."""
    started = time.monotonic()
    screen = _Screen()
    folder = TemporaryFolder("gpu-profile-demo-")
    try:
        with closing(DemoResult(report)) as result:
            if gpus := [] if simulated else _real_gpus():
                screen.say(f"{click.style('Real GPUs', bold=True)}: {', '.join(gpus)}.")
            else:
                from gpu_profile.driver.simulated import create

                simulated = True
                create(folder.path)
                mark = click.style("SIMULATED GPUs", bold=True)
                screen.say(f"{mark}: an H200, an A10G and an H100 with two MIG slices; no real GPU is used.")
            with end_signals() as ended, _processes(folder, simulated=simulated) as (exporter, service, ports):
                watch = _Watch(screen, exporter, service, ports, simulated, started, ended)
                _run(watch, seconds, lambda width: result.text(_recording(folder), width=width))
    except BrokenPipeError:  # the reader of stdout has closed it
        return 1
    finally:
        folder.remove()
    return 0


def _recording(folder: TemporaryFolder) -> Path:
    return folder.path / "recording"


class _Screen:
    """Standard output. On a terminal, a table below the permanent lines is updated in place."""

    def __init__(self) -> None:
        self.terminal = os.isatty(1) and os.environ.get("TERM") != "dumb"
        self._drawn = 0

    def say(self, text: str) -> None:
        """Print permanent lines."""
        self.draw([])
        click.echo(text, color=self.terminal or bool(os.environ.get("FORCE_COLOR")))

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines of the last call, cut to the terminal's size. Does nothing without a terminal."""
        if not self.terminal:
            return
        columns, rows = shutil.get_terminal_size()
        shown = [_coloured(line[:columns]) for line in lines[: rows - 1]]
        # Move up to the first drawn line and clear the screen from there.
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        click.echo(back + "".join(f"{line}\n" for line in shown), nl=False, color=True)
        self._drawn = len(shown)


def _coloured(line: str) -> str:
    if os.environ.get("NO_COLOR"):
        return line
    return re.sub("|".join(_COLOURS), lambda regime: click.style(regime[0], fg=_COLOURS[regime[0]]), line)


def _real_gpus() -> list[str]:
    """Names of the GPUs that NVML finds; none if there is no NVML."""
    try:
        with closing(open_driver("nvml")) as driver:
            return [device.name for device in driver.devices() if device.kind is DeviceKind.GPU]
    except GpuProfileError:
        return []


def _free(port: int) -> int:
    """`port` if no process listens on it, on any address, else a free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            probe.bind(("", 0))
        bound: int = probe.getsockname()[1]
        return bound


@contextmanager
def _processes(
    folder: TemporaryFolder, *, simulated: bool
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], tuple[int, int]]]:
    """The exporter and the service, in their own process sessions, so that Ctrl-C reaches only this process."""
    ports = _free(EXPORTER_PORT), _free(SERVICE_PORT)
    # -P, as for readers: nothing is imported from the working directory.
    python = [sys.executable, "-P", "-m"]
    driver = f"simulated:{folder.path}" if simulated else "auto"
    exporter = [*python, "gpu_profile_exporter", "--listen", f"127.0.0.1:{ports[0]}", "--driver", driver]
    service = [*python, "gpu_profile_exporter.demo.service", "--metrics", str(ports[1])]
    service += ["--record", str(_recording(folder))]
    if simulated:
        service += ["--directory", str(folder.path)]
        # A simulated GPU is late only where the machine is busy. A newcomer would take its warnings for faults.
        exporter += ["--log-level", "error"]
    # The files of a killed exporter are removed with the demonstration's own.
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(module_paths()),
        "RUNTIME_DIRECTORY": str(folder.path),
    }
    started: list[subprocess.Popen[str]] = []
    try:
        for command, out in ((exporter, subprocess.DEVNULL), (service, subprocess.PIPE)):
            started.append(
                subprocess.Popen(
                    command, stdout=out, text=True, start_new_session=True, env=environment, pass_fds=(folder.fd,)
                )
            )
        yield started[0], started[1], ports
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass
class _Watch:
    """The two processes and the service's messages. `ended` contains the received signals to end."""

    screen: _Screen
    exporter: subprocess.Popen[str]
    service: subprocess.Popen[str]
    ports: tuple[int, int]
    simulated: bool
    started: float
    ended: list[int]
    #: The service's newest message.
    last: Message = field(default_factory=dict)
    joined: bool = False
    silent: bool = False
    _messages: queue.Queue[Message | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.service.stdout or ():
            with suppress(ValueError):
                self._messages.put(json.loads(line))
        self._messages.put(None)

    @property
    def passed_s(self) -> float:
        """Seconds since the demonstration was started."""
        return time.monotonic() - self.started

    def messages(self, *, until: Callable[[], bool], patience_s: float) -> Iterator[Message]:
        """Messages until the service closes its output, `until()` is true or `patience_s` pass without a message."""
        received = time.monotonic()
        while not self.silent and not until() and time.monotonic() - received < patience_s:
            try:
                message = self._messages.get(timeout=0.25)
            except queue.Empty:
                continue
            if message is None:
                self.silent = True
                return
            received = time.monotonic()
            self.last = message
            if not self.joined and message.get("joined"):
                self.joined = True
                self.screen.say(f"first joined region after {self.passed_s:.1f} s")
            yield message

    def broken(self) -> str:
        """A message about the process that has ended unexpectedly; "" while both run."""
        if self.silent:
            with suppress(subprocess.TimeoutExpired):
                self.service.wait(2)
        for name, process in (("exporter", self.exporter), ("service", self.service)):
            code = process.poll()
            if code is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                return f"the demonstration's {name} {how}"
        return ""


def _run(watch: _Watch, seconds: float | None, result: Callable[[int | None], str]) -> None:
    """Show the service until its end. `result` gives the last lines, for a line's length."""
    screen = watch.screen
    first = next(watch.messages(until=lambda: bool(watch.ended or watch.broken()), patience_s=_START_S), None)
    if watch.ended:
        return
    if first is None:
        raise click.ClickException(watch.broken() or f"the demonstration's service said nothing for {_START_S} s")
    for what, port in (("GPUs", watch.ports[0]), ("regions", first["port"])):
        screen.say(f"{f'live page of {what}':<21}http://127.0.0.1:{port}/")
        screen.say(f"{f'metrics of {what}':<21}http://127.0.0.1:{port}/metrics")
    screen.say(f"{'work':<21}{first['work']}\n")

    def over() -> bool:
        return bool((seconds is not None and watch.passed_s >= seconds) or watch.ended or watch.broken())

    for message in watch.messages(until=over, patience_s=_SILENCE_S):
        screen.draw(_table(message, watch))
    broken = watch.broken()
    if not over():
        broken = f"the demonstration's service said nothing for {_SILENCE_S} s"
    screen.draw([])
    if watch.ended:
        screen.say("stopping …")
    watch.service.send_signal(signal.SIGTERM)
    # A second signal skips the comparison, for which a slow machine takes 20 s and more.
    for _ in watch.messages(until=lambda: len(watch.ended) > 1, patience_s=_SILENCE_S):
        continue
    screen.say(_report(watch.last, simulated=watch.simulated))
    if watch.last.get("rows"):
        screen.say(f"\n{result(terminal_width(sys.stdout))}")
    if seconds is not None and not (broken or watch.ended):
        screen.say("The live pages have ended too. Without --seconds they stay until Ctrl-C.")
    if broken:
        raise click.ClickException(broken)


def _table(message: Message, watch: _Watch) -> list[str]:
    title = f"regions of the service on its {'simulated ' * watch.simulated}GPU, {watch.passed_s:.0f} s"
    table = fitted_table(REGION_COLUMNS, message.get("rows", ()), _SPARE, width=shutil.get_terminal_size().columns)
    return [title, *table.splitlines(), str(message.get("problem", ""))]


def _report(last: Message, *, simulated: bool) -> str:
    if not last.get("rows"):
        return f"no region was joined: {last.get('problem') or 'the service said nothing'}"
    width = terminal_width(sys.stdout)
    notes = (HOST_TIME, *uncertain(last["rows"]), TWO_JOULES)
    lines = [fitted_table(REGION_COLUMNS, last["rows"], _SPARE, width=width), *(folded(note, width) for note in notes)]
    if last.get("span"):
        lines.append(f"\none of {last['spans']} exported spans, as an OpenTelemetry backend receives it:")
        lines += [f"  {key} = {value}" for key, value in last["span"].items()]
    if last.get("comparison"):
        lines.append(
            folded(
                "\nagainst the simulator's truth (GPU busy time and energy by region; the GPU runs behind the host):",
                width,
            )
        )
        lines.append(comparison_table(last["comparison"], width=width))
    elif simulated:
        lines.append(
            "\nnot compared with the simulator's truth: that takes the service's last word, "
            f"and no more than {MOST_EXECUTIONS:,} executions of regions"
        )
    return "\n".join(lines)


def comparison_table(rows: list[Message], *, width: int | None = None) -> str:
    """The truth and the errors of the two joins, from `RegionComparison` rows as dicts.

    One table for time and energy, or one for each if `width` is less.
    """
    columns = ("region", "true busy", *_JOINS, "true energy", *_JOINS)
    table = []
    for row in rows:
        cells = [row["region"]]
        for what, unit in (("busy_s", "s"), ("energy_j", "J")):
            true = row[f"true_{what}"]
            cells.append(si(true, unit))
            cells += [_error(row[f"{how}_{what}"], true, unit) for how in ("device", "host")]
        table.append(cells)
    whole = text_table(columns, table)
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    halves = ((0, 1, 2, 3), (0, 4, 5, 6))
    return "\n\n".join(
        text_table([columns[i] for i in half], ([row[i] for i in half] for row in table)) for half in halves
    )


def _error(value: float | None, true: float, unit: str) -> str:
    if value is None:
        return "not given"
    if true == 0:
        return "exact" if value == 0 else f"+{si(value, unit)} (truth: none)"
    error = value / true - 1
    return f"{'+' if error >= 0 else '−'}{percent(abs(error))}"
