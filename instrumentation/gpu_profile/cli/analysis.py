"""`gpu-profile analyze`, `classify` and `compare`: what recordings say."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from gpu_profile.analysis import (
    Analysis,
    Outcome,
    analyse,
    parse_gate,
    read_thresholds,
)
from gpu_profile.analysis import (
    compare as compare_analyses,
)
from gpu_profile.analysis.data import of_analysis, of_comparison, of_verdicts, to_json
from gpu_profile.analysis.page import render_page
from gpu_profile.analysis.text import judgement, render, render_comparison, render_verdicts
from gpu_profile.errors import UsageError
from gpu_profile.recording import Recording, read_recording
from gpu_profile.regimes import classify as judge

#: What `compare` ends with if a condition holds, and if none does but one cannot be judged.
HOLDS_CODE: Final = 1
UNTOLD_CODE: Final = 3

_RECORDING: Final = click.Path(path_type=Path)
_device = click.option(
    "--device", "devices", multiple=True, metavar="UUID", help="Where executions ran that name no device; repeatable."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without looks for garbage: analyses make very many objects that live to the end, and a fifth of the time goes."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _read(directory: Path) -> Recording:
    """UsageError if there is nothing in it that could be analysed."""
    found = read_recording(directory)
    if not found.samples and not found.spans:
        why = found.problems[0] if found.problems else "its processes recorded nothing"
        raise UsageError(f"{directory}: no samples and no executions in it: {why}")
    return found


def _analysis(recording: Path, devices: tuple[str, ...]) -> Analysis:
    with _no_collection():
        return analyse(_read(recording), devices=devices)


@click.command()
@click.argument("recording", type=_RECORDING)
@_json
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page that needs nothing else.")
@_device
def analyze(recording: Path, *, as_json: bool, html: Path | None, devices: tuple[str, ...]) -> None:
    """Print the regions, devices, energy and verdicts of a RECORDING."""
    found = _analysis(recording, devices)
    if html is not None:
        page = render_page(found, title=recording.name or str(recording))
        try:
            html.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
        except OSError as error:
            raise UsageError(f"{html}: cannot be written: {error.strerror}") from error
        click.echo(f"wrote {html}", err=True)
    if as_json:
        click.echo(to_json(of_analysis(found)))
    elif html is None:
        click.echo(render(found))


@click.command()
@click.argument("recording", type=_RECORDING)
@click.option("--rules", type=_RECORDING, required=True, metavar="FILE", help="TOML with a table [thresholds].")
@_json
@_device
def classify(recording: Path, *, rules: Path, as_json: bool, devices: tuple[str, ...]) -> None:
    """Judge the regions of a RECORDING anew, with other thresholds."""
    thresholds = read_thresholds(rules)
    found = _analysis(recording, devices)
    verdicts = [judge(use.summary.evidence, thresholds) for use in found.regions]
    click.echo(to_json(of_verdicts(found, verdicts)) if as_json else render_verdicts(found, verdicts))


@click.command()
@click.argument("a", type=_RECORDING)
@click.argument("b", type=_RECORDING)
@click.option("--fail-on", "conditions", multiple=True, metavar="CONDITION", help="Such as 'decode.energy > +5%'.")
@_json
@_device
def compare(a: Path, b: Path, *, conditions: tuple[str, ...], as_json: bool, devices: tuple[str, ...]) -> int:
    """Print how the regions of recording B differ from those of A.

    Exits with 1 if a --fail-on condition holds beyond the change's 95 % interval, else with 3 if one cannot be judged.
    """
    gates = [parse_gate(condition) for condition in conditions]
    with _no_collection():
        recordings = _read(a), _read(b)
    unknown = [uuid for uuid in devices if not any(uuid in recording.samples for recording in recordings)]
    if unknown:
        raise UsageError(f"neither recording has samples of {', '.join(unknown)}")
    with _no_collection():
        both = [analyse(recording, devices=[d for d in devices if d in recording.samples]) for recording in recordings]
        comparison = compare_analyses(*both)
    judged = [(gate, found, gate.judge(found)) for gate in gates for found in [gate.find(comparison)]]
    click.echo(to_json(of_comparison(comparison, judged)) if as_json else render_comparison(comparison, judged))
    for each in judged:
        if each[-1] is not Outcome.NOT:  # what makes a build fail is also where its log is looked at
            click.echo(f"gpu-profile: {judgement(*each)}", err=True)
    outcomes = {outcome for _, _, outcome in judged}
    if Outcome.HOLDS in outcomes:
        return HOLDS_CODE
    return UNTOLD_CODE if Outcome.UNTOLD in outcomes else 0
