"""Records in arrays, in their order: 54 bytes for a GPU operation, and at most 48 for any other record."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from math import nan
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.records import (
    Allocation,
    Call,
    Kind,
    Launched,
    Operation,
    Operator,
    Range,
    RangeCounters,
    Record,
)

KINDS: Final = tuple(Kind)
CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
#: An unknown value in columns of whole numbers.
NONE: Final = np.iinfo(np.int64).max
Numbers = NDArray[np.int64]
#: Records that are appended to the columns together: more do not fit the processor's cache.
_BATCH: Final = 256
K = TypeVar("K")


class OperationArrays(NamedTuple):
    """GPU operations as arrays of one length; `streams` and `names` are indexes into the lists of `RecordArrays`.

    Unknown values are `NONE` in `bytes`, and NaN in `occupancy` and `blocks`. `causes` are correlations, 0: none.
    """

    kinds: NDArray[np.int8]
    streams: NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    causes: Numbers
    names: NDArray[np.int32]
    bytes: Numbers
    occupancy: NDArray[np.float32]
    blocks: NDArray[np.float32]
    graphs: NDArray[np.int8]


class Calls(NamedTuple):
    """Calls of the runtime or driver. `bytes` is `NONE` where it is unknown."""

    ids: Numbers
    starts: Numbers
    ends: Numbers
    threads: NDArray[np.int32]
    names: NDArray[np.int32]
    bytes: Numbers


class Ranges(NamedTuple):
    """Executions of regions. `ids` and `parents` are 0 where they are unknown."""

    names: NDArray[np.int32]
    threads: NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    ids: Numbers
    parents: Numbers


class Operators(NamedTuple):
    """Operators of a framework. `sequences` is -1 where there is none."""

    names: NDArray[np.int32]
    threads: NDArray[np.int32]
    starts: Numbers
    ends: Numbers
    sequences: Numbers
    backward: NDArray[np.int8]


class Allocations(NamedTuple):
    """Memory allocated and freed. `totals` is `NONE` where it is unknown; `sources` are indexes of names."""

    times: Numbers
    threads: NDArray[np.int32]
    devices: NDArray[np.int32]
    bytes: Numbers
    totals: Numbers
    sources: NDArray[np.int32]
    addresses: NDArray[np.uint64]


class _Numbered(dict[K, int]):
    """Numbers for repeated keys, from 0, in order of first appearance."""

    def __missing__(self, key: K) -> int:
        self[key] = number = len(self)
        return number


class RecordArrays:
    """All records of a recording, as arrays of each kind in the order of the records.

    `names`, `streams` (device and stream) and `threads` are indexed by their numbers. `launched` are external
    correlations: the ids of calls, and the ids of the ranges that they were made in. `driver` are the driver's
    allocations once more, as whole records, because they are few.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._names: _Numbered[str] = _Numbered()
        self._streams: _Numbered[tuple[int, int | str]] = _Numbered()
        self._threads: _Numbered[int | str] = _Numbered()
        self.counted: list[RangeCounters] = []
        self.driver: list[Allocation] = []
        #: By the type of record: the function that makes its row, and the type codes of the row's columns.
        rows: dict[type, tuple[Callable[[Any], tuple[Any, ...]], str]] = {
            Operation: (self._operation, "biqqqiqffb"),
            Call: (self._call, "qqqiiq"),
            Range: (self._range, "iiqqqq"),
            Operator: (self._operator, "iiqqqb"),
            Allocation: (self._allocation, "qiiqqiQ"),
            Launched: (tuple, "qq"),
        }
        arrays = {kind: [array(code) for code in codes] for kind, (_, codes) in rows.items()}
        records = iter(records)
        while batch := list(islice(records, _BATCH)):
            groups: dict[type, list[Any]] = defaultdict(list)
            for record in batch:
                groups[type(record)].append(record)
            self.counted += groups.pop(RangeCounters, [])
            for kind, members in groups.items():
                for column, values in zip(arrays[kind], zip(*map(rows[kind][0], members), strict=True), strict=True):
                    column.extend(values)
        made: dict[type, list[Any]] = {kind: list(map(np.asarray, columns)) for kind, columns in arrays.items()}
        self.names, self.streams, self.threads = list(self._names), list(self._streams), list(self._threads)
        self.operations, self.calls = OperationArrays(*made[Operation]), Calls(*made[Call])
        self.ranges, self.operators = Ranges(*made[Range]), Operators(*made[Operator])
        self.allocations = Allocations(*made[Allocation])
        self.launched: tuple[Numbers, Numbers] = made[Launched][0], made[Launched][1]

    def _operation(self, r: Operation) -> tuple[Any, ...]:
        kind, device, stream, start, end, name, correlation, moved, occupancy, blocks, graph = r
        return (
            CODES[kind],
            self._streams[device, stream],
            start,
            end,
            correlation or 0,  # no call has the id 0
            self._names[name],
            NONE if moved is None else moved,
            nan if occupancy is None else occupancy,
            nan if blocks is None else blocks,
            graph,
        )

    def _call(self, r: Call) -> tuple[Any, ...]:
        moved = NONE if r.bytes is None else r.bytes
        return r.correlation, r.start_ns, r.end_ns, self._threads[r.thread], self._names[r.name], moved

    def _range(self, r: Range) -> tuple[Any, ...]:
        return self._names[r.name], self._threads[r.thread], r.start_ns, r.end_ns, r.id, r.parent

    def _operator(self, r: Operator) -> tuple[Any, ...]:
        sequence = -1 if r.sequence is None else r.sequence
        return self._names[r.name], self._threads[r.thread], r.start_ns, r.end_ns, sequence, r.backward

    def _allocation(self, r: Allocation) -> tuple[Any, ...]:
        if r.source == "driver":
            self.driver.append(r)
        total = NONE if r.total is None else r.total
        return r.time_ns, self._threads[r.thread], r.device, r.bytes, total, self._names[r.source], r.address
