"""A recording as a Perfetto trace (protocol buffers): open it in https://ui.perfetto.dev or with its trace processor.

Time stamps are ns since the epoch. Executions are slices under their process, by the host's clock. Marked executions
are also slices under their device, by its clock, beside a counter for each of the device's signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import isfinite, isnan
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.clocks.alignment import aligned
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.views.drawing import stretches
from gpu_profile.analysis.views.labels import labels
from gpu_profile.analysis.views.lanes import Lanes, by_rank, on_devices, on_host
from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Kind, Signal
from gpu_profile.catalogue import attributes as names_of
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.reading import WIDEST_WINDOW
from gpu_profile.join.summary import LEAST_COVERAGE
from gpu_profile.recording import Recording, SpanRecord
from gpu_profile.regimes import Regime
from gpu_profile.regimes.kernel_work import KernelWork
from gpu_profile.regimes.operation import RegionOperation
from gpu_profile.report import perfetto
from gpu_profile.report.devices import title
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S

#: The displayed unit of a signal and its factor, by the unit in the catalogue.
_SHOWN: Final[Mapping[str, tuple[str, float]]] = {"1": ("%", 100.0), "Hz": ("MHz", 1e-6)}
_FASTER: Final[Mapping[str, str]] = {"J": "W", "By": "By/s", "s": "s/s"}
_EVERYTHING: Final = 1 << 62

Values = Mapping[str, perfetto.Argument | None]


class Joined(NamedTuple):
    """Each execution's own values: shares, joules and coverage, NaN without its own."""

    busy: Sequence[float]
    energy: Sequence[float]
    coverage: Sequence[float]


def perfetto_trace(recording: Recording, analysis: Analysis) -> bytes:
    """The whole trace. `perfetto_packets` yields the same in pieces, for recordings that do not fit twice."""
    return b"".join(perfetto_packets(recording, analysis))


def perfetto_packets(recording: Recording, analysis: Analysis) -> Iterator[bytes]:
    """The trace packet by packet, in file order."""
    recording = aligned(recording, analysis.clocks)
    trace = _AnalysisTrace(analysis)
    yield perfetto.clocks(analysis.start_ns)
    parents = []
    ranks: dict[int | None, int] = {}
    for each in recording.processes:
        parents.append(next(trace.uuids))
        rank = "" if each.rank is None else f"rank {each.rank}, "
        ranks[each.rank] = parents[-1]
        yield perfetto.process(parents[-1], each.pid, f"{rank}{printable(each.host)}")
    for place, spans in by_rank(recording).items():
        # Without a rank, the recording does not say which of several processes ran an execution.
        parent = ranks.get(place, 0) if place is not None or len(parents) == 1 else 0
        for name, some in _groups(spans, analysis) if place is None else [("regions", spans)]:
            yield from trace.host(name, some, parent)
    marked = [span for span in recording.spans if span.device_intervals]
    work = on_devices(replace(recording, spans=tuple(marked)), analysis) if marked else []
    for place, use in enumerate(analysis.devices):
        own = next((lanes for lanes in work if lanes.device == use.device), None)
        yield from trace.device(use, own, place)


def _groups(spans: list[SpanRecord], analysis: Analysis) -> list[tuple[str, list[SpanRecord]]]:
    """Executions by the devices that they used, if all name them, else all as one."""
    names = labels(analysis)
    groups: dict[tuple[str, ...], list[SpanRecord]] = {}
    for span in spans:
        named = () if span.assumed else span.devices
        key = tuple(sorted({each.device for each in span.device_intervals})) or named
        groups.setdefault(key, []).append(span)
    if () in groups or len(groups) == 1:
        return [("regions", spans)]
    return [(f"regions using GPU {', '.join(names.get(u, u) for u in key)}", each) for key, each in groups.items()]


