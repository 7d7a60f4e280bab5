"""A report as one HTML page that works offline: a timeline to zoom into, then the time by cause and by region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from gpu_profile.kernels.activity import Activity, evidence
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render import cells, text
from gpu_profile.kernels.render.counters import counter_table
from gpu_profile.kernels.render.drawing import MOST_NAMES, MOST_REGIONS, NAME, WIDTH, timeline
from gpu_profile.kernels.render.names import labels, middle
from gpu_profile.kernels.report import ReportData
from gpu_profile.kernels.sums import longest_first
from gpu_profile.regimes import Regime, Verdict, classify
from gpu_profile.report import page
from gpu_profile.report.table import printable
from gpu_profile.units import counted, percent

_MOST_CARDS: Final = 48
_MOST_KERNELS: Final = 40
_MOST_ROWS: Final = 200
#: The least share of a bar that has room for words.
_READABLE: Final = 0.13
_BELONG: Final = "Operations belong to the region that launched them"
_HINTS: Final = (
    "<kbd>n</kbd> <kbd>p</kbd> next and previous block. A name in the tables beneath shows where it ran. "
    "Pale blocks are many short operations."
)


def render_page(report: ReportData, *, title: str, notes: Mapping[str, int] | None = None) -> str:
    """The whole page. `notes` counts, by reason, what the reader of the records left out."""
    drawn = timeline(report)
    place = _places(report, drawn)
    regimes = {regime for entry in (drawn or {"regions": []})["regions"] for regime in entry["regimes"]}
    # A single colour for everything carries no information.
    by = "regime" if len(regimes - {"UNKNOWN"}) > 1 else "region"
    causes = report.causes
    body = [
        *(f'<p role="alert"><strong>{escape(line)}</strong></p>' for line in text.cut(report)),
        f"<p>{escape(_headline(report))}</p>",
        *_tiles(report, causes=causes),
        *_timeline(drawn, by, regimes),
        *_whole(report.activity, causes=causes),
        *_regions(report, place, causes=causes),
        *_cards(report, place, causes=causes),
        *_kernels(report, place),
        *_section("Copies", cells.copies_table(_everything(report), one=False)),
        *_section("Memory", cells.memory_table(_everything(report), one=False)),
        *_section("Hardware counters", counter_table(_everything(report), one=False)),
        *_notes(report, notes or {}),
    ]
    return page.document(printable(title), body, by=by, drawn=drawn, script=page.asset(__package__, "kernels.js"))


def _places(report: ReportData, drawn: Mapping[str, Any] | None) -> dict[tuple[bool, str], int]:
    """The number of each block's name in the timeline: of regions by name, of operations by label."""
    if drawn is None:
        return {}
    regions = {(True, each.name): i for i, each in enumerate(cells.chosen(report.regions, MOST_REGIONS))}
    others = {(False, entry["name"]): i for i, entry in enumerate(drawn["regions"]) if entry["what"] != "region"}
    return regions | others


def _called(region: RegionKernels) -> str:
    return middle(printable(region.name), NAME) or cells.OUTSIDE


def _everything(report: ReportData) -> list[RegionKernels]:
    regions = cells.chosen(report.regions, _MOST_ROWS)
    return regions if report.outside is None else [*regions, report.outside]


# ---------------------------------------------------------------------- at a glance


def _headline(report: ReportData) -> str:
    if report.activity is None:
        return text.on_host(report)
    verdict = classify(evidence(report.activity))
    return f"{verdict.regime}: {verdict.explanation}"


def _tiles(report: ReportData, *, causes: bool) -> Iterator[str]:
    a = report.activity
    if a is None:
        return
    of = "the span" if len(a.devices) == 1 else f"the span × {len(a.devices)} devices"
    wait = a.idle.host_wait_ns if causes else None
    kernels = sum(each.count for each in report.kernels.values())
    tiles = [
        (cells.time(a.span_ns), "span, first to last GPU operation"),
        (cells.share(a.busy_ns, a.device_ns), f"of {of}: GPU busy"),
        (cells.share(wait, a.device_ns), f"of {of}: waiting for the host"),
        (f"{kernels:,}", f"kernel{'s' * (kernels != 1)}, mean {cells.time(a.mean_kernel_ns)}"),
        (cells.time(a.copy_ns), "copies"),
    ]
    if a.communication_ns:
        tiles.append(
            (cells.time(a.communication_ns), f"communication, {cells.ratio(a.overlap_ratio)} of it overlapped")
        )
    yield page.tiles(tiles)


def _timeline(drawn: Mapping[str, Any] | None, by: str, regimes: set[str]) -> Iterator[str]:
    if drawn is None:
        return
    yield page.TIMELINE
    yield page.toolbar(by)
    for place, group in enumerate(drawn["groups"]):
        what = "execution" if group["title"] == "Host" else "operation"
        words = counted(sum(lanes["executions"] for lanes in group["lanes"]), what)
        yield page.group(place, group["title"], words)
    yield page.legend(regimes, _HINTS)


# ---------------------------------------------------------------------- where the time went


def _whole(a: Activity | None, *, causes: bool) -> Iterator[str]:
    if a is None or not a.device_ns:
        return
    of = "the span" if len(a.devices) == 1 else f"the span times {len(a.devices)} devices"
    verdict = classify(evidence(a))
    yield f"<section><h2>Where the time went</h2>{_bar(a, a.device_ns, causes=causes)}"
    yield f"<p>Shares of {of}, {cells.time(a.device_ns)}. {escape(_verdict(verdict))}</p></section>"


