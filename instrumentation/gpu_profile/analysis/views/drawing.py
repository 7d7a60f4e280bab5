"""The data of the page's timeline: signals and executions, reduced to a bounded number of rows, as packed columns.

Short recordings keep every row. In long ones, rows of a signal merge into stretches with a lowest, mean and highest
value. Executions too short to be visible merge into blocks with a count and a fill. Gaps stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.views.labels import labels
from gpu_profile.analysis.views.lanes import REGIONS, Lanes
from gpu_profile.analysis.views.text import events
from gpu_profile.catalogue import Kind
from gpu_profile.catalogue import signals as rows
from gpu_profile.history.timeline import Column
from gpu_profile.report.blocks import (
    LEAST_ROWS,
    MOST_BLOCKS,
    Scale,
    Stretches,
    drawn_chart,
    drawn_lanes,
    round_up,
    rows_with_length,
    stacked,
)
from gpu_profile.report.devices import CHARTS, Chart, title
from gpu_profile.report.table import call_width
from gpu_profile.units import NS_PER_S, counted, percent, si

#: Rows in a page, all together: 14 bytes each, a third more as text.
MOST_ROWS: Final = 52_000
MOST_GAPS: Final = 400
_MOST_EVENTS: Final = 400


def timeline(analysis: Analysis, lanes: Sequence[Lanes]) -> dict[str, Any] | None:
    """All data of the script. None if the recording has no length. `lanes` without a device come last."""
    start_ns, end_ns = analysis.start_ns, analysis.end_ns
    if end_ns <= start_ns:
        return None
    scale = Scale.of(start_ns, end_ns)
    names = labels(analysis)
    regions = list(dict.fromkeys([*analysis.runs, *(name for each in lanes for name in each.regions)]))
    tops = {chart.key: top for chart in CHARTS if (top := _top(chart, analysis))}
    count = sum(use.timeline.best(chart.sources) is not None for use in analysis.devices for chart in CHARTS)
    most = max(LEAST_ROWS, MOST_ROWS // max(1, count))
    whole = max(1, sum(len(each.starts) for each in lanes))
    places = {use.device.uuid: place for place, use in enumerate(analysis.devices)}
    groups: list[dict[str, Any]] = [
        {
            "title": title(use.device, names[use.device.uuid]),
            "charts": list(_charts(use, scale, analysis, tops, most)),
            "lanes": [],
            "events": [],
        }
        for use in analysis.devices
    ]
    for each in lanes:
        uuid = each.device.uuid if each.device else ""
        blocks = _lanes(each, scale, regions, MOST_BLOCKS * len(each.starts) // whole)
        if each.device is not None and uuid in places:
            groups[places[uuid]]["lanes"].append(blocks)
        else:
            name = each.title or uuid or "No device known"
            groups.append({"title": name, "charts": [], "lanes": [blocks], "events": []})
    for event, text in list(zip(analysis.events, events(analysis), strict=True))[:_MOST_EVENTS]:
        if event.device in places:
            at = int(scale.steps(np.array([event.t_ns], np.int64))[0])
            groups[places[event.device]]["events"].append([at, text])
    return {
        "start_ns": str(start_ns),
        "step_s": scale.step_ns / NS_PER_S,
        "length": -(-(end_ns - start_ns) // scale.step_ns),
        "regions": [_region(name, analysis) for name in regions],
        "groups": groups,
    }


def _region(name: str, analysis: Analysis) -> dict[str, Any]:
    uses = analysis.of(name)
    regimes = list(dict.fromkeys(str(use.verdict.regime) for use in uses))
    facts = []
    runs = analysis.runs.get(name)
    if runs is not None:
        executions = counted(len(runs.starts_ns), "execution", "executions")
        words = [executions, f"{si(float(runs.durations_s.mean()), 's')} each"]
        summary = uses[0].summary if len(uses) == 1 else None
        if summary is not None and summary.busy is not None:
            words.append(f"GPU busy {percent(min(1.0, summary.busy))}")
        if summary is not None and summary.call_energy_j is not None:
            words.append(" ".join(filter(None, (si(summary.call_energy_j, "J"), call_width(summary), "per call"))))
        facts.append(["all of it", ", ".join(words)])
    return {"name": name, "regime": regimes[0] if len(regimes) == 1 else "", "regimes": regimes, "facts": facts}


# ---------------------------------------------------------------------- signals


def _top(chart: Chart, analysis: Analysis) -> float:
    """The top of a chart's scale: the same for all devices, so that they can be compared."""
    if chart.key == "busy":
        return 1.0
    most = 0.0
    for use in analysis.devices:
        column = use.timeline.best(chart.sources)
        if column is None or column.watermark_ns is None:
            continue
        _, _, values = rows_with_length(column, analysis.start_ns, analysis.end_ns)
        most = max(most, float(values.max()) if len(values) else 0.0)
        limit = use.timeline.column(rows.POWER_LIMIT)
        if chart.key == "memory" and use.device.memory_bytes:
            most = max(most, float(use.device.memory_bytes))
        elif chart.key == "power" and limit is not None and limit.last is not None:
            most = max(most, limit.signal.base(limit.last.value))
        elif chart.key == "clock" and use.device.clock_max_hz:
            most = max(most, float(use.device.clock_max_hz))
    return round_up(most) if chart.key != "memory" else most


