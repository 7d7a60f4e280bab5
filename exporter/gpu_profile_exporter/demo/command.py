"""`gpu-profile-exporter demo`: runs the exporter and the service as two processes and shows their results."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.simulated.temporary import TemporaryFolder
from gpu_profile.errors import GpuProfileError, UsageError
from gpu_profile.report import REGION_COLUMNS, text_table
from gpu_profile.report.table import CALL_WIDTH, HOST_TIME, TWO_JOULES, fitted_table, folded, terminal_width, uncertain
from gpu_profile.units import percent, si
from gpu_profile_exporter.demo.comparison import MOST_EXECUTIONS
from gpu_profile_exporter.demo.result import PAGE, DemoResult
from gpu_profile_exporter.demo.screen import Screen
from gpu_profile_exporter.demo.serving import show_requests
from gpu_profile_exporter.demo.watch import SILENCE_S, START_S, Message, Watch, free_port, watched

#: Preferred ports. A port in use is replaced by a free one.
EXPORTER_PORT, SERVICE_PORT = 9400, 9464
#: Indices of the columns to omit on a narrow terminal, in this order.
_SPARE: Final = [
    [REGION_COLUMNS.index(name)] for name in (CALL_WIDTH, "p95", "busy time", "energy", "mean", "per call", "calls")
]

#: The columns of errors by the two joins.
_JOINS: Final = ("by device intervals", "by host intervals")


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1), help="End after this long; without it, on Ctrl-C.")
@click.option("--simulated", is_flag=True, help="Use simulated GPUs even where there are real ones.")
@click.option("--report", metavar="PATH", help=f"Write the page of the run here; without it, {PAGE}.")
@click.option("--serving", is_flag=True, help="Show the costs of the requests of a simulated LLM server instead.")
def demo(seconds: float | None, *, simulated: bool, report: str | None, serving: bool) -> int:
    """Watch the GPUs of this machine, or simulated ones, and a small service that uses them."""
    begun_s = time.monotonic()
    screen = Screen()
    if serving and report is not None:
        raise UsageError("--report: --serving writes no page; leave out one of the two")
    folder = TemporaryFolder("gpu-profile-demo-")
    try:
        gpus = [] if simulated or serving else _real_gpus()
        if gpus:
            screen.say(f"{click.style('Real GPUs', bold=True)}: {', '.join(gpus)}.")
        else:
            from gpu_profile.driver.simulated import create

            create(folder.path)
            mark = click.style("SIMULATED GPUs", bold=True)
            screen.say(f"{mark}: an H200, an A10G and an H100 with two MIG slices; no real GPU is used.")
        if serving:
            show_requests(screen, folder, free_port(EXPORTER_PORT), seconds, begun_s)
        else:
            _show_regions(screen, folder, report, seconds, begun_s, simulated=not gpus)
    except BrokenPipeError:  # the reader of stdout has closed it
        return 1
    finally:
        folder.remove()
    return 0


def _show_regions(
    screen: Screen,
    folder: TemporaryFolder,
    report: str | None,
    seconds: float | None,
    begun_s: float,
    *,
    simulated: bool,
) -> None:
    port = free_port(EXPORTER_PORT)
    modules = _modules(folder, port, simulated=simulated)
    with closing(DemoResult(report)) as result, watched(folder, modules, begun_s) as watch:
        service = _Service(screen, watch, simulated=simulated)
        service.run(port, seconds, lambda width: result.text(_recording(folder), width=width))


def _recording(folder: TemporaryFolder) -> Path:
    return folder.path / "recording"


def _real_gpus() -> list[str]:
    """Names of the GPUs that NVML finds; none if there is no NVML."""
    try:
        with closing(open_driver("nvml")) as driver:
            return [device.name for device in driver.devices() if device.kind is DeviceKind.GPU]
    except GpuProfileError:
        return []


def _modules(folder: TemporaryFolder, port: int, *, simulated: bool) -> dict[str, list[str]]:
    """The modules of the exporter, on this port, and of the service, with their arguments."""
    driver = f"simulated:{folder.path}" if simulated else "auto"
    exporter = ["gpu_profile_exporter", "--listen", f"127.0.0.1:{port}", "--driver", driver]
    service = ["gpu_profile_exporter.demo.service", "--metrics", str(free_port(SERVICE_PORT))]
    service += ["--record", str(_recording(folder))]
    if simulated:
        service += ["--directory", str(folder.path)]
        # A simulated GPU is late only where the machine is busy. A newcomer would take its warnings for faults.
        exporter += ["--log-level", "error"]
    return {"exporter": exporter, "service": service}


class _Service:
    """The service on the screen."""

    def __init__(self, screen: Screen, watch: Watch, *, simulated: bool) -> None:
        self._screen, self._watch, self._simulated = screen, watch, simulated

    def run(self, port: int, seconds: float | None, result: Callable[[int | None], str]) -> None:
        """Show the service until its end. `port` is the exporter's. `result` gives the last lines, for a line's
        length."""
        screen, watch = self._screen, self._watch
        first = next(watch.messages(until=lambda: bool(watch.ended or watch.broken()), patience_s=START_S), None)
        if watch.ended:
            return
        if first is None:
            raise click.ClickException(watch.broken() or f"the demonstration's service said nothing for {START_S} s")
        for what, served in (("GPUs", port), ("regions", first["port"])):
            screen.say(f"{f'live page of {what}':<21}http://127.0.0.1:{served}/")
            screen.say(f"{f'metrics of {what}':<21}http://127.0.0.1:{served}/metrics")
        screen.say(f"{'work':<21}{first['work']}\n")
        joined = False
        for message in watch.messages(until=lambda: watch.is_over(seconds), patience_s=SILENCE_S):
            if not joined and message.get("joined"):
                joined = True
                screen.say(f"first joined region after {watch.passed_s:.1f} s")
            screen.draw(self._table(message))
        broken = watch.early_end(seconds)
        screen.draw([])
        if watch.ended:
            screen.say("stopping …")
        watch.speaker.send_signal(signal.SIGTERM)
        # A second signal skips the comparison, for which a slow machine takes 20 s and more.
        for _ in watch.messages(until=lambda: len(watch.ended) > 1, patience_s=SILENCE_S):
            continue
        screen.say(_report(watch.last, simulated=self._simulated))
        if watch.last.get("rows"):
            screen.say(f"\n{result(terminal_width(sys.stdout))}")
        if seconds is not None and not (broken or watch.ended):
            screen.say("The live pages have ended too. Without --seconds they stay until Ctrl-C.")
        if broken:
            raise click.ClickException(broken)

    def _table(self, message: Message) -> list[str]:
        title = f"regions of the service on its {'simulated ' * self._simulated}GPU, {self._watch.passed_s:.0f} s"
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
        why = f"the service did not end by itself, or ran more than {MOST_EXECUTIONS:,} executions of regions"
        lines.append(folded(f"\nnot compared with the simulator's truth: {why}", width))
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
