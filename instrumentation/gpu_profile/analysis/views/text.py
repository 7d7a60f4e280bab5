"""An analysis as plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.clocks.clock_text import clock_lines
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.ranks.text import rank_lines
from gpu_profile.analysis.views.conclusion import conclusion
from gpu_profile.analysis.views.labels import labels
from gpu_profile.join.remedies import remedy
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.kernel_work import KernelWorks
from gpu_profile.regimes.operation import RegionOperations
from gpu_profile.regions.session.changes import clock_time
from gpu_profile.report import REGION_COLUMNS, region_row
from gpu_profile.report.table import (
    CALL_WIDTH,
    REGIME,
    TWO_JOULES,
    UNKNOWN,
    fitted_table,
    folded,
    printable,
    regime_cell,
    share,
    uncertain,
)
from gpu_profile.units import NS_PER_S, counted, percent, si

DEVICE_COLUMNS: Final = ("device", "name", "GPU busy", "covered", "energy", "mean power", "in no region", "uuid")
#: Columns of devices that a narrow terminal omits: the mean power is the energy over the time.
_SPARE_OF_DEVICES: Final = ((7,), (5,), (3,), (6,))
#: Columns that a narrow terminal omits are elsewhere.
MORE: Final = "--json has all"
#: The mark of results of simulated GPUs.
SIMULATED: Final = "SIMULATED GPUs"
#: The most lines of one kind, and the most names in one of them.
_MOST_LINES: Final = 12
_MOST_NAMES: Final = 6
#: Columns that a narrow terminal omits, the first first.
_SPARE: Final = (
    *(CALL_WIDTH, "p95", "busy time", "items/s", "on GPU", "FLOP/B", "B/s", "per kernel", "energy", "J/item"),
    *("FLOP/s", "kernels", "host wait", "MFU"),
)
#: Columns of profiled operations.
_OPERATIONS: Final[Mapping[str, Callable[[RegionOperations | None], float | None]]] = {
    "FLOP/s": lambda operations: None if operations is None else operations.flops_per_s,
    "B/s": lambda operations: None if operations is None else operations.bytes_per_s,
    "FLOP/B": lambda operations: None if operations is None else operations.intensity,
}
#: Columns of a profiler's records: kernels for each profiled execution, mean kernel, share waiting for the host.
_KERNELS: Final[Mapping[str, Callable[[KernelWorks], str]]] = {
    "kernels": lambda works: f"{works.kernels / works.executions:.4g}",
    "per kernel": lambda works: UNKNOWN if works.mean_kernel_ns is None else si(works.mean_kernel_ns / NS_PER_S, "s"),
    "host wait": lambda works: UNKNOWN if (wait := works.evidence().get("host_wait")) is None else percent(wait),
}
#: Throttling for less of a region's time than this share is not reported.
_HELD_DOWN: Final = 0.01


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, or a dash."""
    return UNKNOWN if value is None else si(value, unit)


def headline(analysis: Analysis) -> str:
    """The size of the recording, in one line."""
    calls = sum(len(runs.starts_ns) for runs in analysis.runs.values())
    length = (analysis.end_ns - analysis.start_ns) / NS_PER_S
    drivers = sorted({process.driver for process in analysis.processes if process.driver})
    parts = [
        si(length, "s"),
        counted(len(analysis.processes), "process", "processes"),
        counted(len(analysis.devices), "device"),
        counted(calls, "execution") + " of " + counted(len(analysis.runs), "region"),
    ]
    if drivers:
        parts.append("read through " + ", ".join(drivers))
    return ", ".join(parts)


def _covered(use: DeviceUse) -> str:
    """The covered share of the time: one figure if busy time and energy agree, else both."""
    shares = {
        "busy": UNKNOWN if use.utilization is None else percent(use.coverage, 0),
        "energy": UNKNOWN if use.power_w is None else percent(use.energy_coverage, 0),
    }
    known_shares = {name: share for name, share in shares.items() if share != UNKNOWN}
    if len(set(known_shares.values())) < 2:
        return next(iter(known_shares.values()), UNKNOWN)
    return ", ".join(f"{name} {share}" for name, share in known_shares.items())


