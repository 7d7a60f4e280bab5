"""`gpu-profile kernels TRACE`: sums of the GPU operations of a saved trace by region, and the regions' regimes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpu_profile.cli.output import Output
from gpu_profile.cli.progress import Progress
from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from gpu_profile.kernels.records import RangeCounters, Record
    from gpu_profile.kernels.trace import Trace
    from gpu_profile.kernels.views import KernelReport

#: Paths stay text as far as `Trace`, because `Path` makes no difference between `./-`, a file, and `-`, standard input.
_FILE: Final = click.Path()
_STDIN: Final = "-"


@click.command(short_help="Sum up the GPU operations of a PyTorch trace, by region.")
@click.argument("trace", type=_FILE)
@click.option("--region", metavar="NAME", help="This region only, in detail: as text, JSON or CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="PATH", help="Write a page that needs nothing else.")
@click.option("--csv", metavar="PATH", help="Write a row for each region and kernel as CSV.")
@click.option("--perfetto", metavar="PATH", help="Write a trace for ui.perfetto.dev.")
@click.option("--counters", type=_FILE, metavar="TRACE", help="Hardware counters of another run of the same program.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="Kernels by their time, at most.")
def kernels(
    trace: str,
    *,
    region: str | None,
    as_json: bool,
    html: str | None,
    csv: str | None,
    perfetto: str | None,
    counters: str | None,
    top: int,
) -> None:
    """Sum up the GPU operations of a trace that PyTorch's profiler saved, by region.

    TRACE is a Chrome trace, .json or .json.gz, or - for standard input. If it is damaged, the readable part is shown,
    and the exit code is 2. Of a folder with the traces of a run's ranks, each is shown, and the slowest is named.
    """
    if trace == counters == _STDIN:
        raise UsageError("-: standard input can be read once: give a file as TRACE or --counters")
    if trace != _STDIN and Path(trace).is_dir():
        given = {"--region": region, "--html": html, "--csv": csv, "--perfetto": perfetto, "--counters": counters}
        if one := [name for name, value in given.items() if value is not None]:
            raise UsageError(f"{trace}: {', '.join(one)} is for one trace, not for a folder: name one of its files")
        _folder(Path(trace), as_json=as_json, top=top)
        return
    source, report, problems = _read(trace, None if counters is None else _counted(counters))
    if report.activity is None and not report.on_host:
        raise problems[0] if problems else UsageError(f"{trace}: {_nothing(report, source)}")
    if region is not None:
        report.region(region)  # before anything is written
    wrote = _files(report, source, html=html, csv=csv, perfetto=perfetto, region=region)
    if as_json:
        click.echo(_json(report, source, region, top))
    elif not wrote:
        from gpu_profile.kernels.render.text import render
        from gpu_profile.report.table import terminal_width

        click.echo(render(report, region=region, top=top, width=terminal_width(sys.stdout)))
        for reason, count in sorted(source.skipped.items()):
            click.echo(f"left out: {count:,} events ({reason})")
    if problems:
        raise UsageError(f"{problems[0]}; the output covers the part before")


def _read(path: str | Path, counted: list[RangeCounters] | None = None) -> tuple[Trace, KernelReport, list[UsageError]]:
    """A trace with its report, and the reason why it ends early, if it does."""
    from gpu_profile.cli.outcome import no_collection
    from gpu_profile.kernels.trace import Trace
    from gpu_profile.kernels.views import report_of

    source = Trace(path)
    problems: list[UsageError] = []
    with no_collection(), Progress(f"reading {path}", lambda: source.read_share):
        report = report_of(_until_problem(source, problems), source=str(path), counted=counted)
    return source, replace(report, cut=str(problems[0])) if problems else report, problems


def _folder(folder: Path, *, as_json: bool, top: int) -> None:
    """Show the traces of a run's ranks: which one is the slowest, a table of all, and each by itself."""
    from gpu_profile.kernels import ranks
    from gpu_profile.kernels.render.document import document
    from gpu_profile.kernels.render.ranks import render_ranks, slowest_document
    from gpu_profile.kernels.render.text import render
    from gpu_profile.report.as_json import to_json
    from gpu_profile.report.table import printable, terminal_width

    width = terminal_width(sys.stdout)
    sums, shown, left_out = list[ranks.RankSums](), list[Any](), list[str]()
    for path in ranks.traces_in(folder):
        source, report, problems = _read(path)
        left_out += map(str, problems)
        if report.activity is None:
            left_out += [] if problems else [f"{path}: {_nothing(report, source)}"]
            continue
        number = ranks.number_of(path, source.rank)
        sums.append(ranks.RankSums(path.name, report.activity, report.kernels, report.cut, number))
        # The report itself, with all records of the rank, is not kept.
        if as_json:
            shown.append(document(report, top=top) | {"skipped": dict(source.skipped)})
        else:
            shown.append(render(report, top=top, width=width))
    sums = ranks.named(sums)
    by_rank = dict(zip([each.rank for each in sums], shown, strict=True))
    sums = ranks.in_order(sums)
    slowest = ranks.slowest(sums)
    if as_json:
        every = [{"rank": each.rank, **by_rank[each.rank]} for each in sums]
        whole: dict[str, Any] = {"schema_version": 1, "source": str(folder), **slowest_document(slowest)}
        click.echo(to_json(whole | {"ranks": every, "problems": left_out}))
    else:
        click.echo(render_ranks(sums, slowest, incomplete=left_out, width=width))
        for each in sums:
            click.echo(f"\n── rank {printable(each.rank)} ──\n{by_rank[each.rank]}")
    if left_out:
        more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
        raise UsageError(f"{left_out[0]}{more}; the output covers the rest")


