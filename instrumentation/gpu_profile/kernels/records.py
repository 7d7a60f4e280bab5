"""A profiler's records: GPU operations, the calls that launched them, and activity of the host around them. Pure.

All times are nanoseconds of one clock. Threads have the operating system's ids (`threading.get_native_id`). Readers of
files and profilers yield these records in any order; the other modules take nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

#: The device of operators that the host ran itself.
HOST: Final = -1


class Kind(StrEnum):
    """The kind of a GPU operation. A copy stays within one GPU's memory; a transfer crosses a link."""

    KERNEL = "kernel"
    COMMUNICATION = "communication"
    TRANSFER = "transfer"
    COPY = "copy"
    SET = "set"


class Operation(NamedTuple):
    """An operation that ran on a GPU in `[start_ns, end_ns)`.

    `bytes` is the size of a copy or set. `occupancy` is the profiler's estimate of the achieved occupancy, 0-1.
    `blocks` are the launched blocks per multiprocessor. `graph`: a CUDA graph launched it. None: not in the record.
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
    """A call of the CUDA or HIP runtime or driver on a host thread. It launched the operations with its correlation.

    `bytes` is the size of a requested copy, set where only the call records it.
    """

    correlation: int
    start_ns: int
    end_ns: int
    thread: int | str
    name: str = ""
    bytes: int | None = None


class Range(NamedTuple):
    """One execution of a region on a thread. `id` and `parent` are 0 where the recorder does not provide them.

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

    `sequence` is autograd's number, which a forward operator shares with its `backward` operator.
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
    """Memory allocated (`bytes` > 0) or freed (< 0). `total` is the allocator's allocated bytes after it.

    `source` names the allocator: `torch` for PyTorch's caching allocator, `driver` for cudaMalloc and similar calls.
    The latter have a `kind`: `device`, `pinned`, `managed`, …. `device` is -1 for the host.
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
    """Hardware counters of one range. Its name is that of the one kernel in it, or of a region."""

    name: str
    device: int
    values: Mapping[str, float]


Record = Operation | Call | Range | Operator | Launched | Allocation | RangeCounters
