"""`%%gpu_profile`: measures a notebook's cell and the regions in it.

`%load_ext gpu_profile` registers the magic. Only IPython loads this module.
"""

from __future__ import annotations

import argparse
import ast
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from pathlib import Path
from types import CodeType
from typing import Any, Final, NoReturn

import IPython.display
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.views.text import about, reasons, region_table, render_regions
from gpu_profile.errors import GpuProfileError
from gpu_profile.monitor import GpuMonitor
from gpu_profile.monitor.gpu_summary import GpuSummary
from gpu_profile.recording import read_recording
from gpu_profile.regimes.palette import COLOURS
from gpu_profile.regions.region import region
from gpu_profile.regions.session import process
from gpu_profile.regions.session.recorder import Recorder, driver_of
from gpu_profile.report.table import REGIME, WHOSE_JOULES

#: Shows a value under the cell.
display: Callable[[object], object] = IPython.display.display
#: Colours of regimes, for light and dark backgrounds.
_COLOURS: Final = {str(regime): colour.either for regime, colour in COLOURS.items()}
_WORDS: Final = ("region", "device", REGIME, "name")
_MOST_LINES: Final = 8


@dataclass(frozen=True)
class CellReport:
    """The result of a cell: its devices and its regions. If `analysis` is None, `problem` says why."""

    summaries: tuple[GpuSummary, ...]
    analysis: Analysis | None
    problem: str = ""

    def __repr__(self) -> str:
        parts = [summary.format() for summary in self.summaries]
        if self.analysis is not None and self.analysis.regions:
            parts.append(render_regions(self.analysis))
        return "\n\n".join([*parts, *([f"gpu-profile: {self.problem}"] if self.problem else [])])

    def _repr_html_(self) -> str:
        parts = [_devices(self.summaries)] if self.summaries else []
        if self.analysis is not None and self.analysis.regions:
            parts += [_regions(self.analysis), _steps(self.analysis)]
        if self.problem:
            parts.append(f"<p>gpu-profile: {escape(self.problem)}</p>")
        return "<div>" + "".join(parts) + "</div>"


def _devices(summaries: Sequence[GpuSummary]) -> str:
    columns = ("device", "name", "duration", "GPU busy", "busy time", "memory, most", "power", "energy", "covered", "")
    rows = [
        (
            str(each.device),
            each.name,
            f"{each.duration_s:.2f} s",
            _value(each.util_gpu_mean, "%"),
            _value(each.busy_time_est_s, "s", 2),
            _value(each.mem_used_max_mb, "MiB", 0),
            _value(each.power_mean_w, "W"),
            _value(each.energy_j, "J"),
            f"{each.coverage:.0%}",
            each.sparkline,
        )
        for each in summaries
    ]
    notes = "".join(
        f"<p><small>GPU {escape(str(s.device))}: {escape(s.notes)}</small></p>" for s in summaries if s.notes
    )
    if any(each.energy_j is not None or each.power_mean_w is not None for each in summaries):
        notes += f"<p><small>{escape(WHOSE_JOULES)}</small></p>"
    return _table(columns, rows) + notes


def _value(value: float | None, unit: str, digits: int = 1) -> str:
    return "–" if value is None else f"{value:,.{digits}f} {unit}"


def _regions(analysis: Analysis) -> str:
    columns, rows = region_table(analysis)
    return _table(columns, rows) + "".join(f"<p><small>{escape(line)}</small></p>" for line in about(analysis, rows))


