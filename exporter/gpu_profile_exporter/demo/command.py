"""`gpu-profile-exporter demo`: starts the exporter and the service as two processes, and shows what they see."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from gpu_profile.cli.ending import end_signals
from gpu_profile.report import REGION_COLUMNS, text_table
from gpu_profile.units import percent, si
from gpu_profile_exporter.demo.comparison import MOST_EXECUTIONS

#: Ports that the demonstration likes; free ones are taken where they are not.
EXPORTER_PORT, SERVICE_PORT = 9400, 9464
#: The service has this long for its first word, and for every later one.
_START_S, _SILENCE_S = 30, 60
_COLOURS = {"COMPUTE_BOUND": "green", "MEMORY_BOUND": "cyan", "HOST_BOUND": "yellow", "OVERHEAD_BOUND": "magenta"}

Message = dict[str, Any]


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), help="End after this long; without it, on Ctrl-C.")
@click.option("--simulated", is_flag=True, help="Use simulated GPUs even where there are real ones.")
def demo(seconds: float | None, *, simulated: bool) -> None:
    """Watch the GPUs of this machine, or simulated ones, and a small service that uses them."""
    started = time.monotonic()
    console = Console(highlight=False)
    directory = None
    if simulated or not (found := _real_gpus()):
        from gpu_profile.driver import simulated as simulation

        directory = tempfile.mkdtemp(prefix="gpu-profile-demo-")
        simulation.create(Path(directory))
        console.print(
            "[bold]SIMULATED GPUs[/bold]: an H200, an A10G and an H100 with two MIG slices; no real GPU is used.",
            soft_wrap=True,
        )
    else:
        console.print(f"[bold]Real GPUs[/bold]: {', '.join(found)}.", soft_wrap=True)
    with end_signals() as ended:
        try:
            with _processes(directory) as (exporter, service, ports):
                _run(console, _Watch(exporter, service, ports, directory, started, ended), seconds)
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


def _real_gpus() -> list[str]:
    """Names of the GPUs that NVML finds; none if there is no NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _free(port: int) -> int:
    """`port` if nobody listens on it, on any address, else a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            probe.bind(("", 0))
        found: int = probe.getsockname()[1]
        return found


@contextmanager
def _processes(directory: str | None) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], tuple[int, int]]]:
    """The exporter and the service, in sessions of their own so that Ctrl-C reaches only this process."""
    ports = _free(EXPORTER_PORT), _free(SERVICE_PORT)
    driver = f"simulated:{directory}" if directory else "auto"
    exporter_command = [
        sys.executable,
        "-m",
        "gpu_profile_exporter",
        "--listen",
        f"127.0.0.1:{ports[0]}",
        "--driver",
        driver,
    ]
    service_command = [sys.executable, "-m", "gpu_profile_exporter.demo.service", "--metrics", str(ports[1])]
    if directory:
        service_command += ["--directory", directory]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if directory:
        # Whatever an exporter that is killed leaves behind goes with the demonstration's own files.
        environment["RUNTIME_DIRECTORY"] = directory
    started: list[subprocess.Popen[str]] = []
    try:
        for command, out in ((exporter_command, subprocess.DEVNULL), (service_command, subprocess.PIPE)):
            started.append(subprocess.Popen(command, stdout=out, text=True, start_new_session=True, env=environment))
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


class _Watch:
    """What the two processes say, as it arrives. `ended` are the signals that ask the demonstration to end."""

    def __init__(
        self,
        exporter: subprocess.Popen[str],
        service: subprocess.Popen[str],
        ports: tuple[int, int],
        directory: str | None,
        started: float,
        ended: list[int],
    ) -> None:
        self.exporter = exporter
        self.service = service
        self.ports = ports
        self.directory = directory
        self.started = started
        self.ended = ended
        self.first_join_s: float | None = None
        self.silent = False
        self._messages: queue.Queue[Message | None] = queue.Queue()
        assert service.stdout is not None  # noqa: S101 - it was started with a pipe
        threading.Thread(target=self._read, args=(service.stdout,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                self._messages.put(json.loads(line))
            except ValueError:
                continue
        self._messages.put(None)

    def messages(self, *, until: Callable[[], bool], patience_s: float) -> Iterator[Message]:
        """Messages until the service has closed its end, `until()` is true or nothing came for `patience_s`."""
        heard = time.monotonic()
        while not self.silent and not until() and time.monotonic() - heard < patience_s:
            try:
                message = self._messages.get(timeout=0.25)
            except queue.Empty:
                continue
            if message is None:
                self.silent = True
                return
            heard = time.monotonic()
            yield message

    def broken(self) -> str:
        """Which process has ended by itself, and how; empty while both run."""
        if self.silent:
            with suppress(subprocess.TimeoutExpired):
                self.service.wait(2)
        for name, process in (("exporter", self.exporter), ("service", self.service)):
            code = process.poll()
            if code is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                return f"the demonstration's {name} {how}"
        return ""


def _run(console: Console, watch: _Watch, seconds: float | None) -> None:
    first = next(watch.messages(until=lambda: bool(watch.ended or watch.broken()), patience_s=_START_S), None)
    if watch.ended:
        return
    if first is None:
        raise click.ClickException(watch.broken() or f"the demonstration's service said nothing for {_START_S} s")
    console.print(f"page               http://127.0.0.1:{watch.ports[0]}/")
    console.print(f"metrics of GPUs    http://127.0.0.1:{watch.ports[0]}/metrics")
    console.print(f"metrics of regions http://127.0.0.1:{first['port']}/metrics")
    console.print(f"work               {first['work']}", end="\n\n")

    def over() -> bool:
        passed = seconds is not None and time.monotonic() - watch.started >= seconds
        return passed or bool(watch.ended or watch.broken())

    last: Message = {}
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for message in watch.messages(until=over, patience_s=_SILENCE_S):
            last = message
            _note_first(console, watch, message)
            if console.is_terminal:
                live.update(_table(message, watch), refresh=True)
    broken = watch.broken()
    if not over():
        broken = f"the demonstration's service said nothing for {_SILENCE_S} s"
    if watch.ended:
        console.print("stopping …")
    watch.service.send_signal(signal.SIGTERM)
    # Who asks twice does not want to wait for the comparison.
    for message in watch.messages(until=lambda: len(watch.ended) > 1, patience_s=15):
        last = message
        _note_first(console, watch, message)
    _report(console, last, simulated=watch.directory is not None)
    if broken:
        raise click.ClickException(broken)


def _note_first(console: Console, watch: _Watch, message: Message) -> None:
    if watch.first_join_s is None and message.get("joined"):
        watch.first_join_s = time.monotonic() - watch.started
        console.print(f"first joined region after {watch.first_join_s:.1f} s")


def _table(message: Message, watch: _Watch) -> Table:
    title = "simulated GPU" if watch.directory else "GPU"
    table = Table(title=f"regions of the service on its {title}, {time.monotonic() - watch.started:.0f} s", box=None)
    for i, column in enumerate(REGION_COLUMNS):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in message.get("rows", ()):
        cells = [str(cell) for cell in row]
        colour = _COLOURS.get(cells[-2], "white")
        cells[-2] = f"[{colour}]{cells[-2]}[/{colour}]"
        table.add_row(*cells)
    if message.get("problem"):
        table.caption = str(message["problem"])
    return table


def _report(console: Console, last: Message, *, simulated: bool) -> None:
    if not last.get("rows"):
        console.print(f"no region was joined: {last.get('problem') or 'the service said nothing'}")
        return
    console.print(text_table(REGION_COLUMNS, last["rows"]), soft_wrap=True)
    span = last.get("span")
    if span:
        console.print(f"\none of {last['spans']} exported spans, as an OpenTelemetry backend receives it:")
        for key, value in span.items():
            console.print(f"  {key} = {value}", soft_wrap=True)
    if last.get("comparison"):
        console.print(
            "\nagainst the simulator's truth (GPU busy time and energy by region; the GPU runs behind the host):",
            soft_wrap=True,
        )
        console.print(comparison_table(last["comparison"]), soft_wrap=True)
    elif simulated:
        console.print(
            "\nnot compared with the simulator's truth: that takes the service's last word, "
            f"and no more than {MOST_EXECUTIONS:,} executions of regions"
        )


def comparison_table(rows: list[Message]) -> str:
    """The table of `demo.comparison.Comparison` rows: truth, and the error of the two joins."""
    columns = (
        "region", "true busy", "by device intervals", "by host intervals",
        "true energy", "by device intervals", "by host intervals",
    )  # fmt: skip
    table = []
    for row in rows:
        cells = [row["region"]]
        for what, unit in (("busy_s", "s"), ("energy_j", "J")):
            true = row[f"true_{what}"]
            cells.append(si(true, unit))
            cells += [_error(row[f"{how}_{what}"], true, unit) for how in ("device", "host")]
        table.append(cells)
    return text_table(columns, table)


def _error(value: float | None, true: float, unit: str) -> str:
    if value is None:
        return "not given"
    if true == 0:
        return "exact" if value == 0 else f"+{si(value, unit)} (truth: none)"
    error = value / true - 1
    return f"{'+' if error >= 0 else '−'}{percent(abs(error))}"
