"""The format of a file of the node's timeline: one device, one writer. All numbers are little-endian.

A file consists of a header, descriptions of its streams and of their columns, and the streams: rings of rows of one
size. Signals that are read together share a stream. Row `k` (from 1) is in slot `(k - 1) % slots` and contains:

- its sequence number `k` (u64) and the moment at which its samples end (i64, ns since the epoch),
- a cell for each column: a counter's reading (i64), an instant's (i32), or the length (u32, ns) and the value (i32) of
  a window mean. Values are whole quanta. The lowest number of its type marks an absent sample,
- zeros up to a multiple of 8 bytes, and the check (u64).

Drivers stamp samples of one read at different moments. In such streams each cell begins with the sample's age (u32):
the ns from its end to the row's end. A signal may have several columns, for several samples in a row, the oldest first.
Without ages they are consecutive window means, and the last ends with the row.

The check covers all words of the row and the file's generation. A row is valid if its check fits and its sequence
number belongs to its slot. Any other row is not yet written, or has been overwritten. Readers therefore do not depend
on the order in which they see the writer's stores.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, repeat
from operator import mul
from typing import Final, NamedTuple

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue.signals import POWER, SLOW_COUNTERS

VERSION: Final = 3
SUFFIX: Final = ".ring"
MAGIC: Final = b"GPURING\n"
#: Magic, version, number of streams, number of columns, zero, generation, created (ns since the epoch), UUID, check.
HEADER: Final = struct.Struct("<8sHHHHQq96sQ")
#: Name, offset of its rows in the file, slots, bytes of a row, first column, number of columns, 1 if cells have ages.
STREAM: Final = struct.Struct("<16sQIHHHH4x")
#: Key, quantum in its unit, unit, kind (`c` counter, `w` window mean, `i` instant), zero, offset of its cell in a row.
COLUMN: Final = struct.Struct("<40sd12scBH")
#: Limits for any file, so that a damaged one cannot exhaust its reader's memory.
MOST_STREAMS: Final = 512
MOST_COLUMNS: Final = 1024
MOST_SLOTS: Final = 1 << 20
LARGEST: Final = 1 << 30
LONGEST_HEAD: Final = HEADER.size + STREAM.size * MOST_STREAMS + COLUMN.size * MOST_COLUMNS

#: The check is the polynomial of all words, the generation first, at `POINT`, modulo the highest prime of 64 bits. Two
#: different rows of n words have the same check at no more than n points. The exception, words that differ by the prime
#: itself, does not occur with the numbers of these files.
PRIME: Final = (1 << 64) - 59
POINT: Final = 0x1B87_3593_CC9E_2D51

#: The marks of an absent sample.
NO_COUNT: Final = -(1 << 63)
NO_VALUE: Final = -(1 << 31)
#: A longer window mean is written as several of the same value, which have the same integral. Of a mean longer than a
#: minute, which no sensor has, only the last minute is written.
LONGEST_WINDOW_NS: Final = 4_000_000_000
_LONGEST_WRITTEN_NS: Final = 60_000_000_000

_PREFIX: Final = struct.Struct("<Qq")
_KINDS: Final = {Kind.COUNTER: b"c", Kind.WINDOW_MEAN: b"w", Kind.INSTANT: b"i"}
_CELLS: Final = {b"c": "q", b"w": "Ii", b"i": "i"}
#: The highest age of a sample in a row.
LONGEST_AGE_NS: Final = 4_000_000_000
#: The shortest period of each tier.
_PERIODS_NS: Final = {Tier.FAST: 0, Tier.GPM: 100_000_000, Tier.SLOW: 1_000_000_000, Tier.RARE: 10_000_000_000}
#: The most columns of a signal. More would save nothing: a row's frame has 24 bytes.
_MOST_REPEATS: Final = 8
#: Power samples in a row. The driver buffers one every 20 ms (H100 and H200), and the buffer is read four times a
#: second, or once a second. So three rows a second have room, or four if no row waits for the next read.
_POWER_REPEATS: Final = 20
_POWER_ROW_NS: Final = 333_000_000
#: Besides power, the driver buffers only utilisations, whose nominal window is shorter than this. They are renewed at
#: most six times a second.
_SAMPLED_WINDOW_NS: Final = 500_000_000
_UTILIZATION_REPEATS: Final = 3
_UTILIZATION_ROW_NS: Final = 300_000_000
#: The time between two reads of a driver's buffers.
_DRAIN_NS: Final = 250_000_000
#: A read of the slow counters may come early by this part of their period.
_EARLY: Final = 16
_FEWEST_SLOTS: Final = 16


class LayoutError(Exception):
    """The file is not one of the node's timeline, or is damaged. The message is the reason."""


