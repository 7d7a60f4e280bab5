"""A Perfetto trace, parsed like Perfetto's trace processor."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
END, INSTANT, COUNTER = 2, 3, 4


@dataclass
class Slice:
    track: int
    name: str
    start: int
    end: int
    depth: int
    args: dict[str, Any]
    flows: list[int]
    ends: list[int]


@dataclass
class Trace:
    tracks: dict[int, Any] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def path(self, uuid: int) -> str:
        """The names of a track and of its parents."""
        track = self.tracks[uuid]
        name = track.name or track.process.process_name
        if track.process.HasField("pid"):
            name += f" ({track.process.pid})"
        return f"{self.path(track.parent_uuid)}/{name}" if track.parent_uuid else name

    def on(self, path: str) -> list[Slice]:
        return [each for each in self.slices if self.path(each.track) == path]

    def counter(self, path: str) -> tuple[Any, list[tuple[int, float]]]:
        ((uuid, values),) = [(u, v) for u, v in self.counters.items() if self.path(u) == path]
        return self.tracks[uuid].counter, values


def read(data: bytes) -> Trace:
    """Parse a trace. Like the trace processor, it fails if a name is used in an earlier packet than its definition."""
    parsed = protos.Trace()
    parsed.ParseFromString(data)
    trace = Trace()
    names: dict[int, str] = {}
    keys: dict[int, str] = {}
    texts: dict[int, str] = {}
    stacks: dict[int, list[Slice]] = defaultdict(list)
    last: dict[int, int] = {}
    for packet in parsed.packet:
        names |= {row.iid: row.name for row in packet.interned_data.event_names}
        keys |= {row.iid: row.name for row in packet.interned_data.debug_annotation_names}
        texts |= {row.iid: row.str.decode() for row in packet.interned_data.debug_annotation_string_values}
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in trace.tracks
            trace.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        assert event.track_uuid in trace.tracks
        assert at >= last.get(event.track_uuid, 0)
        last[event.track_uuid] = at
        stack = stacks[event.track_uuid]
        if event.type == COUNTER:
            trace.counters[event.track_uuid].append((at, event.double_counter_value))
        elif event.type == END:
            stack.pop().end = at
        else:
            args = {keys[each.name_iid]: value(each, texts) for each in event.debug_annotations}
            flows, ends = list(event.flow_ids), list(event.terminating_flow_ids)
            made = Slice(event.track_uuid, names[event.name_iid], at, -1, len(stack), args, flows, ends)
            (trace.instants if event.type == INSTANT else trace.slices).append(made)
            if event.type != INSTANT:
                stack.append(made)
    assert not any(stacks.values())
    return trace


def value(annotation: Any, texts: dict[int, str]) -> object:
    """The value of an annotation; a tuple for several values."""
    if annotation.array_values:
        return tuple(value(part, texts) for part in annotation.array_values)
    kind = annotation.WhichOneof("value")
    content = getattr(annotation, kind)
    return texts[content] if kind == "string_value_iid" else content
