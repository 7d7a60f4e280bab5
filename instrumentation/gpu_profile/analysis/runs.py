"""The recorded spans, set in order: what ran on which device, inside what, and how long each execution took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.durations import DurationStats
from gpu_profile.join import Activity
from gpu_profile.pooling import MOST_REGIONS, OTHER
from gpu_profile.recording import SpanRecord
from gpu_profile.samples import Interval
from gpu_profile.timeline import Floats, Ints
from gpu_profile.units import NS_PER_S

#: Times from here on (the year 2116) are damage, and would not leave room to add them.
LATEST_NS: Final = 1 << 62


class Runs(NamedTuple):
    """The executions of one region in order of their start: edges by the host in ns, and units of work.

    `on_starts_ns` and `on_ends_ns` are the edges on its devices, `joined_ns` its time there, all of them together;
    by the host's clock where an execution did not say.
    `items` is None unless every execution said its own: a sum over some of them has nothing to be set beside.
    """

    starts_ns: Ints
    ends_ns: Ints
    on_starts_ns: Ints
    on_ends_ns: Ints
    joined_ns: Ints
    items: Floats | None

    @property
    def durations_s(self) -> Floats:
        """How long each took, in seconds."""
        return (self.ends_ns - self.starts_ns) / NS_PER_S


@dataclass(slots=True)
class DeviceWork:
    """What ran on one device: activities in order of their start, and executions by region."""

    activities: list[Activity] = field(default_factory=list)
    executions: Counter[str] = field(default_factory=Counter)
    #: Executions by region whose interval is the device's own.
    marked: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Work:
    """All that ran, by region and by device (UUID; empty where no device is known), with what could not be used."""

    runs: dict[str, Runs] = field(default_factory=dict)
    stats: dict[str, DurationStats] = field(default_factory=dict)
    devices: dict[str, DeviceWork] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Executions that name no device.
    homeless: int = 0


def printable(text: str) -> str:
    """`text` with escapes for what a terminal would act upon or a page could not hold."""
    return text if text.isprintable() else text.encode("unicode_escape", "backslashreplace").decode("ascii")


def gather(spans: Sequence[SpanRecord], defaults: Sequence[str]) -> Work:
    """Sort the spans out. Those without device intervals count, by the host's clock, on each device of `defaults`.

    A span with several streams on one device counts there from its first mark to its last.
    """
    work = Work()
    usable = _usable(spans, work.notes)
    names = _names(usable, work.notes)
    parents = _parents(usable, work.notes)
    by_region: dict[str, list[SpanRecord]] = {}
    joined: dict[str, list[tuple[int, int, int]]] = {}
    broken = 0
    for key, span in enumerate(usable):
        region = names[span.name]
        by_region.setdefault(region, []).append(span)
        marked = _marked(span)
        broken += bool(span.device_intervals) and not marked
        work.homeless += not marked
        places = marked or dict.fromkeys(defaults or ("",), Interval(span.start_ns, span.end_ns))
        there = list(places.values())
        edges = min(place.start_ns for place in there), max(place.end_ns for place in there)
        joined.setdefault(region, []).append((*edges, sum(b - a for a, b, _ in there)))
        for uuid, interval in places.items():
            device = work.devices.setdefault(uuid, DeviceWork())
            device.executions[region] += 1
            device.marked[region] += bool(marked)
            device.activities.append(Activity(key, parents[key], region, interval.start_ns, interval.end_ns))
    if broken:
        work.notes.append(f"device intervals of {broken:,} executions end before they start: the host's were used")
    for device in work.devices.values():
        device.activities.sort(key=lambda activity: activity.start_ns)
    for region, found in by_region.items():
        work.runs[region], work.stats[region] = _runs(found, joined[region]), _stats(found)
    return work


def _usable(spans: Sequence[SpanRecord], notes: list[str]) -> list[SpanRecord]:
    """Spans with a possible interval, in order of their start, whatever order they were recorded in."""
    usable = [span for span in spans if 0 <= span.start_ns <= span.end_ns < LATEST_NS]
    wrong = Counter(printable(s.name) for s in spans if not 0 <= s.start_ns <= s.end_ns < LATEST_NS)
    for name, count in wrong.items():
        notes.append(
            f"{count:,} executions of {name} left out: they end before they start, or lie beyond all calendars"
        )
    return sorted(usable, key=lambda span: (span.start_ns, -span.end_ns))


def _names(spans: Iterable[SpanRecord], notes: list[str]) -> Mapping[str, str]:
    """What each span name is counted as: the names with most time keep theirs."""
    time: Counter[str] = Counter()
    for span in spans:
        time[span.name] += span.end_ns - span.start_ns
    kept = {name: printable(name) for name, _ in time.most_common(MOST_REGIONS)}
    if len(time) > MOST_REGIONS:
        notes.append(
            f"{len(time) - MOST_REGIONS:,} regions beyond the {MOST_REGIONS} with most time are one, {OTHER!r}"
        )
    return {name: kept.get(name, OTHER) for name in time}


def _parents(spans: Sequence[SpanRecord], notes: list[str]) -> list[int | None]:
    """For each span, the place of the one that it ran inside. A parent always comes before its children: no rings."""
    place = {(span.trace_id, span.span_id): i for i, span in reversed(list(enumerate(spans))) if span.span_id}
    result: list[int | None] = []
    unnamed: list[int] = []
    nameless = 0
    for i, span in enumerate(spans):
        if span.span_id:
            parent = place.get((span.trace_id, span.parent_span_id or ""))
            result.append(parent if parent is not None and parent < i else None)
            continue
        nameless += 1
        unnamed = [other for other in unnamed if spans[other].end_ns > span.start_ns]
        around = (other for other in reversed(unnamed) if spans[other].end_ns >= span.end_ns)
        result.append(next(around, None))
        unnamed.append(i)
    if nameless:
        notes.append(f"{nameless:,} executions have no span id: one that lies within another is taken to be inside it")
    return result


def _marked(span: SpanRecord) -> dict[str, Interval]:
    """The span's interval on each device that it names."""
    found: dict[str, Interval] = {}
    for each in span.device_intervals:
        if 0 <= each.start_ns <= each.end_ns < LATEST_NS:
            known = found.get(each.device)
            start = each.start_ns if known is None else min(known.start_ns, each.start_ns)
            end = each.end_ns if known is None else max(known.end_ns, each.end_ns)
            found[each.device] = Interval(start, end, "device")
    return found


def _items(span: SpanRecord) -> float | None:
    return span.items if span.items is not None and isfinite(span.items) and span.items >= 0 else None


def _runs(spans: Sequence[SpanRecord], joined: Sequence[tuple[int, int, int]]) -> Runs:
    items = [known for span in spans if (known := _items(span)) is not None]
    whole = len(items) == len(spans) and sum(items) > 0
    return Runs(
        np.array([span.start_ns for span in spans], np.int64),
        np.array([span.end_ns for span in spans], np.int64),
        np.array([start for start, _, _ in joined], np.int64),
        np.array([end for _, end, _ in joined], np.int64),
        np.array([length for _, _, length in joined], np.int64),
        np.array(items, np.float64) if whole else None,
    )


def _stats(spans: Sequence[SpanRecord]) -> DurationStats:
    stats = DurationStats()
    for span in spans:
        stats.add(span.end_ns - span.start_ns, items=_items(span))
    return stats
