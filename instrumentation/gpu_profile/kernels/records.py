"""What a profiler records: GPU operations, the calls that launched them, and what the host did around them. Pure.

All times are nanoseconds of one clock; threads are what the operating system calls them (`threading.get_native_id`).
Whoever reads a file or a profiler yields these, in any order, and everything above takes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

#: The device of operators that the host ran itself.
HOST: Final = -1


class Kind(StrEnum):
    """What a GPU operation does. A copy stays within one GPU's memory; a transfer crosses a link."""

    KERNEL = "kernel"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    COPY = "copy"
    SET = "set"


class Operation(NamedTuple):
    """Something that ran on a GPU in `[start_ns, end_ns)`.

    `bytes` is what a copy or set moved; `occupancy` the profiler's estimate of the achieved occupancy, 0-1; `blocks`
    the launched blocks per multiprocessor; `graph` whether a CUDA graph launched it. None: not in the record.
    """

    kind: Kind
    device: int
    stream: int | str
    start_ns: int
    end_ns: int
    name: str
    correlation: int | None
    bytes: int | None = None
    occupancy: float | None = None
    blocks: float | None = None
    graph: bool = False


class Call(NamedTuple):
    """A call of the CUDA or HIP runtime or driver on a host thread; operations with its correlation came of it.

    `bytes` is what it was asked to copy, where only the call says so.
    """

    correlation: int
    start_ns: int
    end_ns: int
    thread: int | str
    name: str = ""
    bytes: int | None = None


class Range(NamedTuple):
    """One execution of a region on a thread. `id` and `parent` (0: none) where whoever recorded it knows them.

    Without a parent it is inside the range that was open around it on its thread.
    """

    name: str
    thread: int | str
    start_ns: int
    end_ns: int
    id: int = 0
    parent: int = 0


class Operator(NamedTuple):
    """One call of a framework's operator on a host thread.

    `sequence` is autograd's number, which a forward operator shares with its backward; `backward` tells which it is.
    """

    name: str
    thread: int | str
    start_ns: int
    end_ns: int
    sequence: int | None = None
    backward: bool = False


class Launched(NamedTuple):
    """The call with this correlation was made inside the range with this id: an external correlation."""

    correlation: int
    range: int


class Allocation(NamedTuple):
    """Memory taken (`bytes` > 0) or given back (< 0). `total` is what the allocator had given out after it.

    `source` is who gave it: `torch` for PyTorch's caching allocator, `driver` for cudaMalloc and its kin, whose
    `kind` is `device`, `pinned`, `managed`, …; `device` is -1 for the host.
    """

    time_ns: int
    thread: int | str
    device: int
    bytes: int
    total: int | None = None
    address: int = 0
    source: str = "torch"
    kind: str = ""
    correlation: int | None = None
    stream: int | None = None
    context: int | None = None
    asynchronous: bool = False


class RangeCounters(NamedTuple):
    """Hardware counters of one range, which is named after the one kernel in it, or after a region."""

    name: str
    device: int
    values: Mapping[str, float]


Record = Operation | Call | Range | Operator | Launched | Allocation | RangeCounters
