"""The few messages of a Perfetto trace, written as protocol buffers by hand, and the tracks that they describe.

Field numbers are those of Perfetto's `protos/perfetto/trace/` (`trace_packet.proto`, `track_event/*.proto`,
`interned_data/interned_data.proto`). Their meaning never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count as counting
from typing import Final

from gpu_profile.protobuf import double, message, number, string, varint

#: `TrackEvent.Type`.
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_DOUBLE: Final = struct.Struct("<d")
eight = _DOUBLE.pack
#: Builtin clocks: the clock of all packets, and the wall clock that is set equal to it.
_TRACE_CLOCK, _WALL_CLOCK = 6, 1
_SEQUENCE: Final = 1

Scalar = bool | int | float | str
Argument = Scalar | Sequence[str] | Sequence[int] | Sequence[float]


def packet(content: bytes) -> bytes:
    """One `TracePacket` of the `Trace`."""
    return message(1, content)


def clocks(at_ns: int) -> bytes:
    """Declares that time stamps are wall-clock time."""
    both = b"".join(message(1, number(1, clock) + number(2, at_ns)) for clock in (_TRACE_CLOCK, _WALL_CLOCK))
    return packet(number(8, at_ns) + message(6, both) + number(10, _SEQUENCE))


def process(track: int, pid: int, name: str) -> bytes:
    """The track of a process."""
    return packet(message(60, number(1, track) + message(3, number(1, pid) + string(6, name))) + number(10, _SEQUENCE))


def track(uuid: int, name: str, *, parent: int = 0, rank: int = 0, counter_unit: str | None = None) -> bytes:
    """A track of slices, or with a unit a track of a counter. Its children are ordered by their `rank`."""
    content = number(1, uuid) + string(2, name) + (number(5, parent) if parent else b"")
    content += number(11, 3) + number(12, rank)
    if counter_unit == "By":
        content += message(8, number(3, 3))
    elif counter_unit is not None:
        content += message(8, string(6, counter_unit))
    return packet(message(60, content) + number(10, _SEQUENCE))


class Names:
    """Interned texts. Each is written once, in the packet before its first use, and then referred to by number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self._new: list[bytes] = []
        self._begun = False

    def __call__(self, table: int, text: str) -> int:
        """The number of `text` in one of `InternedData`'s tables."""
        key = (table, text)
        index = self._numbers.get(key)
        if index is None:
            index = self._numbers[key] = len(self._numbers) + 1
            self._new.append(message(table, number(1, index) + string(2, text)))
        return index

    def packet(self) -> bytes:
        """The texts numbered since the last call; empty if there are none."""
        if not self._new:
            return b""
        content = message(12, b"".join(self._new)) + number(10, _SEQUENCE) + number(13, 2 if self._begun else 3)
        self._new.clear()
        self._begun = True
        return packet(content)


#: Tables of `InternedData`.
EVENTS, ARGUMENTS, VALUES = 2, 3, 29
_TAIL: Final = number(10, _SEQUENCE) + number(13, 2)


def arguments(values: Mapping[str, Argument | None], names: Names) -> bytes:
    """Named values of an event; None is left out."""
    out = []
    for key, value in values.items():
        if value is None:
            continue
        if isinstance(value, Scalar):
            body = _scalar(value, names)
        else:
            body = b"".join(message(12, _scalar(each, names)) for each in value)
        out.append(message(4, number(1, names(ARGUMENTS, key)) + body))
    return b"".join(out)


def _scalar(value: Scalar, names: Names) -> bytes:
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, int):
        return number(4, value)
    return double(5, value) if isinstance(value, float) else number(17, names(VALUES, value))


def ready(key: str, names: Names) -> bytes:
    """The bytes before the value of a 64 bit float argument that many events have."""
    head = number(1, names(ARGUMENTS, key)) + varint(5 << 3 | 1)
    return varint(4 << 3 | 2) + varint(len(head) + 8) + head


def begin(at_ns: int, on: int, name: int, details: bytes = b"") -> bytes:
    """The start of a slice. `name` is a number of `Names`, `details` are `arguments`."""
    return packet(
        number(8, at_ns) + message(11, details + number(9, BEGIN) + number(10, name) + number(11, on)) + _TAIL
    )


def end(at_ns: int, on: int) -> bytes:
    """The end of the latest open slice on a track."""
    return packet(number(8, at_ns) + message(11, number(9, END) + number(11, on)) + _TAIL)


def instant(at_ns: int, on: int, name: int, details: bytes = b"") -> bytes:
    """An event without a length."""
    event = details + number(9, INSTANT) + number(10, name) + number(11, on)
    return packet(number(8, at_ns) + message(11, event) + _TAIL)


def count(at_ns: int, on: int, value: float) -> bytes:
    """A counter's value from now on."""
    return packet(number(8, at_ns) + message(11, number(9, COUNTER) + number(11, on) + double(44, value)) + _TAIL)


class Tracks:
    """Writes tracks packet by packet; `base_ns` is added to all times."""

    def __init__(self, base_ns: int = 0) -> None:
        self.names = Names()
        self.uuids = counting(1)
        self._base_ns = base_ns

    def at(self, ns: int) -> int:
        """A packet's time. Times before the epoch, from a damaged recording, become 0."""
        return max(0, ns + self._base_ns)

    def slices(
        self,
        tracks: Iterable[tuple[str, int]],
        parent: int,
        rows: Iterable[tuple[int, int, int, int, int]],
        event: Callable[[int, int], tuple[int, bytes]],
    ) -> Iterator[bytes]:
        """Tracks, each with a title and a rank, and the slices on them in order of their start.

        A row is a start and an end in ns, the index of its track, and two numbers. From these, `event` returns the
        number of its name and its details.
        """
        uuids = []
        for title, rank in tracks:
            uuids.append(next(self.uuids))
            yield track(uuids[-1], title, parent=parent, rank=rank)
        open_ends: list[list[int]] = [[] for _ in uuids]
        for start, stop, place, first, second in rows:
            stack, on = open_ends[place], uuids[place]
            while stack and stack[-1] <= start:
                yield end(self.at(stack.pop()), on)
            name, details = event(first, second)
            if new := self.names.packet():
                yield new
            yield begin(self.at(start), on, name, details)
            # With more slices at once than tracks, the last track's slices are cut so that they nest.
            stack.append(min(stop, stack[-1]) if stack else stop)
        for on, stack in zip(uuids, open_ends, strict=True):
            while stack:
                yield end(self.at(stack.pop()), on)

    def counter(
        self, title: str, unit: str, points: Iterable[tuple[int, float]], *, parent: int = 0, rank: int = 0
    ) -> Iterator[bytes]:
        """A counter's track with its values: moments in ns, and the value from then on."""
        uuid = next(self.uuids)
        yield track(uuid, title, parent=parent, rank=rank, counter_unit=unit)
        for ns, value in points:
            yield count(self.at(ns), uuid, value)
