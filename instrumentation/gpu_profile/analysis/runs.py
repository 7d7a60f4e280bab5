"""The recorded spans, set in order: what ran on which device, inside what, and how long each execution took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.activities import Activities
from gpu_profile.join.unmixing.region_columns import MOST_REGIONS, OTHER
from gpu_profile.recording import SpanRecord
from gpu_profile.regimes.kernel_work import KernelWork, KernelWorks
from gpu_profile.regimes.operation import Operation, Operations
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S

#: Times from here on (the year 2116) are damage, and would not leave room to add them.
LATEST_NS: Final = 1 << 62


#: No rank is this high.
_MOST_RANKS: Final = 1 << 31


class Runs(NamedTuple):
    """The executions of one region in order of their start: edges by the host in ns, and units of work.

    `on_starts_ns` and `on_ends_ns` are the edges on its devices, `joined_ns` its time there, all of them together;
    by the host's clock where an execution did not say.
    `items` is None unless every execution said its own: a sum over some of them has nothing to be set beside. `told`
    is that sum. `failed` is None unless the recording says of every execution whether it failed. `ranks` are those of
    the processes that ran them, -1 where it is not known; None if it is of none. `operations` are what was profiled
    within them, `kernels` what a profiler's records say of them; None if nothing was.
    """

    starts_ns: Ints
    ends_ns: Ints
    on_starts_ns: Ints
    on_ends_ns: Ints
    joined_ns: Ints
    items: Floats | None
    told: float | None
    failed: npt.NDArray[np.bool_] | None
    ranks: Ints | None = None
    operations: Operations | None = None
    kernels: KernelWorks | None = None

    @property
    def durations_s(self) -> Floats:
        """How long each took, in seconds."""
        return (self.ends_ns - self.starts_ns) / NS_PER_S

    @property
    def failures(self) -> int | None:
        """How many failed."""
        return None if self.failed is None else int(self.failed.sum())


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """What ran on one device: activities in order of their start, and executions by region.

    The activities' `columns` are places in `regions`. `marked` counts the executions whose interval is the device's
    own.
    """

    activities: Activities
    regions: tuple[str, ...]
    executions: Mapping[str, int]
    marked: Mapping[str, int]


@dataclass(slots=True)
class Work:
    """All that ran, by region and by device (UUID; empty where no device is known), with what could not be used."""

    runs: dict[str, Runs] = field(default_factory=dict)
    devices: dict[str, DeviceWork] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Executions that name no device, by the devices that they are taken to have run on.
    homeless: Counter[tuple[str, ...]] = field(default_factory=Counter)


def gather(spans: Sequence[SpanRecord], first: str, *, devices: Sequence[str] = ()) -> Work:
    """Sort the spans out.

    Those that name no device count, by the host's clock, on each of `devices`; without these where their process took
    them to run, or else on the `first` device. A span with several streams on one device counts there from its first
    mark to its last.
    """
    work = Work()
    usable = _usable(spans, work.notes)
    names = _names(usable, work.notes)
    parents = _parents(usable, work.notes)
    places: dict[str, _Places] = {}
    on_starts, on_ends, joined = ([0] * len(usable) for _ in range(3))
    broken = 0
    for key, span in enumerate(usable):
        marked = _marked(span) if span.device_intervals else None
        if marked:
            on_starts[key] = min(place.start_ns for place in marked.values())
            on_ends[key] = max(place.end_ns for place in marked.values())
            joined[key] = sum(b - a for a, b, _ in marked.values())
            for uuid, interval in marked.items():
                places.setdefault(uuid, _Places()).add(key, interval, marked=True)
            continue
        broken += marked is not None
        if span.assumed or not span.devices:
            where = (*devices,) or span.devices or (first,)
            work.homeless[where] += 1
        else:
            where = span.devices
        on_starts[key], on_ends[key] = start, end = span.start_ns, span.end_ns
        joined[key] = (end - start) * len(where)
        for uuid in where:
            places.setdefault(uuid, _Places()).add(key, Interval(start, end), marked=False)
    if broken:
        work.notes.append(f"device intervals of {broken:,} executions end before they start: the host's were used")
    number = {region: i for i, region in enumerate(dict.fromkeys(names.values()))}
    columns = np.array([number[names[span.name]] for span in usable], np.int64)
    within = np.array(parents, np.int64)
    for uuid, found in places.items():
        work.devices[uuid] = found.work(columns, tuple(number), within)
    hosts = [span.start_ns for span in usable], [span.end_ns for span in usable]
    edges = [np.array(column, np.int64) for column in (*hosts, on_starts, on_ends, joined)]
    # A rank that is no machine number is a file's mistake, and nobody's rank.
    ranks = np.array([_rank(span.rank) for span in usable], np.int64)
    for column in dict.fromkeys(columns.tolist()):
        mine = np.flatnonzero(columns == column)
        starts, ends, began, ended, there = (each[mine] for each in edges)
        spans_of_it = [usable[key] for key in mine.tolist()]
        told = _told(spans_of_it)
        own = ranks[mine]
        ranked = own if (own >= 0).any() else None
        operations = _operations(spans_of_it, ended - began)
        profiled = operations, _kernels(spans_of_it)
        work.runs[tuple(number)[column]] = Runs(starts, ends, began, ended, there, *told, ranked, *profiled)
    return work


class _Places:
    """Where on one device executions lay: one entry in each list for each of them."""

    __slots__ = ("ends", "keys", "marked", "starts")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.marked: list[bool] = []

    def add(self, key: int, interval: Interval, *, marked: bool) -> None:
        self.keys.append(key)
        self.starts.append(interval.start_ns)
        self.ends.append(interval.end_ns)
        self.marked.append(marked)

    def work(self, columns: Ints, regions: tuple[str, ...], within: Ints) -> DeviceWork:
        """`columns` and `within` are of all executions: each one's region, and the place of the one around it."""
        keys, starts, ends = (np.array(column, np.int64) for column in (self.keys, self.starts, self.ends))
        marked = np.array(self.marked, np.bool_)
        if marked.any():  # else they are in order already
            order = np.argsort(starts, kind="stable")
            keys, starts, ends, marked = keys[order], starts[order], ends[order], marked[order]
        here = np.full(len(within) + 1, -1, np.int64)
        here[keys] = np.arange(len(keys))
        parents = within[keys]
        while (elsewhere := (parents >= 0) & (here[parents] < 0)).any():
            # The one around ran on another device: whom that was inside counts.
            parents = np.where(elsewhere, within[parents], parents)
        counts = (np.bincount(columns[which], minlength=len(regions)).tolist() for which in (keys, keys[marked]))
        executions, own = (dict(zip(regions, count, strict=True)) for count in counts)
        return DeviceWork(
            Activities(starts, ends, here[parents], columns[keys]),
            regions,
            {region: executions[region] for region in regions if executions[region]},
            own,
        )


