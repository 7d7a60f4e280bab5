"""Sorts the recorded spans: the region, device, enclosing execution and duration of each execution."""

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
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS, OTHER
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.recording import SpanRecord
from gpu_profile.regimes.kernel_work import KernelWork, KernelWorks
from gpu_profile.regimes.operation import RegionOperation, RegionOperations
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, counted

#: Times from here on (the year 2116) are damage, and their sums would overflow.
LATEST_NS: Final = 1 << 62


#: No rank is this high.
_MOST_RANKS: Final = 1 << 31
#: In place of a rank: all of them. An unknown rank is -1.
_ALL: Final = -2


class Runs(NamedTuple):
    """The executions of one region in order of their start: edges by the host in ns, and units of work.

    `on_starts_ns` and `on_ends_ns` are the edges on its devices, `joined_ns` its time there, all of them together.
    Executions without marks take these from the host's clock.
    `items` is None unless every execution reported its own: a partial sum has no matching time. `items_sum` is the sum
    of the reported ones. `failed` is None unless the recording says of every execution whether it failed. `ranks` are
    the ranks of their processes, -1 if unknown, and None if all are. `operations` and `kernels` are the work that
    profilers recorded in them; None without records. `rank_work` has both by rank.
    """

    starts_ns: Ints
    ends_ns: Ints
    on_starts_ns: Ints
    on_ends_ns: Ints
    joined_ns: Ints
    items: Floats | None
    items_sum: float | None
    failed: npt.NDArray[np.bool_] | None
    ranks: Ints | None = None
    operations: RegionOperations | None = None
    kernels: KernelWorks | None = None
    rank_work: Mapping[int, tuple[RegionOperations | None, KernelWorks | None]] | None = None

    @property
    def durations_s(self) -> Floats:
        """The length of each execution, in seconds."""
        return (self.ends_ns - self.starts_ns) / NS_PER_S

    @property
    def failures(self) -> int | None:
        """The number of failed executions."""
        return None if self.failed is None else int(self.failed.sum())


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The executions on one device: activities in order of their start, and counts by region.

    The activities' `columns` are indices into `regions`, and `keys` are their indices into the `usable` spans. `marked`
    counts the executions with the device's own interval.
    """

    activities: Activities
    keys: Ints
    regions: tuple[str, ...]
    executions: Mapping[str, int]
    marked: Mapping[str, int]


@dataclass(slots=True)
class RecordedWork:
    """All executions, by region and by device (UUID; empty without any device), with notes on unusable spans.

    For each of the `usable` spans, `around` has the index of the one that it ran inside, -1 for none, and `columns` the
    index of its region in `runs`.
    """

    runs: dict[str, Runs] = field(default_factory=dict)
    devices: dict[str, DeviceWork] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: The devices of each rank's executions.
    rank_devices: dict[int, set[str]] = field(default_factory=dict)
    #: Executions that name no device, by the devices that they are assumed to have run on.
    unplaced: Counter[tuple[str, ...]] = field(default_factory=Counter)
    around: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


def gather(spans: Sequence[SpanRecord], first: str, *, devices: Sequence[str] = ()) -> RecordedWork:
    """Sort the spans by region and device.

    Spans that name no device count, by the host's clock, on each of `devices`. Without `devices` they count on the
    devices that their process expected, or else on the `first` device. A span with several streams on one device counts
    there from its first mark to its last.
    """
    work = RecordedWork()
    possible = usable(spans)
    if len(possible) < len(spans):
        wrong = Counter(printable(s.name) for s in spans if not is_usable(s))
        for name, count in wrong.items():
            several = counted(count, "execution", "executions")
            work.notes.append(f"{several} of {name} left out: they end before they start, or lie beyond all calendars")
    names = _names(possible, work.notes)
    parents = _parents(possible, work.notes)
    #: By device: the execution, its start and end there, and whether the device itself marked them.
    places: dict[str, list[tuple[int, int, int, bool]]] = {}
    on_starts, on_ends, joined = ([0] * len(possible) for _ in range(3))
    broken = 0
    for key, span in enumerate(possible):
        marked = device_marks(span) if span.device_intervals else None
        if marked:
            on_starts[key] = min(place.start_ns for place in marked.values())
            on_ends[key] = max(place.end_ns for place in marked.values())
            joined[key] = sum(b - a for a, b, _ in marked.values())
            for uuid, (start, end, _) in marked.items():
                places.setdefault(uuid, []).append((key, start, end, True))
            work.rank_devices.setdefault(_rank(span.rank), set()).update(marked)
            continue
        broken += marked is not None
        if span.assumed or not span.devices:
            where = (*devices,) or span.devices or (first,)
            work.unplaced[where] += 1
        else:
            where = span.devices
        on_starts[key], on_ends[key] = start, end = span.start_ns, span.end_ns
        joined[key] = (end - start) * len(where)
        for uuid in where:
            places.setdefault(uuid, []).append((key, start, end, False))
        work.rank_devices.setdefault(_rank(span.rank), set()).update(where)
    if broken:
        several = counted(broken, "execution", "executions")
        work.notes.append(f"device intervals of {several} end before they start: the host's were used")
    number = {region: i for i, region in enumerate(dict.fromkeys(names.values()))}
    work.columns = columns = np.array([number[names[span.name]] for span in possible], np.int64)
    work.around = within = np.array(parents, np.int64)
    for uuid, ran in places.items():
        work.devices[uuid] = _device_work(np.array(ran, np.int64), columns, tuple(number), within)
    hosts = [span.start_ns for span in possible], [span.end_ns for span in possible]
    edges = [np.array(column, np.int64) for column in (*hosts, on_starts, on_ends, joined)]
    # A rank outside the range is a mistake in the file.
    ranks = np.array([_rank(span.rank) for span in possible], np.int64)
    for column in dict.fromkeys(columns.tolist()):
        mine = np.flatnonzero(columns == column)
        starts, ends, began, ended, there = (each[mine] for each in edges)
        spans_of_it = [possible[key] for key in mine.tolist()]
        outcomes = _outcomes(spans_of_it)
        own = ranks[mine]
        ranked = own if (own >= 0).any() else None
        profiled = _profiled(spans_of_it, ended - began)
        by_rank = {rank: each for rank, each in profiled.items() if rank >= 0}
        work.runs[tuple(number)[column]] = Runs(
            starts, ends, began, ended, there, *outcomes, ranked, *profiled[_ALL], by_rank
        )
    return work


def _device_work(places: Ints, columns: Ints, regions: tuple[str, ...], within: Ints) -> DeviceWork:
    """The executions on a device. `columns` and `within` have each execution's region and the one around it."""
    if places[:, 3].any():  # else they are in order already
        places = places[np.argsort(places[:, 1], kind="stable")]
    keys, starts, ends, marked = np.ascontiguousarray(places.T)
    here = np.full(len(within) + 1, -1, np.int64)
    here[keys] = np.arange(len(keys))
    parents = within[keys]
    while (elsewhere := (parents >= 0) & (here[parents] < 0)).any():
        # The one around ran on another device: take the next one outwards.
        parents = np.where(elsewhere, within[parents], parents)
    counts = (np.bincount(columns[which], minlength=len(regions)).tolist() for which in (keys, keys[marked > 0]))
    executions, own = (dict(zip(regions, count, strict=True)) for count in counts)
    return DeviceWork(
        Activities(starts, ends, here[parents], columns[keys]),
        keys,
        regions,
        {region: executions[region] for region in regions if executions[region]},
        own,
    )


