"""`gpu-profile analyze`, `classify` and `compare`: results of recordings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpu_profile import __version__
from gpu_profile.cli.options import Finite
from gpu_profile.cli.output import Output
from gpu_profile.cli.progress import Progress
from gpu_profile.errors import UsageError, few

if TYPE_CHECKING:
    from gpu_profile.analysis import Analysis, Comparison
    from gpu_profile.recording import Recording
    from gpu_profile.recording.nccl_inspector import Collective

#: Exit codes of `compare` if a condition holds, and if none does but one cannot be judged.
HOLDS_CODE: Final = 1
UNTOLD_CODE: Final = 3

_RECORDING: Final = click.Path(path_type=Path)
device_option: Final = click.option(
    "--device", "devices", multiple=True, metavar="UUID", help="Devices of executions that name none; repeatable."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_html = click.option("--html", "--report", "html", metavar="PATH", help="Write a page that needs nothing else.")


def read_samples_or_spans(directory: Path) -> Recording:
    """Read a recording. UsageError if it has neither samples nor spans."""
    from gpu_profile.recording import read_recording

    with Progress(f"reading {directory}"):
        recording = read_recording(directory)
    if not recording.samples and not recording.spans:
        why = recording.problems[0] if recording.problems else "its processes recorded nothing"
        raise UsageError(f"{directory}: no samples and no executions in it: {why}")
    return recording


def read_analysis(recording: Recording, devices: tuple[str, ...], collectives: Sequence[Collective] = ()) -> Analysis:
    """The analysis of a recording, with a line of progress."""
    from gpu_profile.analysis import analyse
    from gpu_profile.cli.outcome import no_collection

    with no_collection(), Progress(f"joining {len(recording.spans):,} executions"):
        return analyse(recording, devices=devices, collectives=collectives)


def _collectives(path: Path | None) -> Sequence[Collective]:
    """The collectives in NCCL Inspector's files. Their problems go to stderr."""
    if path is None:
        return ()
    from gpu_profile.recording.nccl_inspector import read_inspector

    with Progress(f"reading {path}"):
        files = read_inspector(path)
    for problem in files.problems:
        click.echo(f"gpu-profile: {problem}", err=True)
    return files.collectives


def _write(target: str, data: bytes) -> None:
    with Output(target) as output:
        if problem := output.write(data):
            raise UsageError(problem)
    click.echo(f"wrote {target}", err=True)


@click.command()
@click.argument("recording", type=_RECORDING)
@_json
@_html
@click.option("--csv", metavar="PATH", help="Write the table of regions as CSV.")
@click.option("--trace", metavar="PATH", help="Write a trace for ui.perfetto.dev.")
@click.option("--nccl", type=_RECORDING, metavar="PATH", help="NCCL Inspector's verbose files of the recorded ranks.")
@click.option("--pprof", "pprof_path", metavar="PATH", help="Write a profile for pprof: GPU time, energy, kernel time.")
@click.option("--otlp-profiles", "otlp_path", metavar="PATH", help="Write the same profile as an OTLP message.")
@device_option
def analyze(
    recording: Path,
    *,
    as_json: bool,
    html: str | None,
    csv: str | None,
    trace: str | None,
    nccl: Path | None,
    pprof_path: str | None,
    otlp_path: str | None,
    devices: tuple[str, ...],
) -> None:
    """Print the regions, devices, energy and verdicts of a RECORDING."""
    from gpu_profile.analysis.profile.values import profile_of
    from gpu_profile.analysis.views.data import of_analysis
    from gpu_profile.analysis.views.page import render_page
    from gpu_profile.analysis.views.perfetto import perfetto_trace
    from gpu_profile.analysis.views.tables import regions_csv
    from gpu_profile.analysis.views.text import render
    from gpu_profile.report.as_json import to_json
    from gpu_profile.report.otlp_profiles import otlp_profiles
    from gpu_profile.report.pprof import pprof
    from gpu_profile.report.table import terminal_width

    source, collectives = read_samples_or_spans(recording), _collectives(nccl)
    analysis = read_analysis(source, devices, collectives)
    title = recording.name or str(recording)
    files: list[tuple[str | None, Callable[[], bytes]]] = [
        (html, lambda: render_page(analysis, title=title, recording=source).encode("utf-8", "xmlcharrefreplace")),
        (csv, lambda: regions_csv(analysis).encode()),
        (trace, lambda: perfetto_trace(source, analysis)),
        (pprof_path, lambda: pprof(profile_of(source, analysis, name=title))),
        (otlp_path, lambda: otlp_profiles(profile_of(source, analysis, name=title), version=__version__)),
    ]
    for target, make in files:
        if target is not None:
            with Progress(f"making {target}"):
                data = make()
            _write(target, data)
    if as_json:
        click.echo(to_json(of_analysis(analysis)))
    elif all(target is None for target, _ in files):
        click.echo(render(analysis, width=terminal_width(sys.stdout)))