def _verdict(verdict: Verdict) -> str:
    if verdict.regime is Regime.UNKNOWN:
        return f"UNKNOWN: {verdict.rule}."
    next_one = "" if verdict.runner_up is None else f"; next nearest: {verdict.runner_up}"
    return f"{verdict.regime}, confidence {percent(verdict.confidence, 0)}: {verdict.rule}{next_one}."


def _parts(of: Activity | RegionKernels, *, causes: bool) -> Iterator[tuple[str, str, int]]:
    """The parts of a span (times its devices), as far as they are recorded: colour, label and ns. They add up to it."""
    idle = of.idle.by_cause(causes=causes)
    launch = idle["launch"] or 0
    parts = (
        ("busy", "work", of.work_ns),
        ("r-COMMUNICATION_BOUND", "communication that no kernel hides", of.exposed_communication_ns),
        ("r-TRANSFER_BOUND", "copies over a link that nothing hides", of.exposed_transfer_ns),
        ("r-IDLE", "only others' operations", of.others_ns if isinstance(of, RegionKernels) else 0),
        ("r-HOST_BOUND", "waiting for the host", (idle["host_wait"] or 0) - launch),
        ("r-OVERHEAD_BOUND", "waiting for the host: launching", launch),
        ("r-LATENCY_BOUND", "waiting between kernels", idle["kernel_wait"]),
        ("r-MEMORY_BOUND", "waiting for something else", idle["other"]),
        ("", "idle, cause not in the trace", idle["unknown"]),
    )
    yield from ((colour, label, ns) for colour, label, ns in parts if ns)


def _bar(of: Activity | RegionKernels, whole: int, *, causes: bool) -> str:
    parts = []
    for colour, label, ns in _parts(of, causes=causes):
        # Also in a region's card: a part has its own colour, independent of the colours of regions.
        style = f"--of-regime:var(--{colour});--of-region:var(--{colour})" if colour else ""
        share = cells.share(ns, whole)
        parts.append(page.BarPart(ns / whole, share, f"{label} {cells.time(ns)} ({share})", style, rest=not colour))
    return page.bar(parts, least=_READABLE)


# ---------------------------------------------------------------------- regions


def _regions(report: ReportData, place: Mapping[tuple[bool, str], int], *, causes: bool) -> Iterator[str]:
    shown = _everything(report)
    if not shown:
        return
    table = cells.region_table(shown, on_host=report.on_host, causes=causes)
    names = [
        page.named_cell(_called(region), at, page.colours(region.verdict().regime, at))
        for region in shown
        for at in [place.get((True, region.name))]
    ]
    yield f"<section><h2>Regions</h2>{_with_names(table, names)}"
    if len(report.regions) > _MOST_ROWS:
        yield f"<p>and {len(report.regions) - _MOST_ROWS:,} more with less busy time; --json has all</p>"
    belong = "Operators belong to the region that they ran in" if report.on_host else _BELONG
    yield f"<p>{belong}, and to those around it.</p></section>"


def _with_names(table: Sequence[Sequence[str]], names: Sequence[str]) -> str:
    """The table with these cells, which are HTML, as its first column."""
    head = table[0]
    rows = [name + "".join(map(page.cell, head[1:], row[1:])) for name, row in zip(names, table[1:], strict=True)]
    return page.table(head, rows)


def _cards(report: ReportData, place: Mapping[tuple[bool, str], int], *, causes: bool) -> Iterator[str]:
    on_gpu = [region for region in report.regions if region.operations and not region.on_host]
    chosen = cells.chosen(on_gpu, _MOST_CARDS)
    if chosen:
        yield from page.cards([_card(r, place.get((True, r.name)), causes=causes) for r in chosen], len(on_gpu))


def _card(region: RegionKernels, place: int | None, *, causes: bool) -> str:
    verdict = region.verdict()
    bar = _bar(region, region.span_ns, causes=causes) if region.span_ns else ""
    more = bar + "".join(f"<p>{escape(fact)}</p>" for fact in text.facts(region))
    style, about = page.colours(verdict.regime, place), cells.confidence(verdict)
    return page.card(_called(region), style, verdict, about=about, step=verdict.advice, more=more)


# ---------------------------------------------------------------------- tables


def _kernels(report: ReportData, place: Mapping[tuple[bool, str], int]) -> Iterator[str]:
    kernels = report.kernels
    if not kernels:
        return
    what = "operator" if report.on_host else "kernel"
    ranked = longest_first(kernels)
    # The same labels as in the timeline.
    shown = labels((name for name, _ in ranked[:MOST_NAMES]), WIDTH)
    table = cells.kernel_table(ranked[:_MOST_KERNELS], sum(each.total_ns for each in kernels.values()), shown, what)
    names = [
        page.named_cell(row[0], at, "" if at is None else f"--of-regime:var(--hue-{at % page.HUES});")
        for row in table[1:]
        for at in [place.get((False, row[0]))]
    ]
    yield f"<section><h2>{what.capitalize()}s that took longest</h2>{_with_names(table, names)}"
    if len(kernels) > _MOST_KERNELS:
        yield f"<p>and {len(kernels) - _MOST_KERNELS:,} more names; --csv has all</p>"
    yield "</section>"


def _section(title: str, table: Sequence[Sequence[str]]) -> Iterator[str]:
    if table:
        rows = ["".join(map(page.cell, table[0], row)) for row in table[1:]]
        yield f"<section><h2>{escape(title)}</h2>{page.table(table[0], rows)}</section>"


def _notes(report: ReportData, more: Mapping[str, int]) -> Iterator[str]:
    lines = [*text.notes(report), *(f"{count:,} {printable(reason)}" for reason, count in more.items())]
    if lines:
        items = "".join(f"<li>{escape(line.removeprefix('note: '))}</li>" for line in lines)
        yield f"<section><h2>Unusable and ambiguous records</h2><ul>{items}</ul></section>"
