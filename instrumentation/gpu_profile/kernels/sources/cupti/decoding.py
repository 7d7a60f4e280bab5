"""From CUPTI's rows to records. Pure.

CUPTI's times are nanoseconds of CLOCK_REALTIME (its default on Linux), so they are not converted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from gpu_profile.kernels.records import HOST, Allocation, Call, Kind, Launched, Operation, Record
from gpu_profile.kernels.sources.cupti import rows as r
from gpu_profile.kernels.sources.cupti.names import COPY_KINDS, MEMORY_KINDS, copy_name, demangled, named, set_name
from gpu_profile.kernels.sources.cupti.rows import Row

#: CUpti_ExternalCorrelationKind: PyTorch's profiler uses CUSTOM0 and CUSTOM1.
CUSTOM2: Final = 5
_TAKEN, _GIVEN_BACK = 1, 2
_HOST_MEMORY: Final = (1, 2)
#: Copies that stay within one GPU's memory, arrays included.
_WITHIN: Final = tuple(COPY_KINDS.index(name) for name in ("AtoA", "AtoD", "DtoA", "DtoD"))
_INVALID: Final = 0xFFFFFFFF
_RANGE_BITS: Final = 32


def external_id(recording: int, range_id: int) -> int:
    """The id to push for a range. It includes the recording, so that a stale id matches no later recording."""
    return recording << _RANGE_BITS | range_id & (1 << _RANGE_BITS) - 1


def decode(
    kinds: Mapping[int, Sequence[Row]], *, call_name: Callable[[int, int], str], recording: int, skipped: Counter[str]
) -> Iterator[Record]:
    """The records in `kinds`, whose rows have the columns of `rows.FIELDS`.

    `recording` is the number that was passed to `external_id`. Unusable rows are counted in `skipped` by reason.
    """
    for kind in (r.RUNTIME, r.DRIVER):
        for start, end, thread, correlation, callback in _lasting(kinds, kind, skipped):
            yield Call(correlation, start, end, thread, call_name(kind, callback))
    for kind, external, correlation in kinds.get(r.EXTERNAL_CORRELATION, ()):
        if kind == CUSTOM2 and external >> _RANGE_BITS == recording:
            yield Launched(correlation, external & (1 << _RANGE_BITS) - 1)
    multiprocessors = {device: count for device, count in kinds.get(r.DEVICE, ()) if count}
    for kind in (r.CONCURRENT_KERNEL, r.KERNEL):
        for row in _lasting(kinds, kind, skipped):
            yield _kernel(row, multiprocessors)
    for kind in (r.MEMCPY, r.MEMCPY2):
        yield from map(_copy, _lasting(kinds, kind, skipped))
    yield from map(_set, _lasting(kinds, r.MEMSET, skipped))
    yield from _allocations(kinds, skipped)


def _lasting(kinds: Mapping[int, Sequence[Row]], kind: int, skipped: Counter[str]) -> Iterator[Row]:
    """The rows of one kind that have a start and an end."""
    for row in kinds.get(kind, ()):
        start, end = row[:2]
        # CUPTI also returns activities that had not ended at the flush, with 0 for unknown times.
        if not start or not end:
            skipped["without a time: it had not ended"] += 1
        elif end < start:
            skipped["negative duration"] += 1
        else:
            yield row


def _kernel(row: Row, multiprocessors: Mapping[int, int]) -> Operation:
    start, end, device, stream, correlation, graph, x, y, z, name = row
    name = demangled(name or "")
    # NCCL's kernels contain its name.
    kind = Kind.COMMUNICATION if "nccl" in name.lower() else Kind.KERNEL
    count = multiprocessors.get(device)
    blocks = x * y * z / count if count and x and y and z else None
    return Operation(kind, device, stream, start, end, name, correlation, blocks=blocks, graph=bool(graph))


def _copy(row: Row) -> Operation:
    start, end, device, stream, correlation, graph, direction, source, target, size, *peers = row
    within = direction in _WITHIN or (len(peers) == 2 and peers[0] is not None and peers[0] == peers[1])
    return Operation(
        Kind.COPY if within else Kind.TRANSFER,
        device,
        stream,
        start,
        end,
        copy_name(direction, source, target),
        correlation,
        bytes=size,
        graph=bool(graph),
    )


def _set(row: Row) -> Operation:
    start, end, device, stream, correlation, graph, memory, size = row
    name = set_name(memory)
    return Operation(Kind.SET, device, stream, start, end, name, correlation, bytes=size, graph=bool(graph))


def _allocations(kinds: Mapping[int, Sequence[Row]], skipped: Counter[str]) -> Iterator[Allocation]:
    """Memory that the driver allocated and freed, in order of time. The thread is that of the call."""
    rows = sorted(kinds.get(r.MEMORY2, ()), key=lambda row: row[0] or 0)
    wanted = {row[8] for row in rows}
    threads = {
        row[3]: row[2]
        for kind in (r.DRIVER, r.RUNTIME)
        for row in (kinds.get(kind, ()) if wanted else ())
        if row[3] in wanted
    }
    sizes: dict[int, int] = {}
    for time, address, size, change, memory, device, context, stream, correlation, later in rows:
        if not time or change not in (_TAKEN, _GIVEN_BACK):
            skipped["memory without a time or a direction"] += 1
            continue
        if change == _TAKEN:
            sizes[address] = size
        else:
            taken = sizes.pop(address, 0)
            size = -(size or taken)  # noqa: PLW2901 - some kinds of frees have no size
            if not size:
                skipped["memory given back whose size is not known"] += 1
                continue
        yield Allocation(
            time,
            threads.get(correlation, ""),
            HOST if memory in _HOST_MEMORY else device,
            size,
            address=address,
            source="driver",
            kind=named(MEMORY_KINDS, memory).lower(),
            correlation=correlation,
            stream=None if stream == _INVALID else stream,
            context=None if context == _INVALID else context,
            asynchronous=bool(later),
        )
