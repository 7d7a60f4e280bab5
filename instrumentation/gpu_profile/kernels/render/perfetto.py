"""A report as a Perfetto trace (protocol buffers): open it in https://ui.perfetto.dev or with its trace processor.

Threads have their regions as slices, streams of each GPU their operations. An arrow leads from a launching call to each
operation that it launched. The allocated memory of each allocator is a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from gpu_profile.kernels.joining.columns import KINDS, NONE, OperationArrays, RecordArrays
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.lanes import Lane, streams, threads
from gpu_profile.kernels.report import ReportData
from gpu_profile.protobuf import fixed64
from gpu_profile.regimes import Regime
from gpu_profile.report import perfetto
from gpu_profile.report.table import printable

#: The arguments of a slice, by its row in the columns and its name's number.
_Details = Callable[[int, int], bytes]
#: Fields of `TrackEvent`: the flows that go through a slice, and the flows that end in it.
_FLOW, _FLOW_ENDS = 47, 48
_GPUS: Final = 1000
#: Points of a counter track of memory, at most; they include the level's extremes.
_POINTS: Final = 20_000


def perfetto_trace(report: ReportData, *, base_ns: int = 0) -> bytes:
    """The whole trace. `base_ns` makes the recording's times nanoseconds since the epoch."""
    return b"".join(_Trace(report, base_ns).packets())


class _Trace(perfetto.Tracks):
    def __init__(self, report: ReportData, base_ns: int) -> None:
        super().__init__(base_ns)
        self.report = report
        self.columns: RecordArrays = report.columns
        self.texts = [printable(name) or "(no name)" for name in self.columns.names]

    def packets(self) -> Iterator[bytes]:
        yield perfetto.clocks(self.at(self._first()))
        host = next(self.uuids)
        yield perfetto.process(host, 1, printable(self.report.source) or "recording")
        details = {number: self._region(each) for number, each in self._regions().items()}
        for lane in threads(self.columns):
            yield from self._lane(lane, host, "regions, ", lambda _, name: details.get(name, b""))
        if self.report.on_host:
            for lane in threads(self.columns, operators=True):
                yield from self._lane(lane, host, "", lambda *_: b"")
        yield from self._calls(host)
        operations = self.columns.operations
        recorded = set(self.columns.calls.ids.tolist())
        for place, (device, lanes) in enumerate(streams(self.columns).items()):
            gpu = next(self.uuids)
            yield perfetto.track(gpu, f"GPU {device}", rank=_GPUS + place)
            for rank, lane in enumerate(lanes):
                details_of = _Operations(operations, recorded, self.names)
                yield from self._lane(lane, gpu, "", details_of, rank)
        yield from self._memory()

    def _first(self) -> int:
        columns = self.columns
        starts = (columns.operations.starts, columns.ranges.starts, columns.operators.starts, columns.allocations.times)
        return min((int(each.min()) for each in starts if len(each)), default=0)

    def _lane(self, lane: Lane, parent: int, kind: str, details: _Details, rank: int = 0) -> Iterator[bytes]:
        title = f"{kind}{printable(lane.title)}"
        count = int(lane.tracks.max(initial=-1)) + 1
        tracks = [(f"{title} ({place + 1})" if place else title, rank) for place in range(count)]
        columns = (lane.starts, lane.ends, lane.tracks, lane.places, lane.names)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        yield from self.slices(
            tracks,
            parent,
            rows,
            lambda place, name: (self.names(perfetto.EVENTS, self.texts[name]), details(place, name)),
        )

    # ------------------------------------------------------------------ the host

    def _regions(self) -> dict[int, RegionKernels]:
        number = {name: i for i, name in enumerate(self.columns.names)}
        return {number[each.name]: each for each in self.report.regions if each.name in number}

    def _region(self, region: RegionKernels) -> bytes:
        """Sums and verdict over all executions of a region, which each of its slices shows."""
        verdict = region.verdict()
        values: dict[str, perfetto.Argument | None] = {
            "region executions": region.executions,
            "region kernels": region.kernel_count,
            "region busy ratio of span": region.busy_ratio,
            "regime": str(verdict.regime),
            "confidence": None if verdict.regime is Regime.UNKNOWN else verdict.confidence,
        }
        return perfetto.arguments(values, self.names)

    def _calls(self, host: int) -> Iterator[bytes]:
        """Calls that launched operations: the starts of the arrows."""
        calls, causes = self.columns.calls, self.columns.operations.causes
        launching = np.flatnonzero(np.isin(calls.ids, causes[causes != 0]))
        order = launching[np.argsort(calls.starts[launching], kind="stable")]
        on = calls.threads[order]
        titles = self.columns.threads
        for thread in np.unique(on).tolist():
            track = next(self.uuids)
            yield perfetto.track(track, f"calls, thread {printable(str(titles[thread]))}", parent=host, rank=1)
            last = 0
            for i in order[on == thread].tolist():
                name = self.names(perfetto.EVENTS, self.texts[int(calls.names[i])])
                yield self.names.packet()
                start, end = self.at(int(calls.starts[i])), self.at(int(calls.ends[i]))
                # Calls do not nest: if one seems to begin inside the previous one, its start was read too early.
                start, end = max(start, last), max(end, last)
                last = end
                yield perfetto.begin(start, track, name, fixed64(_FLOW, int(calls.ids[i])))
                yield perfetto.end(end, track)

    def _memory(self) -> Iterator[bytes]:
        (steps,) = self.report.memory_timelines(points=_POINTS)
        for rank, level in enumerate(steps):
            where = "host" if level.device < 0 else f"GPU {level.device}"
            since = "" if level.absolute else ", since the start"
            title = f"memory of {printable(level.source)}, {where}{since}"
            points = zip(level.times.tolist(), map(float, level.totals.tolist()), strict=True)
            yield from self.counter(title, "By", points, rank=2 * _GPUS + rank)


class _Operations:
    """The arguments of a GPU operation's slice."""

    def __init__(self, columns: OperationArrays, recorded: set[int], names: perfetto.Names) -> None:
        self._columns, self._recorded, self._names = columns, recorded, names

    def __call__(self, place: int, _: int) -> bytes:
        columns = self._columns
        values: Mapping[str, perfetto.Argument | None] = {
            "kind": str(KINDS[int(columns.kinds[place])]),
            "bytes": None if columns.bytes[place] == NONE else int(columns.bytes[place]),
            "estimated occupancy": None if np.isnan(columns.occupancy[place]) else float(columns.occupancy[place]),
            "in a graph": True if columns.graphs[place] else None,
        }
        cause = int(columns.causes[place])
        flow = fixed64(_FLOW_ENDS, cause) if cause in self._recorded else b""
        return perfetto.arguments(values, self._names) + flow
