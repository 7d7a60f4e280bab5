"""A report as a Perfetto trace (protocol buffers): open it in https://ui.perfetto.dev or with its trace processor.

Threads have their regions as slices, streams of each GPU their operations, and an arrow leads from a launching call to
what it launched. What an allocator had given out is a counter.
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

#: What a slice tells, by its row in the columns and its name's number.
_Details = Callable[[int, int], bytes]
#: Of `TrackEvent`: the flows that go through a slice, and those that end in it.
_FLOW, _FLOW_ENDS = 47, 48
_GPUS: Final = 1000
#: What a counter track of memory has at most; the level's extremes are among them.
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
        known = set(self.columns.calls.ids.tolist())
        for place, (device, found) in enumerate(streams(self.columns).items()):
            gpu = next(self.uuids)
            yield perfetto.track(gpu, f"GPU {device}", rank=_GPUS + place)
            for rank, lane in enumerate(found):
                about = _Operations(operations, known, self.names)
                yield from self._lane(lane, gpu, "", about, rank)
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
        """What is known of all of a region's executions, which each of its slices tells."""
        verdict = region.verdict()
        told: dict[str, perfetto.Argument | None] = {
            "region executions": region.executions,
            "region kernels": region.kernel_count,
            "region busy ratio of span": region.busy_ratio,
            "regime": str(verdict.regime),
            "confidence": None if verdict.regime is Regime.UNKNOWN else verdict.confidence,
        }
        return perfetto.arguments(told, self.names)

    def _calls(self, host: int) -> Iterator[bytes]:
        """Calls that launched something: the beginnings of the arrows."""
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
                # Calls do not nest: one that seems to begin in the one before has a clock that was read too early.
                start, end = max(start, last), max(end, last)
                last = end
                yield perfetto.begin(start, track, name, fixed64(_FLOW, int(calls.ids[i])))
                yield perfetto.end(end, track)

    def _memory(self) -> Iterator[bytes]:
        (steps,) = self.report.memory_timelines(points=_POINTS)
        for rank, found in enumerate(steps):
            where = "host" if found.device < 0 else f"GPU {found.device}"
            since = "" if found.absolute else ", since the start"
            title = f"memory of {printable(found.source)}, {where}{since}"
            points = zip(found.times.tolist(), map(float, found.totals.tolist()), strict=True)
            yield from self.counter(title, "By", points, rank=2 * _GPUS + rank)


class _Operations:
    """What a GPU operation tells."""

    def __init__(self, found: OperationArrays, known: set[int], names: perfetto.Names) -> None:
        self._found, self._known, self._names = found, known, names

    def __call__(self, place: int, _: int) -> bytes:
        found = self._found
        told: Mapping[str, perfetto.Argument | None] = {
            "kind": str(KINDS[int(found.kinds[place])]),
            "bytes": None if found.bytes[place] == NONE else int(found.bytes[place]),
            "estimated occupancy": None if np.isnan(found.occupancy[place]) else float(found.occupancy[place]),
            "in a graph": True if found.graphs[place] else None,
        }
        cause = int(found.causes[place])
        flow = fixed64(_FLOW_ENDS, cause) if cause in self._known else b""
        return perfetto.arguments(told, self._names) + flow
