"""How bytes lie in a file of the node's timeline: one device, one writer. All numbers are little-endian.

A file is a header, descriptions of its streams and of their columns, and then the streams: rings of rows of one size.
Signals that are read together share a stream. Row `k` (from 1) lies in slot `(k - 1) % slots` and holds, in this order:

- its sequence number `k` (u64) and the moment at which its samples end (i64, ns since the epoch),
- a cell for each column: a counter's reading (i64), an instant's (i32), or the length (u32, ns) and the value (i32) of
  a window mean; values are whole quanta, and the lowest number of its type stands where there is no sample,
- zeros up to a multiple of 8 bytes, and the check (u64).

Drivers stamp what is read together at different moments: in such streams each cell begins with how long before the
row's end its sample ended (u32, ns). A window mean may have several columns: its samples follow one another, and the
last ends with the row.

The check covers all words of the row and the file's generation. A row is valid if its check fits and its sequence
number belongs to its slot; any other is not yet written, or has been overwritten. So nothing depends on the order in
which one process sees the stores of another.
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

VERSION: Final = 2
SUFFIX: Final = ".ring"
MAGIC: Final = b"GPURING\n"
#: Magic, version, number of streams, number of columns, zero, generation, created (ns since the epoch), UUID, check.
HEADER: Final = struct.Struct("<8sHHHHQq96sQ")
#: Name, offset of its rows in the file, slots, bytes of a row, first column, number of columns, whether cells are aged.
STREAM: Final = struct.Struct("<16sQIHHHH4x")
#: Key, quantum in its unit, unit, kind (`c` counter, `w` window mean, `i` instant), zero, offset of its cell in a row.
COLUMN: Final = struct.Struct("<40sd12scBH")
#: Whatever a file says, its reader needs no more memory than for so much.
MOST_STREAMS: Final = 512
MOST_COLUMNS: Final = 1024
MOST_SLOTS: Final = 1 << 20
LARGEST: Final = 1 << 30
LONGEST_HEAD: Final = HEADER.size + STREAM.size * MOST_STREAMS + COLUMN.size * MOST_COLUMNS

#: The check is the polynomial of all words, the generation first, at this point, modulo the highest prime of 64 bits.
#: Two rows of n words have the same check at n points at most, unless they differ by the prime itself in a word, which
#: no number that is written here does.
PRIME: Final = (1 << 64) - 59
POINT: Final = 0x1B87_3593_CC9E_2D51

#: What stands for no sample.
NO_COUNT: Final = -(1 << 63)
NO_VALUE: Final = -(1 << 31)
#: A window mean longer than this is written as several of the same value, which have the same integral; of one that is
#: longer than a minute, which no sensor has, the last minute.
LONGEST_WINDOW_NS: Final = 4_000_000_000
_LONGEST_WRITTEN_NS: Final = 60_000_000_000

_PREFIX: Final = struct.Struct("<Qq")
_KINDS: Final = {Kind.COUNTER: b"c", Kind.WINDOW_MEAN: b"w", Kind.INSTANT: b"i"}
_CELLS: Final = {b"c": "q", b"w": "Ii", b"i": "i"}
#: No sample of a row ended earlier before it.
LONGEST_AGE_NS: Final = 4_000_000_000
#: How often signals of a tier are read at most.
_PERIODS_NS: Final = {Tier.FAST: 0, Tier.GPM: 100_000_000, Tier.SLOW: 1_000_000_000, Tier.RARE: 10_000_000_000}
#: The driver's own samples of power come so often (an H100's and an H200's), and are fetched many at a time.
_SAMPLED_NS: Final = 20_000_000
_SAMPLED_IN_A_ROW: Final = 8
#: The driver buffers samples of utilisation, whose nominal window is shorter than this, and none of others. They come
#: six times a second at most.
_SAMPLED_WINDOW_NS: Final = 500_000_000
_SAMPLED_UTILIZATION_NS: Final = 160_000_000
_FEWEST_SLOTS: Final = 16


class LayoutError(Exception):
    """A file is none of ours, or damaged: the reason."""


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
        #: Whether each cell begins with how long before the row's end its sample ended.
        self.aged = aged
        cells = "<Qq" + "".join(_cell(column.kind, aged=aged) for column in columns)
        cells += "x" * (-struct.calcsize(cells) % 8)
        #: A row without its check and as a whole, and its words.
        self.body = struct.Struct(cells)
        self.row = struct.Struct(cells + "Q")
        self.words = struct.Struct(f"<{self.body.size // 8}Q")
        powers = accumulate(repeat(POINT, self.body.size // 8), _times, initial=1)
        self._generation_power, *self._powers = reversed(list(powers))

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.offset + self.slots * self.row.size

    @cached_property
    def absent(self) -> list[int]:
        """The cells of a row without samples, a window mean's length and value one after the other."""
        empty = {b"c": [NO_COUNT], b"w": [0, NO_VALUE], b"i": [NO_VALUE]}
        return [number for column in self.columns for number in [0] * self.aged + empty[column.kind]]

    def check(self, body: bytes | memoryview, generation: int) -> int:
        """The check of a row with this body."""
        found: int = sum(map(mul, self.words.unpack(body), self._powers)) + generation * self._generation_power
        return found % PRIME


def _times(before: int, point: int) -> int:
    return before * point % PRIME


def _cell(kind: bytes, *, aged: bool) -> str:
    return "I" * aged + _CELLS[kind]