def _nothing(report: KernelReport, source: Trace) -> str:
    """The cause and the remedy for a trace without operations."""
    if report.counted is not None:
        return "only hardware counters in it: give it as --counters with a trace of the same program"
    left_out = ", ".join(f"{count:,} events left out: {reason}" for reason, count in sorted(source.skipped.items()))
    left_out = f" ({left_out})" if left_out else ""
    return f"no GPU operations in it{left_out}: record it with ProfilerActivity.CUDA"


def _files(
    report: KernelReport, source: Trace, *, html: str | None, csv: str | None, perfetto: str | None, region: str | None
) -> bool:
    """Write the requested files. Returns whether there was any."""
    from gpu_profile.kernels.views import as_file

    left_out = {f"events left out ({reason})": count for reason, count in sorted(source.skipped.items())}
    asked = {".html": html, ".csv": csv, ".pftrace": perfetto}
    for form, target in asked.items():
        if target is None:
            continue
        with Output(target) as output:
            with Progress(f"making {target}"):
                data = as_file(
                    report, form, title=source.path.name, notes=left_out, region=region, base_ns=source.base_ns
                )
            if problem := output.write(data):
                raise UsageError(problem)
        click.echo(f"wrote {target}", err=True)
    return any(target is not None for target in asked.values())


def _json(report: KernelReport, source: Trace, region: str | None, top: int) -> str:
    from gpu_profile.kernels.render.document import document
    from gpu_profile.report.as_json import to_json

    return to_json(document(report, region=region, top=top) | {"skipped": dict(source.skipped)})


def _until_problem(trace: Trace, problems: list[UsageError]) -> Iterator[Record]:
    try:
        yield from trace
    except UsageError as problem:
        problems.append(problem)


def _counted(path: str) -> list[RangeCounters]:
    from gpu_profile.kernels.records import RangeCounters
    from gpu_profile.kernels.trace import Trace

    counters = [record for record in Trace(path) if isinstance(record, RangeCounters)]
    if not counters:
        raise UsageError(
            f"{Path(path).name}: no hardware counters in it: record them with PyTorch's profiler_metrics, which not "
            "every build has, or with gpu_profile.kernels.sample_counters"
        )
    return counters