def _usable(spans: Sequence[SpanRecord], notes: list[str]) -> list[SpanRecord]:
    """Spans with a possible interval, in order of their start, whatever order they were recorded in."""
    usable = [span for span in spans if 0 <= span.start_ns <= span.end_ns < LATEST_NS]
    if len(usable) < len(spans):
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


def _parents(spans: Sequence[SpanRecord], notes: list[str]) -> list[int]:
    """For each span, the place of the one that it ran inside, or -1. Parents come before their children: no rings."""
    place = {(span.trace_id, span.span_id): i for i, span in reversed(list(enumerate(spans))) if span.span_id}
    place |= {("", span.id): i for i, span in reversed(list(enumerate(spans))) if span.id}
    result: list[int] = []
    unnamed: list[int] = []
    nameless = orphans = 0
    for i, span in enumerate(spans):
        if span.span_id or span.id:
            parent = -1
            if span.parent or span.parent_span_id:
                whose = ("", span.parent) if span.parent else (span.trace_id, span.parent_span_id or "")
                parent = place.get(whose, -1)
                orphans += parent < 0
            # Of what began at the same moment, the one around may stand behind: it is left alone.
            result.append(parent if parent < i else -1)
            continue
        nameless += 1
        unnamed = [other for other in unnamed if spans[other].end_ns > span.start_ns]
        around = (other for other in reversed(unnamed) if spans[other].end_ns >= span.end_ns)
        result.append(next(around, -1))
        unnamed.append(i)
    if nameless:
        notes.append(f"{nameless:,} executions have no id: one that lies within another is taken to be inside it")
    if orphans:
        notes.append(f"{orphans:,} executions ran inside one that is not recorded: it had not ended, or was lost")
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


def _told(spans: Sequence[SpanRecord]) -> tuple[Floats | None, float | None, npt.NDArray[np.bool_] | None]:
    """The last three fields of `Runs`."""
    items = [known for span in spans if (known := _items(span)) is not None]
    failed = [span.failed for span in spans if span.failed is not None]
    whole = len(items) == len(spans) and sum(items) > 0
    return (
        np.array(items, np.float64) if whole else None,
        sum(items) if items else None,
        np.array(failed, np.bool_) if len(failed) == len(spans) else None,
    )


def _operations(spans: Sequence[SpanRecord], lengths_ns: Ints) -> Operations | None:
    found = Operations()
    for span, length_ns in zip(spans, lengths_ns.tolist(), strict=True):
        operation = Operation.of_attributes(span.attributes) if span.attributes else None
        if operation is not None:
            found.add(operation, length_ns)
    found.whole_ns = int(lengths_ns.sum())
    return found if found.n else None


def _kernels(spans: Sequence[SpanRecord]) -> KernelWorks | None:
    found = KernelWorks()
    for span in spans:
        work = KernelWork.of_attributes(span.attributes) if span.attributes else None
        if work is not None:
            found.add(work)
    return found if found.executions else None


def _rank(rank: int | None) -> int:
    return rank if rank is not None and 0 <= rank < _MOST_RANKS else -1