def _charts(
    use: DeviceUse, scale: Scale, analysis: Analysis, tops: Mapping[str, float], most: int
) -> Iterator[dict[str, Any]]:
    for chart in CHARTS:
        column = use.timeline.best(chart.sources)
        if column is None or column.watermark_ns is None:
            continue
        drawn = stretches(column, analysis.start_ns, analysis.end_ns, most)
        signal = column.signal
        unit = signal.unit if signal.kind is not Kind.COUNTER else "W"
        yield drawn_chart(chart.key, chart.label, signal.key, unit, tops.get(chart.key, 1.0), scale, drawn)


def stretches(column: Column, start_ns: int, end_ns: int, most: int) -> Stretches:
    """The signal in at most `most` rows.

    A gap is a time between rows, or to the recording's edges, that is longer than twice the usual distance between
    readings. A mean weighs each row by its length.
    """
    starts, ends, values = rows_with_length(column, start_ns, end_ns)
    if not len(ends):
        nothing = np.zeros(0)
        return Stretches(starts, ends, nothing, nothing, nothing, ((start_ns, end_ns),))
    usual = int(np.median(np.diff(ends))) if len(ends) > 1 else int(ends[0] - starts[0])
    widest = max(2 * usual, column.signal.window_ns, column.signal.refresh_ns)
    left = np.concatenate(([start_ns], ends))
    right = np.concatenate((starts, [end_ns]))
    empty = np.flatnonzero(right - left > widest)
    longest = np.sort(empty[np.argsort(left[empty] - right[empty], kind="stable")[:MOST_GAPS]])
    gaps = tuple(zip(left[longest].tolist(), right[longest].tolist(), strict=True))
    # Readings at their usual distance follow each other without a gap: a window may be shorter than that distance.
    held = starts.copy()
    near = starts[1:] - ends[:-1] <= widest
    held[1:] = np.where(near, np.maximum(ends[:-1], 0), starts[1:])
    if len(values) <= most:
        return Stretches(held, ends, values, values, values, gaps)
    edges = start_ns + (end_ns - start_ns) * np.arange(most + 1, dtype=np.float64) / most
    place = np.clip(np.searchsorted(edges, ends, "left") - 1, 0, most - 1)
    # A new stretch begins with each bin and after each gap.
    broken = np.concatenate(([False], ~near))
    first = np.flatnonzero((np.diff(place, prepend=-1) > 0) | broken)
    lengths = (ends - starts).astype(np.float64)
    weights = np.add.reduceat(lengths, first)
    return Stretches(
        held[first],
        ends[np.concatenate((first[1:] - 1, [len(ends) - 1]))],
        np.minimum.reduceat(values, first),
        np.add.reduceat(values * lengths, first) / weights,
        np.maximum.reduceat(values, first),
        gaps,
    )


# ---------------------------------------------------------------------- executions


def _lanes(lanes: Lanes, scale: Scale, regions: Sequence[str], most: int) -> dict[str, Any]:
    rows, count = stacked(lanes.tracks, lanes.levels)
    number = {name: i for i, name in enumerate(regions)}
    entries = np.array([number[name] for name in lanes.regions], np.int64)[lanes.columns]
    names = lanes.regions[:count] if lanes.title == REGIONS else ()
    return drawn_lanes(rows, lanes.starts, lanes.ends, entries, scale, most=most, marked=lanes.marked, names=names)