class _AnalysisTrace(perfetto.Tracks):
    def __init__(self, analysis: Analysis) -> None:
        super().__init__()
        self.analysis = analysis
        self.labels = labels(analysis)
        self.uses = {use.device.uuid: use for use in analysis.devices}

    # ------------------------------------------------------------------ executions

    def host(self, name: str, spans: Sequence[SpanRecord], parent: int) -> Iterator[bytes]:
        lanes = on_host(spans)
        if lanes is None:
            return
        joined = _joined(spans, self.uses)
        yield from self._tracks(lanes, name, parent, (spans, joined))

    def _tracks(
        self, lanes: Lanes, name: str, parent: int, timed: tuple[Sequence[SpanRecord], Joined] | None, rank: int = 0
    ) -> Iterator[bytes]:
        count = int(lanes.tracks.max(initial=-1)) + 1
        tracks = [(f"{name} {place + 1}" if place else name, rank + place) for place in range(count)]
        events = [self.names(perfetto.EVENTS, region) for region in lanes.regions]
        details = self._details(lanes, timed)
        order = np.lexsort((lanes.levels, -lanes.ends, lanes.starts))
        columns = (lanes.starts, lanes.ends, lanes.tracks, np.arange(len(order)), lanes.columns)
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        yield from self.slices(tracks, parent, rows, lambda i, column: (events[column], details(i, column)))

    def _details(self, lanes: Lanes, timed: tuple[Sequence[SpanRecord], Joined] | None) -> Callable[[int, int], bytes]:
        """A function from an execution's index and its region's to its arguments: the execution's own values if samples
        resolve it, else the region's.
        """
        values = [self._region(region, lanes) for region in lanes.regions]
        always, pooled = ([perfetto.arguments(each[side], self.names) for each in values] for side in (0, 1))
        if timed is None:
            return lambda _, column: always[column] + pooled[column]
        spans, (busy, energy, coverage) = timed
        own = perfetto.arguments({names_of.SCOPE.name: "span"}, self.names)
        failed = perfetto.arguments({"failed": True}, self.names)
        keys = (names_of.BUSY_RATIO, names_of.ENERGY, names_of.COVERAGE, names_of.ITEMS)
        a_busy, a_energy, a_coverage, an_item = (perfetto.ready(key.name, self.names) for key in keys)
        profiled = {
            i: perfetto.arguments(_profiled(span), self.names) for i, span in enumerate(spans) if span.attributes
        }

        def details(i: int, column: int) -> bytes:
            span, parts = spans[i], [always[column]]
            if isnan(busy[i]):
                parts.append(pooled[column])
            else:
                parts += [own, a_busy, perfetto.eight(busy[i]), a_coverage, perfetto.eight(coverage[i])]
                parts += [] if isnan(energy[i]) else [a_energy, perfetto.eight(energy[i])]
            if span.items is not None and isfinite(span.items):
                parts += [an_item, perfetto.eight(span.items)]
            if i in profiled:
                parts.append(profiled[i])
            if span.failed:
                parts.append(failed)
            return b"".join(parts)

        return details

    def _region(self, region: str, lanes: Lanes) -> tuple[Values, Values]:
        """A region's verdict and its pooled values, without those that differ between the devices of the lanes."""
        uses = [use for use in self.analysis.of(region) if lanes.device is None or use.summary.device == lanes.device]
        regimes = dict.fromkeys(str(use.verdict.regime) for use in uses)
        verdict: dict[str, perfetto.Argument | None] = {}
        if len(regimes) == 1:
            verdict[names_of.REGIME.name] = next(iter(regimes))
        if len(uses) != 1:
            return verdict, {}
        (use,) = uses
        if use.verdict.regime is not Regime.UNKNOWN:
            verdict[names_of.CONFIDENCE.name] = use.verdict.confidence
            verdict[names_of.BASIS.name] = use.verdict.basis
        return verdict, {
            names_of.SCOPE.name: "pooled",
            names_of.BUSY_RATIO.name: None if use.summary.busy is None else min(1.0, use.summary.busy),
            names_of.ENERGY.name: use.summary.call_energy_j,
        }

    # ------------------------------------------------------------------ devices

    def device(self, use: DeviceUse, own: Lanes | None, place: int) -> Iterator[bytes]:
        uuid = next(self.uuids)
        yield perfetto.track(uuid, title(use.device, self.labels[use.device.uuid]), rank=1000 + place)
        ranks = count(1)
        for event in self.analysis.events:
            if event.device == use.device.uuid:
                said = {"code": event.code, "message": printable(event.message) or None}
                name = self.names(perfetto.EVENTS, printable(event.kind))
                details = perfetto.arguments(said, self.names)
                yield self.names.packet()
                yield perfetto.instant(event.t_ns, uuid, name, details)
        if own is not None:
            yield from self._tracks(own, "regions on the device", uuid, None, rank=next(ranks))
        yield from self._gaps(use, uuid)
        for signal, column in use.timeline.columns.items():
            if column.watermark_ns is None:
                continue
            rows = stretches(column, self.analysis.start_ns, self.analysis.end_ns, _EVERYTHING)
            unit, factor = shown_in(signal)
            points = zip(rows.starts.tolist(), (rows.mean * factor).tolist(), strict=True)
            yield from self.counter(signal.key, unit, points, parent=uuid, rank=1000 + next(ranks))

    def _gaps(self, use: DeviceUse, parent: int) -> Iterator[bytes]:
        """Slices where the device was not sampled: a counter would continue with its last value."""
        column = use.timeline.best(BUSY_SOURCES) or use.timeline.best(ENERGY_SOURCES)
        if column is None:
            return
        gaps = stretches(column, self.analysis.start_ns, self.analysis.end_ns, _EVERYTHING).gaps
        name = self.names(perfetto.EVENTS, "not measured")
        rows = ((start, end, 0, name, 0) for start, end in gaps)
        tracks = [(f"gaps of {column.signal.key}", 999)] if gaps else []
        yield from self.slices(tracks, parent, rows, lambda named, _: (named, b""))


