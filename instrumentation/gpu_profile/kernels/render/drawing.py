"""The data of the page's timeline, in the form that the script of a recording's page takes.

One group is the host, with a lane or more for each thread's regions. Each GPU is a group: its busy share, its allocated
memory, and a lane or more for each stream. Operations too short to be seen become blocks with their number and the
share that they fill; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from gpu_profile.history.timeline import Floats
from gpu_profile.kernels.joining.columns import KINDS, Numbers, RecordArrays
from gpu_profile.kernels.joining.intervals import Cover
from gpu_profile.kernels.memory.timeline import MemorySteps
from gpu_profile.kernels.records import HOST
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.cells import chosen, share, time
from gpu_profile.kernels.render.lanes import Lane, streams, threads
from gpu_profile.kernels.render.names import labels, middle
from gpu_profile.kernels.report import ReportData
from gpu_profile.kernels.sums import longest_first
from gpu_profile.regimes import Regime
from gpu_profile.report.blocks import (
    MOST_BLOCKS,
    MOST_LANES,
    Scale,
    Stretches,
    drawn_chart,
    drawn_lanes,
    round_up,
    stacked,
)
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, counted

#: Names with an entry of their own; all other operations are one entry for each kind.
MOST_NAMES: Final = 400
#: Regions with an entry of their own, by the longest busy time; the rest are one entry.
MOST_REGIONS: Final = 2_000
#: Characters of a region's name.
NAME: Final = 120
WIDTH: Final = 64
_CELLS: Final = 1_200
_POINTS: Final = 3_000


def timeline(report: ReportData) -> dict[str, Any] | None:
    """The data of the whole timeline; None if no record has a length."""
    edges = _edges(report.columns)
    if edges is None:
        return None
    scale = Scale.of(*edges)
    entries = _Entries(report)
    host = list(threads(report.columns))
    on_gpu = streams(report.columns)
    if report.on_host:
        host += list(threads(report.columns, operators=True))
    many = max(1, sum(len(lane.starts) for lane in (*host, *(lane for lanes in on_gpu.values() for lane in lanes))))
    (memory,) = report.memory_timelines(points=_POINTS)
    groups = [
        {
            "title": f"GPU {device}",
            "charts": [_busy(report.columns, device, scale, edges), *_memory(memory, device, scale, edges)],
            "lanes": [_lanes(lanes, scale, entries, many, marked=True)],
            "events": [],
        }
        for device, lanes in on_gpu.items()
    ]
    charts = list(_memory(memory, HOST, scale, edges))
    if host or charts:
        drawn = [_lanes(host, scale, entries, many, marked=False)] if host else []
        groups.append({"title": "Host", "charts": charts, "lanes": drawn, "events": []})
    return {
        "start_ns": str(edges[0]),
        "step_s": scale.step_ns / NS_PER_S,
        "length": max(1, -(-(edges[1] - edges[0]) // scale.step_ns)),
        "regions": entries.rows,
        "groups": groups,
    }


def _edges(columns: RecordArrays) -> tuple[int, int] | None:
    operations, ranges, operators = columns.operations, columns.ranges, columns.operators
    pairs = [(operations.starts, operations.ends), (ranges.starts, ranges.ends), (operators.starts, operators.ends)]
    edges = [(int(starts.min()), int(ends.max())) for starts, ends in pairs if len(starts)]
    start, end = min((a for a, _ in edges), default=0), max((b for _, b in edges), default=0)
    return (start, end) if end > start else None


class _Entries:
    """Names and colours of blocks: regions, then kernels and other operations by name."""

    def __init__(self, report: ReportData) -> None:
        self.report = report
        self.rows: list[dict[str, Any]] = []
        # First, because the page relies on their numbers.
        drawn = chosen(report.regions, MOST_REGIONS)
        self._regions = {each.name: self._add(self._region(each)) for each in drawn}
        self._left_out = {each.name for each in report.regions} - self._regions.keys()
        ranked = longest_first(report.kernels)
        whole = sum(each.total_ns for _, each in ranked)
        shown = labels((name for name, _ in ranked[:MOST_NAMES]), WIDTH)
        self._operations: dict[str, int] = {}
        for name, each in ranked[:MOST_NAMES]:
            total = f"{each.count:,} times, {time(each.total_ns)}, {share(each.total_ns, whole)} of kernel time"
            what = "operator" if report.on_host else "kernel"
            entry = self._entry(shown[name], what, [["all of it", total], ["whole name", printable(name)[:400]]])
            self._operations[name] = self._add(entry)
        self._others: dict[str, int] = {}

    def _add(self, entry: dict[str, Any]) -> int:
        self.rows.append(entry)
        return len(self.rows) - 1

    @staticmethod
    def _entry(name: str, what: str, facts: list[list[str]], regimes: Sequence[str] = ()) -> dict[str, Any]:
        regime = regimes[0] if len(regimes) == 1 else ""
        return {"name": name, "what": what, "regime": regime, "regimes": list(regimes), "facts": facts}

    def _region(self, region: RegionKernels) -> dict[str, Any]:
        regime = region.verdict().regime
        executions = counted(region.executions, "execution", "executions")
        executions += f", GPU busy {share(region.busy_ns, region.span_ns)} of the span"
        regimes = [] if regime is Regime.UNKNOWN else [str(regime)]
        name = middle(printable(region.name), NAME)
        return self._entry(name, "region", [["all of it", executions]], regimes or ["UNKNOWN"])

    def of(self, lane: Lane, columns: RecordArrays, *, marked: bool) -> Numbers:
        """The entry of each block of a lane."""
        texts, many = columns.names, len(KINDS)
        kinds = columns.operations.kinds[lane.places] if marked else 0
        pairs, back = np.unique(lane.names * many + kinds, return_inverse=True)
        if marked:
            entries = [self._operation(texts[pair // many], str(KINDS[pair % many])) for pair in pairs.tolist()]
        else:
            entries = [self._named(texts[pair // many]) for pair in pairs.tolist()]
        return np.array(entries, np.int64)[back]

    def _named(self, name: str) -> int:
        entry = self._regions.get(name)
        if entry is not None:
            return entry
        return self._other("region") if name in self._left_out else self._operation(name, "operator")

    def _operation(self, name: str, kind: str) -> int:
        entry = self._operations.get(name)
        if entry is not None:
            if kind == "communication":
                self.rows[entry]["what"] = kind
            return entry
        if kind not in ("kernel", "communication") and len(self._operations) < 2 * MOST_NAMES:
            entry = self._operations[name] = self._add(self._entry(printable(name)[:80], kind, []))
            return entry
        return self._other(kind)

    def _other(self, kind: str) -> int:
        if kind not in self._others:
            self._others[kind] = self._add(self._entry(f"other: {kind}", kind, []))
        return self._others[kind]


def _lanes(lanes: Sequence[Lane], scale: Scale, entries: _Entries, whole: int, *, marked: bool) -> dict[str, Any]:
    count, names, rows = 0, [], []
    for lane in lanes:
        own, many = stacked(lane.tracks, lane.levels)
        rows.append(own + count)
        names += [printable(lane.title), *[""] * (many - 1)]
        count += many
    if count > MOST_LANES:
        names = [*names[: MOST_LANES - 1], f"and {count - MOST_LANES + 1} more lanes"]
    columns = entries.report.columns
    starts, ends = _joined([lane.starts for lane in lanes]), _joined([lane.ends for lane in lanes])
    entry = _joined([entries.of(lane, columns, marked=marked) for lane in lanes])
    most = MOST_BLOCKS * len(starts) // whole
    return drawn_lanes(_joined(rows), starts, ends, entry, scale, most=most, marked=marked, names=names)


def _joined(parts: Sequence[Numbers]) -> Numbers:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


# ---------------------------------------------------------------------- charts


def _busy(columns: RecordArrays, device: int, scale: Scale, edges: tuple[int, int]) -> dict[str, Any]:
    """The share of each stretch of time in which at least one operation ran."""
    operations = columns.operations
    here = np.isin(operations.streams, [i for i, (owner, _) in enumerate(columns.streams) if owner == device])
    cover = Cover(operations.starts[here], operations.ends[here])
    length = edges[1] - edges[0]
    cells = max(1, min(_CELLS, length))
    at = np.array([edges[0] + length * cell // cells for cell in range(cells + 1)], np.int64)
    shares = np.diff(cover.until(at)) / np.diff(at)
    return _chart("busy", "GPU busy", "1", 1.0, scale, at, shares)


def _memory(
    memory: Sequence[MemorySteps], device: int, scale: Scale, edges: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    for steps in memory:
        if steps.device != device or not len(steps.times):
            continue
        keep = (steps.times <= edges[1]) & (np.append(steps.times[1:], edges[1]) > edges[0])
        times, totals = np.clip(steps.times[keep], *edges), steps.totals[keep].astype(np.float64)
        if not len(times):
            continue
        at = np.append(times, edges[1])
        lasting = np.diff(at) > 0
        at, totals = np.append(at[:-1][lasting], edges[1]), totals[lasting]
        # A level that is relative to the start may be negative.
        low = 0.0 if steps.absolute else min(0.0, float(totals.min(initial=0.0)))
        top = round_up(float(totals.max(initial=0.0)) - low)
        label = f"memory, {printable(steps.source)}" if steps.absolute else f"{printable(steps.source)}, above lowest"
        yield _chart("memory", label, "By", top, scale, at, totals - low)


def _chart(key: str, label: str, unit: str, top: float, scale: Scale, edges: Numbers, values: Floats) -> dict[str, Any]:
    return drawn_chart(key, label, "", unit, top, scale, Stretches(edges[:-1], edges[1:], values, values, values, ()))