def device_row(use: DeviceUse, label: str) -> tuple[str, ...]:
    """One device, in the order of `DEVICE_COLUMNS`."""
    rest = share(use.unattributed_j, use.unattributed_half_width_j, "J")
    if use.unattributed_j is not None and use.energy_j:
        rest += f" ({percent(use.unattributed_j / use.energy_j)})"
    return (
        label or UNKNOWN,
        use.device.name or UNKNOWN,
        UNKNOWN if use.utilization is None else percent(use.utilization),
        _covered(use),
        quantity(use.energy_j, "J"),
        quantity(use.power_w, "W"),
        rest,
        use.device.uuid,
    )


def region_columns(uses: Sequence[RegionUse]) -> tuple[str, ...]:
    """The columns with values for any of the regions."""
    items = ("items/s", "J/item") if any(use.items_per_s is not None for use in uses) else ()
    failed = ("failed",) if any(use.failures for use in uses) else ()
    there = ("on GPU",) if any(use.summary.interval_source == "device" for use in uses) else ()
    operations = tuple(
        column for column, value in _OPERATIONS.items() if any(value(u.operations) is not None for u in uses)
    )
    reached = any(use.operations is not None and use.operations.utilization is not None for use in uses)
    operations += ("MFU",) if reached else ()
    kernels = tuple(_KERNELS) if any(use.kernels is not None for use in uses) else ()
    first, calls, mean, p95, *rest = REGION_COLUMNS
    return (first, "device", calls, *failed, mean, p95, *there, *rest[:-1], *items, *operations, *kernels, REGIME)


def region_cells(use: RegionUse, label: str, columns: Sequence[str]) -> tuple[str, ...]:
    """One region on one device, in the order of `columns`."""
    cells = dict(zip(REGION_COLUMNS, region_row(use.summary, use.verdict), strict=True))
    cells["device"] = label or UNKNOWN
    summary = use.summary
    marked = summary.interval_source == "device" and summary.executions
    cells["on GPU"] = si(summary.interval_s / summary.executions, "s") if marked else UNKNOWN
    cells["failed"] = UNKNOWN if use.failures is None else f"{use.failures:,}"
    cells["items/s"] = UNKNOWN if use.items_per_s is None else si(use.items_per_s, "").strip()
    cells["J/item"] = quantity(use.item_energy_j, "J")
    for column, value in _OPERATIONS.items():
        rate = value(use.operations)
        # A ratio has no prefix.
        shown = "" if rate is None else f"{rate:.3g}" if column == "FLOP/B" else si(rate, "").strip()
        cells[column] = shown or UNKNOWN
    cells["MFU"] = utilization_cell(use.operations)
    for column, cell in _KERNELS.items():
        cells[column] = UNKNOWN if use.kernels is None else cell(use.kernels)
    return tuple(cells[column] for column in columns)


def utilization_cell(operations: RegionOperations | None) -> str:
    """The share of the compute ceiling that is reached (MFU), with the ceiling beside it."""
    if operations is None or operations.utilization is None or operations.ceiling is None:
        return UNKNOWN
    return f"{percent(operations.utilization)} of {si(operations.ceiling, 'FLOP/s')}"


