"""A report as a Perfetto trace (protocol buffers): open it in https://ui.perfetto.dev or with its trace processor.

Threads have their regions as slices, streams of each GPU their operations, and an arrow leads from a launching call to
what it launched. What an allocator had given out is a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

import numpy as np

from gpu_profile.analysis import wire
from gpu_profile.analysis.runs import printable
from gpu_profile.kernels.joining.columns import KINDS, NONE, Columns, Operations
from gpu_profile.kernels.memory.timeline import memory_timeline
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.lanes import Lane, streams, threads
from gpu_profile.kernels.report import ReportData
from gpu_profile.protobuf import fixed64
from gpu_profile.regimes import Regime

#: What a slice tells, by its row in the columns and its name's number.
_Details = Callable[[int, int], bytes]
#: Of `TrackEvent`: the flows that go through a slice, and those that end in it.
_FLOW, _FLOW_ENDS = 47, 48
_GPUS: Final = 1000
#: What a counter track of memory has at most; the level's extremes are among them.
_POINTS: Final = 20_000


def perfetto_trace(report: ReportData, *, base_ns: int = 0) -> bytes:
    """The whole trace. `base_ns` makes the recording's times nanoseconds since the epoch."""
    return b"".join(perfetto_packets(report, base_ns=base_ns))


def perfetto_packets(report: ReportData, *, base_ns: int = 0) -> Iterator[bytes]:
    """The trace packet by packet, in order to be written to a file as they come."""
    return _Trace(report, base_ns).packets()


class _Trace:
    def __init__(self, report: ReportData, base_ns: int) -> None:
        self.report = report
        self.columns: Columns = report.columns
        self.names = wire.Names()
        self.texts = [printable(name) or "(no name)" for name in self.columns.names]
        self.uuids = count(1)
        self.base = base_ns

    def packets(self) -> Iterator[bytes]:
        yield wire.clocks(max(0, self.base + self._first()))
        host = next(self.uuids)
        yield wire.process(host, 1, printable(self.report.source) or "recording")
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
            yield wire.track(gpu, f"GPU {device}", rank=_GPUS + place)
            for rank, lane in enumerate(found):
                about = _Operations(operations, known, self.names)
                yield from self._lane(lane, gpu, "", about, rank)
        yield from self._memory()

    def _first(self) -> int:
        columns = self.columns
        starts = (columns.operations.starts, columns.ranges.starts, columns.operators.starts, columns.allocations.times)
        return min((int(each.min()) for each in starts if len(each)), default=0)

    def _at(self, ns: int) -> int:
        # What a damaged trace says happened before the epoch is drawn at it.
        return max(0, ns + self.base)

    def _lane(self, lane: Lane, parent: int, kind: str, details: _Details, rank: int = 0) -> Iterator[bytes]:
        tracks = []
        for place in range(int(lane.tracks.max(initial=-1)) + 1):
            tracks.append(next(self.uuids))
            title = f"{kind}{printable(lane.title)}{f' ({place + 1})' if place else ''}"
            yield wire.track(tracks[-1], title, parent=parent, rank=rank)
        open_ends: list[list[int]] = [[] for _ in tracks]
        columns = (lane.starts, lane.ends, lane.tracks, lane.names, lane.places)
        for start, end, track, name, place in zip(*(each.tolist() for each in columns), strict=True):
            stack = open_ends[track]
            while stack and stack[-1] <= start:
                yield wire.end(self._at(stack.pop()), tracks[track])
            number = self.names(wire.EVENTS, self.texts[name])
            more = details(place, name)
            yield self.names.packet()
            yield wire.begin(self._at(start), tracks[track], number, more)
            # Where more ran at once than there are tracks, the last one's slices are cut to lie in one another.
            stack.append(min(end, stack[-1]) if stack else end)
        for track, stack in enumerate(open_ends):
            while stack:
                yield wire.end(self._at(stack.pop()), tracks[track])

    # ------------------------------------------------------------------ the host

    def _regions(self) -> dict[int, RegionKernels]:
        number = {name: i for i, name in enumerate(self.columns.names)}
        return {number[each.name]: each for each in self.report.regions if each.name in number}

    def _region(self, region: RegionKernels) -> bytes:
        """What is known of all of a region's executions, which each of its slices tells."""
        verdict = region.verdict()
        told: dict[str, wire.Argument | None] = {
            "region executions": region.executions,
            "region kernels": region.kernel_count,
            "region busy ratio of span": region.busy_ratio,
            "regime": str(verdict.regime),
            "confidence": None if verdict.regime is Regime.UNKNOWN else verdict.confidence,
        }
        return wire.arguments(told, self.names)

    def _calls(self, host: int) -> Iterator[bytes]:
        """Calls that launched something: the beginnings of the arrows."""
        calls, causes = self.columns.calls, self.columns.operations.causes
        launching = np.flatnonzero(np.isin(calls.ids, causes[causes != 0]))
        order = launching[np.argsort(calls.starts[launching], kind="stable")]
        on = calls.threads[order]
        titles = self.columns.threads
        for thread in np.unique(on).tolist():
            track = next(self.uuids)
            yield wire.track(track, f"calls, thread {printable(str(titles[thread]))}", parent=host, rank=1)
            last = 0
            for i in order[on == thread].tolist():
                name = self.names(wire.EVENTS, self.texts[int(calls.names[i])])
                yield self.names.packet()
                start, end = self._at(int(calls.starts[i])), self._at(int(calls.ends[i]))
                # Calls do not nest: one that seems to begin in the one before has a clock that was read too early.
                start, end = max(start, last), max(end, last)
                last = end
                yield wire.begin(start, track, name, fixed64(_FLOW, int(calls.ids[i])))
                yield wire.end(end, track)

    def _memory(self) -> Iterator[bytes]:
        steps = memory_timeline(self.columns.allocations, self.columns.names, points=_POINTS)
        for rank, found in enumerate(steps):
            where = "host" if found.device < 0 else f"GPU {found.device}"
            counter = next(self.uuids)
            since = "" if found.absolute else ", since the start"
            title = f"memory of {printable(found.source)}, {where}{since}"
            yield wire.track(counter, title, rank=2 * _GPUS + rank, counter_unit="By")
            for at, total in zip(found.times.tolist(), found.totals.tolist(), strict=True):
                yield wire.count(self._at(at), counter, float(total))


class _Operations:
    """What a GPU operation tells."""

    def __init__(self, found: Operations, known: set[int], names: wire.Names) -> None:
        self._found, self._known, self._names = found, known, names

    def __call__(self, place: int, _: int) -> bytes:
        found = self._found
        told: Mapping[str, wire.Argument | None] = {
            "kind": str(KINDS[int(found.kinds[place])]),
            "bytes": None if found.bytes[place] == NONE else int(found.bytes[place]),
            "estimated occupancy": None if np.isnan(found.occupancy[place]) else float(found.occupancy[place]),
            "in a graph": True if found.graphs[place] else None,
        }
        cause = int(found.causes[place])
        flow = fixed64(_FLOW_ENDS, cause) if cause in self._known else b""
        return wire.arguments(told, self._names) + flow