def _steps(analysis: Analysis) -> str:
    steps = dict.fromkeys(
        f"<b>{escape(use.summary.region)}</b>: {escape(use.verdict.advice)}"
        for use in analysis.regions
        if use.verdict.advice
    )
    untold = [f"<small>{escape(line)}</small>" for line in reasons(analysis, regions_only=True)]
    lines = [*steps, *untold[:_MOST_LINES]]
    return f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th{_align(column)}>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(_cell(column, cell) for column, cell in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _align(column: str) -> str:
    return ' style="text-align:left"' if column in _WORDS else ""


def _cell(column: str, cell: str) -> str:
    if column == REGIME and (colour := _COLOURS.get(cell.split(" ", maxsplit=1)[0])):
        return f'<td style="text-align:left;color:{colour};font-weight:600">{escape(cell)}</td>'
    return f"<td{_align(column)}>{escape(cell)}</td>"


class _Line(argparse.ArgumentParser):
    """The parser of the arguments of `%%gpu_profile`. An error is one line for the user."""

    def __init__(self) -> None:
        super().__init__(prog="%%gpu_profile", add_help=False, allow_abbrev=False)
        self.add_argument("--device", action="append")
        self.add_argument("--interval", type=float, default=0.05)
        self.add_argument("--backend")
        self.add_argument("--name", default="cell")
        self.add_argument("--out", "-o")

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, where argparse would end the process."""
        raise UsageError(f"%%gpu_profile: {message}; its options are --device, --interval, --backend, --name, --out")


@magics_class
class GpuProfileMagics(Magics):
    """`%%gpu_profile`."""

    @cell_magic
    def gpu_profile(self, line: str, cell: str) -> None:
        """Run the cell and show the use of the GPU.

        --device D     CUDA ordinal, nvml:N or UUID; may be repeated (default: 0)
        --interval S   seconds between readings (default: 0.05)
        --backend B    as in configure(backend=...); holds for later cells too
        --name NAME    name of the cell's own region (default: cell)
        --out NAME     a variable for the analysis of the cell's regions

        The cell is a region and may contain others. It always runs, with or without a GPU. Its exceptions pass through
        after the result is shown.
        """
        parser = _Line()
        try:
            asked = parser.parse_args(shlex.split(line))
        except ValueError as error:
            parser.error(str(error))
        devices: list[int | str] = [int(d) if d.isdecimal() else d for d in asked.device or ["0"]]
        try:
            if asked.backend and asked.backend != process.settings().spec:
                _configure(asked.backend)
            monitor = GpuMonitor(device=devices, interval_s=asked.interval, strict=False)
        except (ValueError, GpuProfileError) as error:
            raise UsageError(f"%%gpu_profile: {error}") from None
        if asked.out and not asked.out.isidentifier():
            raise UsageError(f"%%gpu_profile: --out is the name of a variable, not {asked.out!r}")
        if self.shell is None:
            raise UsageError("%%gpu_profile needs a running IPython")
        run = _compiled(self.shell, cell)
        with tempfile.TemporaryDirectory(prefix="gpu-profile-") as place:
            directory = Path(place)
            try:
                with _recorded(directory), monitor, region(asked.name):
                    run()
            finally:
                report = _report(monitor, directory)
                if asked.out:
                    self.shell.user_ns[asked.out] = report.analysis
                # The cell's output comes before the report, even if the cell ends with an exception.
                sys.stdout.flush()
                display(report)


def _configure(backend: str) -> None:
    current = process.settings()
    process.configure(**{field.name: getattr(current, field.name) for field in fields(current)} | {"backend": backend})


def _compiled(shell: Any, cell: str) -> Callable[[], None]:
    """A function that runs the cell as IPython does and shows its last expression. Raises SyntaxError."""
    text = shell.transform_cell(cell)
    tree = shell.transform_ast(shell.compile.ast_parse(text))
    name = shell.compile.cache(text, shell.execution_count, raw_code=cell)
    parts: list[CodeType] = []
    last = tree.body[-1:] if tree.body and isinstance(tree.body[-1], ast.Expr) and not _quiet(cell) else []
    body = tree.body[: len(tree.body) - len(last)]
    if body:
        parts.append(shell.compile(ast.Module(body, []), name, "exec"))
    if last:
        parts.append(shell.compile(ast.Interactive(last), name, "single"))

    def run() -> None:
        for part in parts:
            exec(part, shell.user_ns)  # noqa: S102 - the user's own cell, in the user's own notebook

    return run


def _quiet(cell: str) -> bool:
    """Whether the cell ends with a semicolon: IPython then shows no value."""
    return cell.rstrip().endswith(";")


def _report(monitor: GpuMonitor, directory: Path) -> CellReport:
    """The report of the cell. An error of the analysis goes into it, so as not to hide the cell's own exception."""
    try:
        return CellReport(monitor.summaries, analyse(read_recording(directory)))
    except GpuProfileError as error:
        return CellReport(monitor.summaries, None, str(error).replace(str(directory), "the cell"))


@contextmanager
def _recorded(directory: Path) -> Iterator[None]:
    """A block in which the process's session is recorded into `directory`."""
    session = process.session()
    driver, devices_of = partial(driver_of, session), session.joiner.devices_of
    recorder = Recorder(directory, clock=session.clock, driver=driver, devices_of=devices_of)
    hooks: list[tuple[list[Any], Callable[..., None]]] = [
        (session.sampler.sinks, recorder.take),
        (session.sampler.event_sinks, recorder.take_event),
        (session.joiner.on_end, recorder.take_ended),
        (session.joiner.on_settled, recorder.take_settled),
    ]
    recorder.open()
    for hook, call in hooks:
        hook.append(call)
    try:
        yield
        session.flush()
    finally:
        for hook, call in hooks:
            hook.remove(call)
        recorder.close()


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpu_profile`."""
    shell.register_magics(GpuProfileMagics)
