"""Records as they come, in arrays: 54 bytes for a GPU operation, and at most 48 for anything else."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.records import Allocation, Call, Counted, Kind, Launched, Operation, Operator, Range, Record

KINDS: Final = tuple(Kind)
CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
#: Stands for what is not known in columns of whole numbers.
NONE: Final = np.iinfo(np.int64).max
Numbers = NDArray[np.int64]
K = TypeVar("K")


class Operations(NamedTuple):
    """GPU operations as arrays of one length; `streams` and `names` number the entries of the lists of `Columns`.

    `bytes` is `NONE` where it is not known, `occupancy` and `blocks` NaN; `causes` are correlations, 0: none.
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
    """Calls of the runtime or driver. `bytes` is `NONE` where it is not known."""

    ids: Numbers
    starts: Numbers
    ends: Numbers
    threads: NDArray[np.int32]
    names: NDArray[np.int32]
    bytes: Numbers


class Ranges(NamedTuple):
    """Executions of regions. `ids` and `parents` are 0 where they are not known."""

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
    """Memory taken and given back. `totals` is `NONE` where it is not known; `sources` number names."""

    times: Numbers
    threads: NDArray[np.int32]
    devices: NDArray[np.int32]
    bytes: Numbers
    totals: Numbers
    sources: NDArray[np.int32]
    addresses: NDArray[np.uint64]


class _Numbered(dict[K, int]):
    """Numbers for what repeats, from 0, in order of first appearance."""

    def __missing__(self, key: K) -> int:
        self[key] = number = len(self)
        return number


def _arrays(codes: str) -> list[array[Any]]:
    return [array(code) for code in codes]


class Columns:
    """All records of a recording. `driver` keeps the driver's allocations whole, for they are few."""

    def __init__(self) -> None:
        self._names: _Numbered[str] = _Numbered()
        self._streams: _Numbered[tuple[int, int | str]] = _Numbered()
        self._threads: _Numbered[int | str] = _Numbered()
        self._operations = _arrays("biqqqiqffb")
        self._calls = _arrays("qqqiiq")
        self._ranges = _arrays("iiqqqq")
        self._operators = _arrays("iiqqqb")
        self._allocations = _arrays("qiiqqiQ")
        self._launched = _arrays("qq")
        self.counted: list[Counted] = []
        self.driver: list[Allocation] = []
        self._add = {
            Operation: self._operation,
            Call: self._call,
            Range: self._range,
            Operator: self._operator,
            Allocation: self._allocation,
            Launched: self._launch,
            Counted: self.counted.append,
        }

    def add(self, record: Record) -> None:
        """Keep one record."""
        self._add[type(record)](record)  # type: ignore[operator]  # each takes the type that it stands under

    def extend(self, records: Iterable[Record]) -> None:
        """Keep all of them."""
        take: Any = self._add
        for record in records:
            take[type(record)](record)

    def _operation(self, r: Operation) -> None:
        kinds, streams, starts, ends, causes, names, moved, occupancy, blocks, graphs = self._operations
        kinds.append(CODES[r.kind])
        streams.append(self._streams[r.device, r.stream])
        starts.append(r.start_ns)
        ends.append(r.end_ns)
        causes.append(r.correlation or 0)  # no call has the id 0
        names.append(self._names[r.name])
        moved.append(NONE if r.bytes is None else r.bytes)
        occupancy.append(np.nan if r.occupancy is None else r.occupancy)
        blocks.append(np.nan if r.blocks is None else r.blocks)
        graphs.append(r.graph)

    def _call(self, r: Call) -> None:
        ids, starts, ends, threads, names, moved = self._calls
        ids.append(r.correlation)
        starts.append(r.start_ns)
        ends.append(r.end_ns)
        threads.append(self._threads[r.thread])
        names.append(self._names[r.name])
        moved.append(NONE if r.bytes is None else r.bytes)

    def _range(self, r: Range) -> None:
        names, threads, starts, ends, ids, parents = self._ranges
        names.append(self._names[r.name])
        threads.append(self._threads[r.thread])
        starts.append(r.start_ns)
        ends.append(r.end_ns)
        ids.append(r.id)
        parents.append(r.parent)

    def _operator(self, r: Operator) -> None:
        names, threads, starts, ends, sequences, backward = self._operators
        names.append(self._names[r.name])
        threads.append(self._threads[r.thread])
        starts.append(r.start_ns)
        ends.append(r.end_ns)
        sequences.append(-1 if r.sequence is None else r.sequence)
        backward.append(r.backward)

    def _allocation(self, r: Allocation) -> None:
        times, threads, devices, moved, totals, sources, addresses = self._allocations
        times.append(r.time_ns)
        threads.append(self._threads[r.thread])
        devices.append(r.device)
        moved.append(r.bytes)
        totals.append(NONE if r.total is None else r.total)
        sources.append(self._names[r.source])
        addresses.append(r.address)
        if r.source == "driver":
            self.driver.append(r)

    def _launch(self, r: Launched) -> None:
        calls, ranges = self._launched
        calls.append(r.correlation)
        ranges.append(r.range)

    @property
    def names(self) -> list[str]:
        """Texts by their numbers."""
        return list(self._names)

    @property
    def streams(self) -> list[tuple[int, int | str]]:
        """Device and stream by their numbers."""
        return list(self._streams)

    @property
    def threads(self) -> list[int | str]:
        """Threads by their numbers."""
        return list(self._threads)

    @property
    def operations(self) -> Operations:
        """GPU operations, in the order in which they were added, as is all else."""
        return Operations(*map(np.asarray, self._operations))

    @property
    def calls(self) -> Calls:
        """Calls of the runtime or driver."""
        return Calls(*map(np.asarray, self._calls))

    @property
    def ranges(self) -> Ranges:
        """Executions of regions."""
        return Ranges(*map(np.asarray, self._ranges))

    @property
    def operators(self) -> Operators:
        """Operators of a framework."""
        return Operators(*map(np.asarray, self._operators))

    @property
    def allocations(self) -> Allocations:
        """Memory taken and given back."""
        return Allocations(*map(np.asarray, self._allocations))

    @property
    def launched(self) -> tuple[Numbers, Numbers]:
        """External correlations: ids of calls, and the ids of the ranges that they were made in."""
        calls, ranges = map(np.asarray, self._launched)
        return calls, ranges