def region_table(analysis: Analysis) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns with values, and a row for each region on each of its devices."""
    names, columns = labels(analysis), region_columns(analysis.regions)
    return columns, [region_cells(use, names[use.summary.device.uuid], columns) for use in analysis.regions]


def reasons(analysis: Analysis, *, regions_only: bool = False) -> list[str]:
    """Missing results with reasons and remedies, one line for each reason.

    `regions_only` leaves out devices on which no region ran.
    """
    names = labels(analysis)
    lines = dict.fromkeys(analysis.notes)
    ran = {use.summary.device.uuid for use in analysis.regions}
    devices = [use for use in analysis.devices if use.device.uuid in ran or not regions_only]
    alike: dict[str, list[str]] = {}
    for device in devices:
        for reason in device.reasons:
            alike.setdefault(reason, []).append(names[device.device.uuid])
    for reason, labelled in alike.items():
        lines[f"device{'s' * (len(labelled) > 1)} {listed(labelled)}: {reason}"] = None
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for use in analysis.regions:
        where = names[use.summary.device.uuid] or "not known"
        for what, why in _missing(use):
            grouped.setdefault((where, what, why), []).append(use.summary.region)
    for (where, what, why), regions in grouped.items():
        step = remedy(why)
        lines[f"{listed(regions)} on device {where}: {what}: {why}{f' ({step})' if step else ''}"] = None
    return list(lines)


def _missing(use: RegionUse) -> list[tuple[str, str]]:
    """A region's missing results with the reason of each; results with one reason together."""
    by_reason: dict[str, list[str]] = {}
    for what, _, why in (reason.partition(": ") for reason in use.reasons):
        by_reason.setdefault(why, []).append(what)
    if use.verdict.regime is Regime.UNKNOWN and not use.reasons:
        by_reason[use.verdict.rule] = ["regime"]
    return [(" and ".join(whats), why) for why, whats in by_reason.items()]


