"""An analysis as one HTML page that works offline: a timeline to zoom into, and below it the results and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.clocks.alignment import aligned
from gpu_profile.analysis.clocks.clock_text import clock_lines
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.ranks.text import rank_lines
from gpu_profile.analysis.views.conclusion import conclusion
from gpu_profile.analysis.views.drawing import timeline
from gpu_profile.analysis.views.labels import labels
from gpu_profile.analysis.views.lanes import HOST, Lanes, by_rank, by_region, on_devices, on_host
from gpu_profile.analysis.views.text import (
    DEVICE_COLUMNS,
    about,
    device_row,
    happened,
    headline,
    quantity,
    reasons,
    region_table,
)
from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.join.remedies import remedy
from gpu_profile.join.summary import ACTIVITIES, RegionSummary
from gpu_profile.recording import Recording
from gpu_profile.regimes import Regime
from gpu_profile.report import page
from gpu_profile.report.devices import title as device_title
from gpu_profile.report.table import ABOUT, ABOUT_MEANS, WHOSE_JOULES, call_width
from gpu_profile.units import NS_PER_S, counted, percent, si

#: Cards and lines beyond these appear only in the tables and in `--json`.
_MOST_CARDS: Final = 48
_MOST_SHARES: Final = 12
_EVIDENCE: Final = {
    "busy": "GPU busy",
    "device_busy": "device busy, all in all",
    "sm": "SM active",
    "occupancy": "SM occupancy",
    "tensor": "tensor pipes",
    "dram": "DRAM bandwidth",
    "fp64": "FP64 pipe",
    "fp32": "FP32 pipe",
    "fp16": "FP16 pipe",
    "memory_controller": "memory controller",
    "power": "power of the limit",
    "clock": "clock of the highest",
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "throttled": "throttled",
    "compute": "compute ceiling",
    "memory": "memory ceiling",
    "growth": "longer at twice the size",
    "work": "working",
    "communication": "exposed communication",
    "transfer": "exposed copies",
    "host_wait": "waiting for the host",
    "launch": "launching, of that",
    "other_wait": "other waits",
}
#: The unit of a verdict's `n`, by basis.
_BEHIND: Final = {"operation": "timed runs", "kernels": "GPU operations"}
#: Smaller shares would be shown as 0.0 %.
_NEXT_TO_NOTHING: Final = 0.0005
_HINTS: Final = (
    "<kbd>n</kbd> <kbd>p</kbd> next and previous execution. Hatched: not measured. Bands are the lowest and highest "
    "value of a stretch, lines its mean. Pale blocks are many short executions."
)


def render_page(analysis: Analysis, *, title: str, recording: Recording | None = None) -> str:
    """The whole page, of at most about 2 MB.

    With the analysed `recording`, executions are drawn inside one another and by device. Without it each region has one
    lane.
    """
    mark = page.SIMULATED if analysis.simulated else ""
    drawn = timeline(analysis, _lanes(analysis, recording))
    number = {region["name"]: i for i, region in enumerate(drawn["regions"])} if drawn else {}
    # Regimes colour the page only if they differ.
    by = "regime" if drawn and len({*_regimes(drawn)} - {"UNKNOWN"}) > 1 else "region"
    body = [
        f"<p>{escape(headline(analysis))}</p>",
        *(f"<p>{escape(line)}</p>" for line in [" ".join(conclusion(analysis))] if line),
        _tiles(analysis),
        *_timeline(analysis, drawn, by),
        *_energy(analysis, number),
        *_regions(analysis, number),
        *_ranks(analysis),
        *_why(analysis, number),
        *_devices(analysis),
        *page.items("Clocks of the nodes", clock_lines(analysis.clocks)),
        *page.items("What happened", happened(analysis)),
        *page.items("Missing results", reasons(analysis)),
    ]
    return page.document(title, body, by=by, drawn=drawn, mark=mark)


def _lanes(analysis: Analysis, recording: Recording | None) -> list[Lanes]:
    if recording is None:
        alone = by_region(analysis)
        return [] if alone is None else [alone]
    recording = aligned(recording, analysis.clocks)
    lanes = on_devices(recording, analysis)
    if any(each.marked for each in lanes):
        for rank, spans in by_rank(recording).items():
            host = on_host(spans, HOST if rank is None else f"{HOST}, rank {rank}")
            lanes += [] if host is None else [host]
    return lanes


# ---------------------------------------------------------------------- at a glance


def _tiles(analysis: Analysis) -> str:
    # A MIG instance is a part of its GPU.
    uses = [use for use in analysis.devices if use.device.kind is DeviceKind.GPU] or analysis.devices
    tiles = [(_length((analysis.end_ns - analysis.start_ns) / NS_PER_S), "recorded")]
    busy = [use.utilization for use in uses if use.utilization is not None]
    many = f", mean of {len(busy)}" if len(busy) > 1 else ""
    tiles.append((percent(sum(busy) / len(busy)) if busy else "–", f"GPU busy{many}"))
    energies = [use.energy_j for use in uses if use.energy_j is not None]
    whole = bool(energies) and len(energies) == len(uses)
    tiles.append((si(sum(energies), "J") if energies else "–", "energy" if whole else "energy, where it is known"))
    rest = [use.unattributed_j for use in uses if use.unattributed_j is not None]
    if whole and len(rest) == len(uses) and sum(energies) > 0:
        tiles.append((si(sum(rest), "J"), f"in no region ({percent(sum(rest) / sum(energies), 0)})"))
    else:
        tiles.append(("–", "energy in no region"))
    covered = [use.coverage for use in uses if use.utilization is not None]
    covered += [use.energy_coverage for use in uses if use.power_w is not None]
    if covered:
        least = ", at least" if len({percent(share, 0) for share in covered}) > 1 else ""
        tiles.append((percent(min(covered), 0), f"covered by samples{least}"))
    calls = sum(len(runs.starts_ns) for runs in analysis.runs.values())
    tiles.append((f"{calls:,}", f"executions of {len(analysis.runs):,} region{'s' * (len(analysis.runs) != 1)}"))
    return page.tiles(tiles)


def _length(seconds: float) -> str:
    if seconds < 120:
        return si(seconds, "s")
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def _timeline(analysis: Analysis, drawn: Mapping[str, Any] | None, by: str) -> Iterator[str]:
    if drawn is None:
        return
    yield page.TIMELINE
    yield page.toolbar(by)
    for place, group in enumerate(drawn["groups"]):
        facts = _facts(analysis.devices[place]) if place < len(analysis.devices) else ""
        many = sum(lanes["executions"] for lanes in group["lanes"])
        executions = counted(many, "execution", "executions") if many else ""
        words = ", ".join(part for part in (facts, executions) if part)
        shut = place < len(analysis.devices) and not many and any(each["lanes"] for each in drawn["groups"])
        yield page.group(place, group["title"], words, shut=shut)
    yield page.legend({*_regimes(drawn)}, _HINTS)


def _regimes(drawn: Mapping[str, Any]) -> list[str]:
    return [regime for region in drawn["regions"] for regime in region["regimes"]]


def _facts(use: DeviceUse) -> str:
    busy = "" if use.utilization is None else f"{percent(use.utilization)} busy"
    energy = "" if use.energy_j is None else si(use.energy_j, "J")
    return ", ".join(part for part in (busy, energy) if part)


# ---------------------------------------------------------------------- energy


def _energy(analysis: Analysis, number: Mapping[str, int]) -> Iterator[str]:
    uses = [use for use in analysis.devices if use.energy_j]
    if not uses:
        return
    names = labels(analysis)
    yield "<section><h2>Where the energy went</h2>"
    for use in uses:
        if len(analysis.devices) > 1:
            yield f"<h3>{escape(device_title(use.device, names[use.device.uuid]))}</h3>"
        yield from _shares(analysis, use, number)
    yield (f"<p>{WHOSE_JOULES}. Each region's own share: what ran inside it has its own. {ABOUT_MEANS}.</p></section>")


def _shares(analysis: Analysis, use: DeviceUse, number: Mapping[str, int]) -> Iterator[str]:
    whole = use.energy_j or 0.0
    own = [each for each in analysis.regions if each.summary.device == use.device and each.summary.energy_j]
    own.sort(key=lambda each: -(each.summary.energy_j or 0.0))

    def part(name: str, joules: float, style: str, *, unsure: bool, rest: bool = False) -> page.BarPart:
        inside = f"<span>{name}</span>" if rest else escape(name)
        line = f"{name} {ABOUT if unsure else ''}{si(joules, 'J')} ({percent(joules / whole)})"
        return page.BarPart(joules / whole, inside, line, style, rest)

    shares = [
        part(e.summary.region, e.summary.energy_j or 0.0, _style(e, number), unsure=e.summary.energy_half_width is None)
        for e in own[:_MOST_SHARES]
    ]
    if others := sum(each.summary.energy_j or 0.0 for each in own[_MOST_SHARES:]):
        unsure = any(each.summary.energy_half_width is None for each in own[_MOST_SHARES:])
        shares.append(part("others", others, "--of-regime:var(--r-DIFFERS)", unsure=unsure))
    more = "<li>some regions' shares are unknown, and so is the energy in no region</li>"
    if use.unattributed_j is not None:
        unsure, more = use.unattributed_half_width_j is None, ""
        shares.append(part("in no region", use.unattributed_j, "", unsure=unsure, rest=True))
    yield page.bar(shares, least=0.06, more=more)


def _style(use: RegionUse, number: Mapping[str, int]) -> str:
    return page.colours(use.verdict.regime, number.get(use.summary.region))


# ---------------------------------------------------------------------- tables and cards


def _regions(analysis: Analysis, number: Mapping[str, int]) -> Iterator[str]:
    if not analysis.regions:
        return
    columns, rows = region_table(analysis)
    lines = [
        "".join(_region_cell(column, cell, use, number) for column, cell in zip(columns, row, strict=True))
        for use, row in zip(analysis.regions, rows, strict=True)
    ]
    note = "".join(f"<p>{escape(line)}</p>" for line in about(analysis, rows))
    yield f"<section><h2>Regions</h2>{page.table(columns, lines)}{note}</section>"


def _region_cell(column: str, cell: str, use: RegionUse, number: Mapping[str, int]) -> str:
    if column == "region":
        return page.named_cell(cell, number.get(use.summary.region), _style(use, number))
    if column == "GPU busy" and use.summary.busy is not None:
        return f"<td>{_meter(use.summary.busy)}{escape(cell)}</td>"
    return page.cell(column, cell)


def _meter(share: float) -> str:
    return f'<span class="meter"><i style="width:{min(1.0, max(0.0, share)):.1%}"></i></span>'


def _why(analysis: Analysis, number: Mapping[str, int]) -> Iterator[str]:
    if not analysis.regions:
        return
    names = labels(analysis)
    several = len({use.summary.device.uuid for use in analysis.regions}) > 1
    ranked = sorted(analysis.regions, key=lambda use: -(use.summary.energy_j or use.summary.busy_s or 0.0))
    kept = {id(use) for use in ranked[:_MOST_CARDS]}
    shown = [
        _card(use, f" on device {names[use.summary.device.uuid] or 'unknown'}" if several else "", number)
        for use in analysis.regions
        if id(use) in kept
    ]
    yield from page.cards(shown, len(analysis.regions))


def _half_widths(summary: RegionSummary) -> dict[str, float]:
    """The half-widths of the shares' intervals, where there are any."""
    widths = {key: rate.half_width for key, signal in ACTIVITIES.items() if (rate := summary.rates.get(signal.key))}
    return widths | ({} if summary.busy_half_width is None else {"busy": summary.busy_half_width})