@click.command()
@click.argument("recording", type=_RECORDING)
@click.option("--rules", type=_RECORDING, required=True, metavar="FILE", help="TOML with a table [thresholds].")
@_json
@device_option
def classify(recording: Path, *, rules: Path, as_json: bool, devices: tuple[str, ...]) -> None:
    """Judge the regions of a RECORDING anew, with other thresholds."""
    from gpu_profile.analysis import read_thresholds
    from gpu_profile.analysis.views.data import of_verdicts
    from gpu_profile.analysis.views.text import render_verdicts
    from gpu_profile.report.as_json import to_json
    from gpu_profile.report.table import terminal_width

    thresholds = read_thresholds(rules)
    analysis = read_analysis(read_samples_or_spans(recording), devices)
    verdicts = [use.judge(thresholds) for use in analysis.regions]
    if as_json:
        click.echo(to_json(of_verdicts(analysis, verdicts)))
    else:
        click.echo(render_verdicts(analysis, verdicts, width=terminal_width(sys.stdout)))


def _compared(a: Path, b: Path, run_to_run: float | None, devices: tuple[str, ...]) -> Comparison:
    """The comparison of two recordings."""
    from gpu_profile.analysis import compare as compare_analyses
    from gpu_profile.analysis.comparison.differences import RUN_TO_RUN
    from gpu_profile.cli.outcome import no_collection

    with no_collection():
        recordings = read_samples_or_spans(a), read_samples_or_spans(b)
    unknown = [uuid for uuid in devices if not any(uuid in recording.samples for recording in recordings)]
    if unknown:
        raise UsageError(f"neither recording has samples of {few(unknown)}")
    both = [read_analysis(recording, tuple(d for d in devices if d in recording.samples)) for recording in recordings]
    with no_collection():
        return compare_analyses(*both, run_to_run=RUN_TO_RUN if run_to_run is None else run_to_run)


def _compared_runs(a: Path, b: Path, run_to_run: float | None, devices: tuple[str, ...]) -> Comparison:
    """The comparison of two files with the costs of runs."""
    from gpu_profile.analysis.costs import compare_runs, read_runs

    if devices:
        raise UsageError("--device: costs of runs are of the engine's GPUs; leave the option out")
    try:
        sides = [read_runs(path.read_text(encoding="utf-8", errors="replace"), str(path)) for path in (a, b)]
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return compare_runs(*sides, run_to_run=run_to_run or 0.0)


@click.command(short_help="Compare the regions of two recordings, or the costs of runs.")
@click.argument("a", type=_RECORDING)
@click.argument("b", type=_RECORDING)
@click.option("--fail-on", "conditions", multiple=True, metavar="CONDITION", help="Such as 'decode.energy > +5%'.")
@click.option(
    "--run-to-run",
    type=Finite(0, 100),
    metavar="PERCENT",
    help="By how much runs of one program differ as a whole: a standard deviation. Of recordings 2, of costs 0.",
)
@_json
@_html
@device_option
def compare(
    a: Path,
    b: Path,
    *,
    conditions: tuple[str, ...],
    run_to_run: float | None,
    as_json: bool,
    html: str | None,
    devices: tuple[str, ...],
) -> int:
    """Print the differences of the regions of two recordings, or of the costs of runs in two files, B from A.

    Exits with 1 if a --fail-on condition holds in the change's whole interval, else with 3 if one cannot be judged.
    """
    from gpu_profile.analysis import Outcome, parse_gate
    from gpu_profile.analysis.comparison.data import of_comparison
    from gpu_profile.analysis.comparison.page import render_page
    from gpu_profile.analysis.comparison.text import judgement, render_comparison
    from gpu_profile.report.as_json import to_json
    from gpu_profile.report.table import terminal_width

    gates = [parse_gate(condition) for condition in conditions]
    share = None if run_to_run is None else run_to_run / 100
    # A pipe, as of a shell's <(...), has the text of runs too.
    compared = _compared if a.is_dir() or b.is_dir() else _compared_runs
    comparison = compared(a, b, share, devices)
    judged = [(gate, difference, gate.judge(difference)) for gate in gates for difference in [gate.find(comparison)]]
    if html is not None:
        page = render_page(comparison, judged, names=(str(a), str(b)))
        _write(html, page.encode("utf-8", "xmlcharrefreplace"))
    if as_json:
        click.echo(to_json(of_comparison(comparison, judged)))
    elif html is None:
        click.echo(render_comparison(comparison, judged, width=terminal_width(sys.stdout)))
    if as_json or html is not None:  # the log of a failed build must name the condition
        for each in judged:
            if each[-1] is not Outcome.NOT:
                click.echo(f"gpu-profile: {judgement(*each)}", err=True)
    outcomes = {outcome for _, _, outcome in judged}
    if Outcome.HOLDS in outcomes:
        return HOLDS_CODE
    return UNTOLD_CODE if Outcome.UNTOLD in outcomes else 0