def listed(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """Names in a sentence: the first `most`, and how many more."""
    kept = [*names] if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return " and ".join([part for part in (", ".join(kept[:-1]), kept[-1]) if part]) if kept else ""


def advice(analysis: Analysis) -> list[str]:
    """The next step for the regions that have one: regions with the same step share a line."""
    names = labels(analysis)
    several = len(analysis.devices) > 1
    grouped: dict[tuple[str, str], list[str]] = {}
    for use in analysis.regions:
        if use.verdict.advice:
            where = f" on device {names[use.summary.device.uuid]}" if several else ""
            step = f"{use.verdict.regime}: {use.verdict.advice}"
            grouped.setdefault((where, step), []).append(use.summary.region)
    return [f"{listed(regions)}{where}: {step}" for (where, step), regions in grouped.items()]


def events(analysis: Analysis) -> list[str]:
    """The events of devices, with the seconds since the recording's start: a line each."""
    names = labels(analysis)
    return [
        f"{(event.t_ns - analysis.start_ns) / NS_PER_S:.1f} s: device {names.get(event.device, event.device)}: "
        + " ".join(printable(str(part)) for part in (event.kind, event.code, event.message) if part not in (None, ""))
        for event in analysis.events
    ]


def changes(analysis: Analysis) -> list[str]:
    """The changes of regions' regimes, with the time of day and the seconds since the recording's start: lines."""
    names = labels(analysis)
    lines = []
    for each in analysis.changes:
        t_ns = each.change.t_ns
        moment = f"{clock_time(t_ns)} ({(t_ns - analysis.start_ns) / NS_PER_S:.0f} s)"
        lines.append(each.text(names.get(each.device, each.device), moment))
    return lines


def happened(analysis: Analysis) -> list[str]:
    """The events of devices, regions' changes of regime, and the regions that were throttled: a line each."""
    names = labels(analysis)
    several = len(analysis.devices) > 1
    lines = events(analysis) + changes(analysis)
    for use in analysis.regions:
        shares = {reason: share for reason, share in use.summary.throttled.items() if share >= _HELD_DOWN}
        if shares:
            where = f" on device {names[use.summary.device.uuid]}" if several else ""
            largest_first = sorted(shares, key=lambda reason: -shares[reason])
            why = ", ".join(f"for {percent(shares[reason], 0)} of its time by {reason}" for reason in largest_first)
            lines.append(f"{use.summary.region}{where}: throttled {why}")
    return lines


def render(analysis: Analysis, *, width: int | None = None) -> str:
    """The whole analysis. Tables wider than `width` characters omit the least important columns."""
    names = labels(analysis)
    parts = [folded(headline(analysis), width)]
    if analysis.devices:
        rows = (device_row(use, names[use.device.uuid]) for use in analysis.devices)
        parts.append(fitted_table(DEVICE_COLUMNS, rows, _SPARE_OF_DEVICES, width=width, left=2, more=MORE))
    parts += _regions(analysis, width)
    parts += section("Clocks of the nodes", clock_lines(analysis.clocks), width)
    parts += section("What happened", happened(analysis), width)
    parts += _conclusion(analysis, width)
    parts += section("What to do next", advice(analysis), width)
    parts += section("Missing results", reasons(analysis), width)
    return "\n\n".join(parts)


def render_regions(analysis: Analysis, *, width: int | None = None) -> str:
    """The regions alone, by device and by rank, with the next step for each and the reasons for missing results.

    If the table would be wider than `width` characters, it omits the least important columns.
    """
    parts = _regions(analysis, width)
    parts += section("Clocks of the nodes", clock_lines(analysis.clocks), width)
    parts += _conclusion(analysis, width)
    parts += section("What to do next", advice(analysis), width)
    parts += section("Missing results", reasons(analysis, regions_only=True), width)
    return "\n\n".join(parts)


def _conclusion(analysis: Analysis, width: int | None) -> list[str]:
    """The cost and the regime of the region that costs most. The steps of all regions follow it."""
    sentences = conclusion(analysis)[:2]
    return [folded(" ".join(sentences), width)] if sentences else []


def _regions(analysis: Analysis, width: int | None) -> list[str]:
    if not analysis.regions:
        return []
    columns, rows = region_table(analysis)
    spare = [[columns.index(column)] for column in _SPARE if column in columns]
    table = fitted_table(columns, rows, spare, width=width, more=MORE)
    ranks = rank_lines(analysis.ranks, analysis.start_ns)
    notes = folded("\n".join(about(analysis, rows)), width)
    return ["\n".join([table, *([notes] if notes else [])]), *(["\n".join(ranks)] if ranks else [])]


def about(analysis: Analysis, rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines below a table of regions: its mark of uncertain shares, and its columns of joules if they differ."""
    return [*uncertain(rows), *([TWO_JOULES] if any(map(_joules_differ, analysis.regions)) else [])]


def _joules_differ(use: RegionUse) -> bool:
    """Whether a region's energy, divided by its executions, differs from its energy per call."""
    own, each = use.summary.energy_j, use.summary.call_energy_j
    if own is None or each is None or not use.summary.executions:
        return False
    return si(own / use.summary.executions, "J") != si(each, "J")


def section(title: str, lines: Sequence[str], width: int | None = None) -> list[str]:
    """A title with lines below it, folded to `width`; nothing without lines."""
    if not lines:
        return []
    shown = [folded(f"  {line}", width, "    ") for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"  and {len(lines) - _MOST_LINES:,} more; --json has all")
    return ["\n".join([title, *shown])]


# ---------------------------------------------------------------------- verdicts under other thresholds


def render_verdicts(before: Analysis, after: Sequence[Verdict], *, width: int | None = None) -> str:
    """The verdicts of an analysis beside those under other thresholds, in the order of its regions.

    Text is folded to `width` characters; a wider table leaves out the mark of changes, then the device.
    """
    names = labels(before)
    rows = []
    changed = 0
    for use, verdict in zip(before.regions, after, strict=True):
        differs = verdict.regime is not use.verdict.regime
        changed += differs
        mark = "changed" if differs else ""
        label = names[use.summary.device.uuid] or UNKNOWN
        rows.append((use.summary.region, label, regime_cell(use.verdict), regime_cell(verdict), mark))
    columns = ("region", "device", "by default, confidence", "by these rules, confidence", "")
    why = [f"{use.summary.region}: {v.regime} by: {v.rule}" for use, v in zip(before.regions, after, strict=True)]
    mark = SIMULATED if before.simulated else ""
    parts = [
        mark,
        fitted_table(columns, rows, ((4,), (1,)), width=width),
        folded("\n".join(dict.fromkeys(why)), width, "  "),
        f"{changed} of {len(rows)} verdicts changed",
    ]
    return "\n\n".join(part for part in parts if part)