def streams_for(
    signals: Iterable[Signal], *, periods_ns: Mapping[Tier, int], retention_ns: int, counters_ns: int = 0
) -> tuple[RowRing, ...]:
    """The streams of a device with these signals, of which each tier is read every `periods_ns`.

    Signals that are read together share a stream. Energy and throttle time are read by themselves, every `counters_ns`
    at most. A window mean that the driver may have buffered has one of its own, as many of its samples come at once.
    """
    grouped: dict[tuple[str, int], list[Signal]] = {}
    for signal in signals:
        period = max(periods_ns.get(signal.tier, 0), _PERIODS_NS[signal.tier])
        if signal is POWER:
            # A row that is not full when the driver's buffer has been read to its end stays so.
            grouped[signal.key, _SAMPLED_NS * _SAMPLED_IN_A_ROW * 3 // 4] = [signal] * _SAMPLED_IN_A_ROW
        elif signal in SLOW_COUNTERS:
            grouped.setdefault(("counters", max(period, counters_ns)), []).append(signal)
        elif is_buffered(signal):
            grouped[signal.key, min(period, _SAMPLED_UTILIZATION_NS)] = [signal]
        else:
            grouped.setdefault((signal.tier.value, period), []).append(signal)
    made: list[RowRing] = []
    position = HEADER.size + STREAM.size * len(grouped) + COLUMN.size * sum(map(len, grouped.values()))
    for (name, period), members in grouped.items():
        # Activity counters are of one moment.
        aged = len(set(members)) > 1 and members[0].tier is not Tier.GPM
        # A long window mean takes several rows, and readings beside it one of their own.
        rows = -(-period // LONGEST_WINDOW_NS) if any(signal.kind is Kind.WINDOW_MEAN for signal in members) else 1
        rows = max(1, rows) + (aged and rows > 1)
        slots = min(MOST_SLOTS, max(_FEWEST_SLOTS, (retention_ns // max(1, period) + 1) * rows))
        columns = [RowCell(signal.key, _KINDS[signal.kind], signal) for signal in members]
        made.append(RowRing(name, position, slots, columns, aged=aged))
        position = made[-1].end
    return tuple(made)


def is_buffered(signal: Signal) -> bool:
    """Whether NVML may buffer samples of this utilisation, so that several come at once."""
    return signal.kind is Kind.WINDOW_MEAN and signal.tier is not Tier.GPM and 0 < signal.window_ns < _SAMPLED_WINDOW_NS


class Head(NamedTuple):
    """What a file says of itself."""

    uuid: str
    generation: int
    created_ns: int
    streams: tuple[RowRing, ...]


def pack_head(head: Head) -> bytes:
    """The header and the descriptions, as they stand at the start of a file."""
    columns = [column for stream in head.streams for column in stream.columns]
    told, first = bytearray(), 0
    for stream in head.streams:
        place = stream.offset, stream.slots, stream.row.size, first, len(stream.columns), stream.aged
        told += STREAM.pack(stream.name.encode(), *place)
        first += len(stream.columns)
    for stream in head.streams:
        offset = _PREFIX.size
        for key, kind, signal in stream.columns:
            if signal is None:
                raise ValueError(f"{key}: not a signal")
            told += COLUMN.pack(key.encode(), signal.quantum, signal.unit.encode(), kind, 0, offset)
            offset += struct.calcsize("<" + _cell(kind, aged=stream.aged))
    fields = (MAGIC, VERSION, len(head.streams), len(columns), 0, head.generation, head.created_ns, head.uuid.encode())
    return HEADER.pack(*fields, _head_check(HEADER.pack(*fields, 0) + told)) + bytes(told)


def read_head(data: bytes, size: int) -> Head:
    """The header of a file of `size` bytes that begins with `data`; LayoutError if it is none."""
    if len(data) < HEADER.size:
        raise LayoutError(f"{len(data)} bytes are no header")
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
    found = tuple(_read_stream(row, every, end, size) for row in STREAM.iter_unpack(data[HEADER.size : at]))
    return Head(_text(uuid), generation, created_ns, found)


def _read_column(row: tuple[bytes, float, bytes, bytes, int, int]) -> RowCell:
    key, quantum, _, kind, *_ = row
    if kind not in _CELLS:
        raise LayoutError(f"a column of kind {kind!r}")
    name = _text(key)
    signal = _BY_KEY.get(name)
    if signal is not None and (signal.quantum, _KINDS[signal.kind]) != (quantum, kind):
        signal = None  # another release means something else by that name
    return RowCell(name, kind, signal)


def _read_stream(
    row: tuple[bytes, int, int, int, int, int, int],
    columns: Sequence[tuple[bytes, float, bytes, bytes, int, int]],
    end: int,
    size: int,
) -> RowRing:
    name, offset, slots, row_size, first, count, aged = row
    if not 0 < slots <= MOST_SLOTS or not count or first + count > len(columns) or offset < end or aged > 1:
        raise LayoutError("a stream that cannot be")
    told = columns[first : first + count]
    stream = RowRing(_text(name), offset, slots, [_read_column(column) for column in told], aged=bool(aged))
    if stream.row.size != row_size or stream.end > size:
        raise LayoutError("a stream that does not fit its file")
    at = _PREFIX.size
    for *_, kind, _, place in told:
        if place != at:
            raise LayoutError("a cell that is not where it belongs")
        at += struct.calcsize("<" + _cell(kind, aged=stream.aged))
    return stream


def _head_check(data: bytes) -> int:
    found = 0
    for (word,) in struct.iter_unpack("<Q", data):
        found = (found * POINT + word) % PRIME
    return found


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


_BY_KEY: Final = {signal.key: signal for signal in SIGNALS}


def windows_of(start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    """The ends and lengths of the samples that a window mean is written as."""
    start_ns = max(start_ns, end_ns - _LONGEST_WRITTEN_NS)
    while end_ns - start_ns > LONGEST_WINDOW_NS:
        start_ns += LONGEST_WINDOW_NS
        yield start_ns, LONGEST_WINDOW_NS
    yield end_ns, max(0, end_ns - start_ns)