def _within(half_width: float | None) -> str:
    return "" if half_width is None else f" ±{half_width * 100:.1f}"


def _card(use: RegionUse, where: str, number: Mapping[str, int]) -> str:
    verdict, evidence = use.verdict, use.evidence
    unknown = verdict.regime is Regime.UNKNOWN
    confidence = "" if unknown else f" confidence {percent(verdict.confidence, 0)}, basis: {verdict.basis}"
    shares = {key: value for key, value in evidence.values.items() if key != "kernel_s"}
    widths = _half_widths(use.summary) if evidence.basis == use.summary.evidence.basis else {}
    named = [(_EVIDENCE.get(key, key), value, widths.get(key), key == "busy") for key, value in shares.items()]
    rows = "".join(
        f"<span>{escape(name)}</span>{_meter(value)}<span>{percent(value)}{_within(width)}</span>"
        for name, value, width, always in named
        if always or value >= _NEXT_TO_NOTHING
    )
    none = ", ".join(name for name, value, _, always in named if value < _NEXT_TO_NOTHING and not always)
    if none:
        rows += f'<span class="none">0 %: {escape(none)}</span>'
    behind = _BEHIND.get(verdict.basis, "sensor windows")
    rest = f"{verdict.n:,} {behind}, {percent(verdict.coverage, 0)} covered"
    if verdict.runner_up is not None:
        rest += f"; next nearest: {verdict.runner_up}"
    energy = f"{quantity(use.summary.call_energy_j, 'J')} {call_width(use.summary)}".rstrip()
    costs = [f"{energy} per call"] if use.summary.call_energy_j is not None else []
    costs += [f"{si(use.item_energy_j, 'J')} per item"] if use.item_energy_j is not None else []
    costs += [f"{si(use.items_per_s, '').strip()} items/s"] if use.items_per_s is not None else []
    if (metered := use.summary.metered) is not None:
        costs.append(
            f"{si(metered.power_w, 'W')} ±{si(metered.power_half_width_w, 'W')} by the energy counter's growth over "
            f"{counted(metered.executions, 'execution', 'executions')} of 2 s or more"
        )
    mean_ns = None if use.kernels is None else use.kernels.mean_kernel_ns
    costs += [f"{si(mean_ns / NS_PER_S, 's')} per kernel"] if mean_ns is not None else []
    step = verdict.advice or (remedy(verdict.rule) if unknown else "")
    lines = [rest, *([", ".join(costs)] if costs else [])]
    more = (f'<div class="evidence">{rows}</div>' if rows else "") + "".join(f"<p>{escape(line)}</p>" for line in lines)
    title = f"{use.summary.region}{where}"
    return page.card(title, _style(use, number), verdict, about=confidence, step=step, more=more)


def _ranks(analysis: Analysis) -> Iterator[str]:
    lines = rank_lines(analysis.ranks, analysis.start_ns)
    if lines:
        table = "\n".join(lines[1:]).strip("\n")
        shown = f'<div class="wide"><pre>{escape(table)}</pre></div>' if table else ""
        yield f"<section><h2>Ranks</h2><p>{escape(lines[0])}</p>{shown}</section>"


def _devices(analysis: Analysis) -> Iterator[str]:
    if not analysis.devices:
        return
    names = labels(analysis)
    rows = [
        "".join(map(page.cell, DEVICE_COLUMNS, device_row(use, names[use.device.uuid]))) for use in analysis.devices
    ]
    yield f"<section><h2>Devices</h2>{page.table(DEVICE_COLUMNS, rows)}</section>"
