"""`gpu-profile query`: questions in SQL on recordings, and the same questions as views for a fleet's ClickHouse."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.analysis import device_option, read_analysis, read_samples_or_spans
from gpu_profile.errors import GpuProfileError, UsageError, few

if TYPE_CHECKING:
    from gpu_profile.analysis.fleet import RecordedRun

#: The forms of an answer on standard output.
FORMS: Final = ("table", "csv", "json")
#: The first words of statements that return rows.
_SQL: Final = ("select", "with", "from", "values", "describe", "show", "summarize", "pivot", "(")
#: Why the answer to a question has no rows.
_EMPTY: Final = {
    "regressions": "two versions are needed: gpu-profile query regressions old=RUN1 old=RUN2 new=RUN3 …",
    "stragglers": "no recording has regions of several ranks of a job",
    "tenants": "recordings have no tenants: the exporter's metrics have them (docs/fleet-sql.md)",
}
#: The most reasons of a recording that are printed. `analyze` prints all.
_NOTES: Final = 3


@click.command()
@click.argument("question", required=False, metavar="[QUESTION|SQL]")
@click.argument("recordings", nargs=-1, metavar="[VERSION=]RECORDING...")
@click.option("--list", "as_list", is_flag=True, help="Print the questions and their columns.")
@click.option("--format", "form", type=click.Choice(FORMS), default="table", show_default=True, help="Of the answer.")
@click.option("--out", type=click.Path(path_type=Path), metavar="PATH", help="Write .parquet, .csv or .json instead.")
@device_option
@click.option("--clickhouse", is_flag=True, help="Print the questions as views for a Collector's ClickHouse.")
@click.option("--database", default="default", show_default=True, metavar="NAME", help="The Collector's database.")
@click.option("--days", type=click.IntRange(1, 3650), default=7, show_default=True, help="How far the views look back.")
def query(
    question: str | None,
    recordings: tuple[str, ...],
    *,
    as_list: bool,
    form: str,
    out: Path | None,
    devices: tuple[str, ...],
    clickhouse: bool,
    database: str,
    days: int,
) -> None:
    """Answer a QUESTION, or any SQL, on recordings. The recordings of a version are its runs."""
    from gpu_profile.report.table import terminal_width

    if as_list or clickhouse:
        if question:
            raise UsageError(f"{'--list' if as_list else '--clickhouse'} takes no question and no recordings")
        if as_list:
            from gpu_profile.analysis.fleet.answer_text import listed

            click.echo(listed(terminal_width(sys.stdout)))
        else:
            from gpu_profile.analysis.fleet.clickhouse import views

            click.echo(views(database, days))
        return
    sql = _sql(question or "")
    if not recordings:
        raise UsageError("query: no recording given: gpu-profile query QUESTION RECORDING...")

    from gpu_profile.analysis.fleet.answer_text import as_csv, as_json, as_table
    from gpu_profile.analysis.fleet.engine import FleetEngine
    from gpu_profile.analysis.fleet.tables import tables_of

    runs = [*_runs(recordings, devices)]
    if unknown := [
        uuid for uuid in devices if not any(uuid == use.device.uuid for r in runs for use in r.analysis.devices)
    ]:
        raise UsageError(f"--device: no recording has samples of {few(unknown)}")
    engine = FleetEngine(tables_of(runs))
    engine.check(sql)
    if out is not None:
        rows = engine.write(sql, out)
        click.echo(f"wrote {out}", err=True)
    else:
        answer = engine.answer(sql)
        rows = len(answer.rows)
        if form == "table":
            click.echo(as_table(answer, terminal_width(sys.stdout)))
        else:
            click.echo((as_csv if form == "csv" else as_json)(answer).rstrip("\n"))
    if not rows and question in _EMPTY:
        _note(f"{question}: {_EMPTY[question]}")


def _sql(question: str) -> str:
    """The SQL of a question, or the SQL itself."""
    from gpu_profile.analysis.fleet import QUESTIONS

    if question in QUESTIONS:
        return QUESTIONS[question].sql
    if len(question.split()) > 1 and question.lower().lstrip().startswith(_SQL):
        return question
    raise UsageError(f"{question[:60] or 'query'}: no question: {few(QUESTIONS)}, or SQL such as 'SELECT …'")


def _runs(recordings: Sequence[str], devices: tuple[str, ...]) -> Iterator[RecordedRun]:
    """Each recording's analysis, once. One that cannot be read has a line; UsageError if none can."""
    from gpu_profile.analysis.fleet import RecordedRun

    failures = list[GpuProfileError]()
    places = {_version_and_path(argument)[1].resolve() for argument in recordings}
    left = set(places)
    for argument in recordings:
        version, path = _version_and_path(argument)
        if (place := path.resolve()) not in left:
            _note(f"left out: {argument}: this recording was given before")
            continue
        left.remove(place)
        try:
            recording = read_samples_or_spans(path)
            analysis = read_analysis(recording, tuple(each for each in devices if each in recording.samples))
        except GpuProfileError as error:
            failures.append(error)
            if len(failures) == len(places):
                raise
            _note(f"left out: {error}")
            continue
        for reason in analysis.notes[:_NOTES]:
            _note(f"{path}: {reason}")
        if len(analysis.notes) > _NOTES:
            _note(f"{path}: {len(analysis.notes) - _NOTES} more notes: gpu-profile analyze {path}")
        yield RecordedRun(str(path), version, analysis)


def _version_and_path(argument: str) -> tuple[str, Path]:
    """The parts of `VERSION=RECORDING`. A path with such a name has none."""
    version, equals, path = argument.partition("=")
    return ("", Path(argument)) if not equals or Path(argument).exists() else (version, Path(path))


def _note(text: str) -> None:
    click.echo(f"gpu-profile: {text}", err=True)