def usable(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    """Spans with a possible interval, sorted by their start."""
    return sorted(filter(is_usable, spans), key=lambda span: (span.start_ns, -span.end_ns))


def is_usable(span: SpanRecord) -> bool:
    """Whether the span's interval is possible."""
    return 0 <= span.start_ns <= span.end_ns < LATEST_NS


def _names(spans: Iterable[SpanRecord], notes: list[str]) -> Mapping[str, str]:
    """The region of each span name. The names with most time keep theirs, the others become `OTHER`."""
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
    """For each span, the index of the span around it, or -1. Parents come before their children: no rings."""
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
            # A parent that began at the same moment may come later in the order: it is ignored.
            result.append(parent if parent < i else -1)
            continue
        nameless += 1
        unnamed = [other for other in unnamed if spans[other].end_ns > span.start_ns]
        around = (other for other in reversed(unnamed) if spans[other].end_ns >= span.end_ns)
        result.append(next(around, -1))
        unnamed.append(i)
    if nameless:
        without = counted(nameless, "execution has", "executions have")
        notes.append(f"{without} no id: one that lies within another is taken to be inside it")
    if orphans:
        inner = counted(orphans, "execution", "executions")
        notes.append(f"{inner} ran inside one that is not recorded: it had not ended, or was lost")
    return result


def device_marks(span: SpanRecord) -> dict[str, Interval]:
    """The span's interval on each device that it names."""
    intervals: dict[str, Interval] = {}
    for each in span.device_intervals:
        if 0 <= each.start_ns <= each.end_ns < LATEST_NS:
            earlier = intervals.get(each.device)
            start = each.start_ns if earlier is None else min(earlier.start_ns, each.start_ns)
            end = each.end_ns if earlier is None else max(earlier.end_ns, each.end_ns)
            intervals[each.device] = Interval(start, end, "device")
    return intervals


def _items(span: SpanRecord) -> float | None:
    return span.items if span.items is not None and isfinite(span.items) and span.items >= 0 else None


def _outcomes(spans: Sequence[SpanRecord]) -> tuple[Floats | None, float | None, npt.NDArray[np.bool_] | None]:
    """Items, their sum, and failures, as `Runs` has them."""
    items = [items_of for span in spans if (items_of := _items(span)) is not None]
    failed = [span.failed for span in spans if span.failed is not None]
    whole = len(items) == len(spans) and sum(items) > 0
    return (
        np.array(items, np.float64) if whole else None,
        sum(items) if items else None,
        np.array(failed, np.bool_) if len(failed) == len(spans) else None,
    )


def _profiled(
    spans: Sequence[SpanRecord], lengths_ns: Ints
) -> dict[int, tuple[RegionOperations | None, KernelWorks | None]]:
    """The fields `operations` and `kernels` of `Runs`, of all executions and by rank."""
    sums: dict[int, tuple[RegionOperations, KernelWorks]] = {_ALL: (RegionOperations(), KernelWorks())}
    whole: Counter[int] = Counter()
    for span, length_ns in zip(spans, lengths_ns.tolist(), strict=True):
        rank = _rank(span.rank)
        whole[rank] += length_ns
        if span.attributes:
            operation, work = RegionOperation.of_attributes(span.attributes), KernelWork.of_attributes(span.attributes)
            if operation is None and work is None:
                continue
            for operations, kernels in (sums[_ALL], sums.setdefault(rank, (RegionOperations(), KernelWorks()))):
                if operation is not None:
                    operations.add(operation, length_ns)
                if work is not None:
                    kernels.add(work)
    whole[_ALL] = whole.total()
    result: dict[int, tuple[RegionOperations | None, KernelWorks | None]] = {}
    for rank, (operations, kernels) in sums.items():
        operations.whole_ns = whole[rank]
        result[rank] = operations if operations.n else None, kernels if kernels.executions else None
    return result


def _rank(rank: int | None) -> int:
    return rank if rank is not None and 0 <= rank < _MOST_RANKS else -1