class RowCell(NamedTuple):
    """A cell of a stream's rows. `signal` is None where this catalogue has no such signal."""

    key: str
    kind: bytes
    signal: Signal | None


class RowRing:
    """A ring of rows: `slots` of them from `offset` on."""

    def __init__(self, name: str, offset: int, slots: int, columns: Sequence[RowCell], *, aged: bool = False) -> None:
        self.name = name
        self.offset = offset
        self.slots = slots
        self.columns = tuple(columns)
        #: Whether each cell begins with its sample's age.
        self.aged = aged
        cells = "<Qq" + "".join(_cell(column.kind, aged=aged) for column in columns)
        cells += "x" * (-struct.calcsize(cells) % 8)
        #: Formats of a row without its check, of the whole row, and of the row as words.
        self.body = struct.Struct(cells)
        self.row = struct.Struct(cells + "Q")
        self.words = struct.Struct(f"<{self.body.size // 8}Q")
        powers = accumulate(repeat(POINT, self.body.size // 8), _times, initial=1)
        self._generation_power, *self._powers = reversed(list(powers))

    @property
    def end(self) -> int:
        """The offset of its end in the file."""
        return self.offset + self.slots * self.row.size

    @cached_property
    def absent(self) -> list[int]:
        """The cells of a row without samples. A window mean has two: length and value."""
        empty = {b"c": [NO_COUNT], b"w": [0, NO_VALUE], b"i": [NO_VALUE]}
        return [number for column in self.columns for number in [0] * self.aged + empty[column.kind]]

    def check(self, body: bytes | memoryview, generation: int) -> int:
        """The check of a row with this body."""
        total: int = sum(map(mul, self.words.unpack(body), self._powers)) + generation * self._generation_power
        return total % PRIME


def _times(before: int, point: int) -> int:
    return before * point % PRIME


def _cell(kind: bytes, *, aged: bool) -> str:
    return "I" * aged + _CELLS[kind]


def hold_ns(periods_ns: Mapping[Tier, int], counters_ns: int) -> int:
    """How long a row with room waits for the next read: until the slow counters are due. 0 if that is the next read."""
    return counters_ns if 0 < 2 * periods_ns.get(Tier.FAST, 0) <= counters_ns else 0


def streams_for(
    signals: Iterable[Signal], *, periods_ns: Mapping[Tier, int], retention_ns: int, counters_ns: int = 0
) -> tuple[RowRing, ...]:
    """The streams of a device with these signals. `periods_ns`: tier -> period of its reads.

    Signals that are read together share a stream. Energy and throttle time are read at most every `counters_ns`, and
    end a row of all fast reads since their last read. A window mean that the driver may buffer has its own stream, as
    many samples arrive at once.
    """
    hold, fast = hold_ns(periods_ns, counters_ns), periods_ns.get(Tier.FAST, 0)
    repeats = min(_MOST_REPEATS, -(-(hold - hold // _EARLY) // fast)) if hold else 1
    grouped: dict[tuple[str, int], list[Signal]] = {}
    for signal in signals:
        period = max(periods_ns.get(signal.tier, 0), _PERIODS_NS[signal.tier])
        if signal is POWER:
            period = min(_POWER_ROW_NS, _POWER_REPEATS * fast) if hold else min(_DRAIN_NS, period)
            grouped[signal.key, period] = [signal] * _POWER_REPEATS
        elif is_buffered(signal):
            most = max(_UTILIZATION_REPEATS, repeats)
            period = min(_UTILIZATION_ROW_NS, most * fast) if hold else min(_DRAIN_NS, period)
            grouped[signal.key, period] = [signal] * most
        elif signal.tier is Tier.FAST:
            group = grouped.setdefault((signal.tier.value, period * repeats), [])
            group += [signal] * (1 if signal in SLOW_COUNTERS else repeats)
        else:
            grouped.setdefault((signal.tier.value, period), []).append(signal)
    made: list[RowRing] = []
    position = HEADER.size + STREAM.size * len(grouped) + COLUMN.size * sum(map(len, grouped.values()))
    for (name, period), members in grouped.items():
        windows = any(signal.kind is Kind.WINDOW_MEAN for signal in members)
        # All activity counters of one read end at the same moment, and so do the parts of one window mean.
        alone = len(set(members)) == 1 and (windows or len(members) == 1)
        aged = not alone and members[0].tier is not Tier.GPM
        # A long window mean needs several rows, and the other readings of the stream one more.
        rows = max(1, -(-period // LONGEST_WINDOW_NS)) if windows else 1
        rows += aged and rows > 1
        slots = min(MOST_SLOTS, max(_FEWEST_SLOTS, (retention_ns // max(1, period) + 1) * rows))
        columns = [RowCell(signal.key, _KINDS[signal.kind], signal) for signal in members]
        made.append(RowRing(name, position, slots, columns, aged=aged))
        position = made[-1].end
    return tuple(made)


def is_buffered(signal: Signal) -> bool:
    """Whether NVML may buffer samples of this utilisation, so that several arrive at once."""
    return signal.kind is Kind.WINDOW_MEAN and signal.tier is not Tier.GPM and 0 < signal.window_ns < _SAMPLED_WINDOW_NS


class Head(NamedTuple):
    """The header and the descriptions of a file."""

    uuid: str
    generation: int
    created_ns: int
    streams: tuple[RowRing, ...]


def pack_head(head: Head) -> bytes:
    """The bytes at the start of a file: header and descriptions."""
    columns = [column for stream in head.streams for column in stream.columns]
    rows, first = bytearray(), 0
    for stream in head.streams:
        place = stream.offset, stream.slots, stream.row.size, first, len(stream.columns), stream.aged
        rows += STREAM.pack(stream.name.encode(), *place)
        first += len(stream.columns)
    for stream in head.streams:
        offset = _PREFIX.size
        for key, kind, signal in stream.columns:
            if signal is None:
                raise ValueError(f"{key}: not a signal")
            rows += COLUMN.pack(key.encode(), signal.quantum, signal.unit.encode(), kind, 0, offset)
            offset += struct.calcsize("<" + _cell(kind, aged=stream.aged))
    fields = (MAGIC, VERSION, len(head.streams), len(columns), 0, head.generation, head.created_ns, head.uuid.encode())
    return HEADER.pack(*fields, _head_check(HEADER.pack(*fields, 0) + rows)) + bytes(rows)


def read_head(data: bytes, size: int) -> Head:
    """The head of a file of `size` bytes that begins with `data`. LayoutError if it is invalid."""
    if len(data) < HEADER.size:
        raise LayoutError(f"{len(data)} bytes, which is less than a header")
    magic, version, streams, columns, _, generation, created_ns, uuid, check = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise LayoutError("not a file of the node's timeline (wrong magic)")
    if version != VERSION:
        raise LayoutError(f"version {version}, but this gpu-profile reads version {VERSION}")
    at = HEADER.size + STREAM.size * streams
    end = at + COLUMN.size * columns
    if streams > MOST_STREAMS or columns > MOST_COLUMNS or len(data) < end or size > LARGEST:
        raise LayoutError(f"{streams} streams and {columns} columns do not fit")
    if check != _head_check(data[: HEADER.size - 8] + bytes(8) + data[HEADER.size : end]):
        raise LayoutError("damaged header")
    every = list(COLUMN.iter_unpack(data[at:end]))
    rings = tuple(_read_stream(row, every, end, size) for row in STREAM.iter_unpack(data[HEADER.size : at]))
    return Head(_text(uuid), generation, created_ns, rings)


def _read_column(row: tuple[bytes, float, bytes, bytes, int, int]) -> RowCell:
    key, quantum, _, kind, *_ = row
    if kind not in _CELLS:
        raise LayoutError(f"a column of kind {kind!r}")
    name = _text(key)
    signal = _BY_KEY.get(name)
    if signal is not None and (signal.quantum, _KINDS[signal.kind]) != (quantum, kind):
        signal = None  # another release uses this name for something else
    return RowCell(name, kind, signal)


def _read_stream(
    row: tuple[bytes, int, int, int, int, int, int],
    columns: Sequence[tuple[bytes, float, bytes, bytes, int, int]],
    end: int,
    size: int,
) -> RowRing:
    name, offset, slots, row_size, first, count, aged = row
    if not 0 < slots <= MOST_SLOTS or not count or first + count > len(columns) or offset < end or aged > 1:
        raise LayoutError("a stream with an invalid description")
    own = columns[first : first + count]
    stream = RowRing(_text(name), offset, slots, [_read_column(column) for column in own], aged=bool(aged))
    if stream.row.size != row_size or stream.end > size:
        raise LayoutError("a stream that does not fit its file")
    at = _PREFIX.size
    for *_, kind, _, place in own:
        if place != at:
            raise LayoutError("a cell with a wrong offset")
        at += struct.calcsize("<" + _cell(kind, aged=stream.aged))
    return stream


def _head_check(data: bytes) -> int:
    result = 0
    for (word,) in struct.iter_unpack("<Q", data):
        result = (result * POINT + word) % PRIME
    return result


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


_BY_KEY: Final = {signal.key: signal for signal in SIGNALS}


def windows_of(start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """Ends and lengths of the samples as which a window mean is written."""
    start_ns = max(start_ns, end_ns - _LONGEST_WRITTEN_NS)
    while end_ns - start_ns > LONGEST_WINDOW_NS:
        start_ns += LONGEST_WINDOW_NS
        yield start_ns, LONGEST_WINDOW_NS
    yield end_ns, max(0, end_ns - start_ns)