def _profiled(span: SpanRecord) -> dict[str, perfetto.Argument | None]:
    """The attributes that profilers recorded for an execution."""
    attributes: dict[str, perfetto.Argument | None] = {}
    for kind in (RegionOperation, KernelWork):
        profiled = kind.of_attributes(span.attributes)
        attributes |= {} if profiled is None else profiled.attributes()
    return attributes


def shown_in(signal: Signal) -> tuple[str, float]:
    """The unit of a signal's counter track, and the factor from its base unit. A counter is shown as a rate."""
    if signal.kind is Kind.COUNTER:
        return _FASTER.get(signal.unit, f"{signal.unit}/s"), 1.0
    return _SHOWN.get(signal.unit, (signal.unit, 1.0))


def _joined(spans: Sequence[SpanRecord], uses: Mapping[str, DeviceUse]) -> Joined:
    """Each execution's own busy share and energy, if it ran on one device and long enough."""
    none = np.full(len(spans), np.nan)
    busy, energy, coverage = none.copy(), none.copy(), none.copy()
    only = next(iter(uses)) if len(uses) == 1 else ""
    where: dict[str, list[int]] = {}
    starts, ends = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    for i, span in enumerate(spans):
        marks = {each.device for each in span.device_intervals}
        device = only
        if len(marks) == 1:
            (device,) = marks
            starts[i] = min(each.start_ns for each in span.device_intervals)
            ends[i] = max(each.end_ns for each in span.device_intervals)
        else:
            starts[i], ends[i] = span.start_ns, span.end_ns
            if marks or len(span.devices) > 1:
                continue
            device = span.devices[0] if span.devices else only
        if device in uses and 0 <= starts[i] < ends[i] < _EVERYTHING:
            where.setdefault(device, []).append(i)
    for device, places in where.items():
        here = np.array(places, np.int64)
        timeline = uses[device].timeline
        own = _own(timeline, BUSY_SOURCES, starts[here], ends[here])
        if own is not None:
            busy[here], coverage[here] = np.minimum(own[0], 1.0), own[1]
        own = _own(timeline, ENERGY_SOURCES, starts[here], ends[here])
        if own is not None:
            energy[here] = own[0] * (ends[here] - starts[here]) / NS_PER_S
    return Joined(busy.tolist(), energy.tolist(), coverage.tolist())


def _own(
    timeline: Timeline, sources: Sequence[Signal], starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Means and coverage over each interval. NaN where windows are too wide for it, or too little is covered."""
    column = timeline.best(sources)
    if column is None or column.watermark_ns is None:
        return None
    means, covered_ns = column.means(starts, ends)
    lengths = (ends - starts).astype(np.float64)
    covered = covered_ns / lengths
    _, edges, _ = column.edges(0, _EVERYTHING)
    usual = float(np.median(np.diff(edges))) if len(edges) > 1 else 0.0
    widest = max(column.signal.window_ns, column.signal.refresh_ns, usual)
    fine = (covered >= LEAST_COVERAGE) & (widest <= WIDEST_WINDOW * lengths)
    return np.where(fine, means, np.nan), np.minimum(covered, 1.0)
