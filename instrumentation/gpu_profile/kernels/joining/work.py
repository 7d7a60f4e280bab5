"""The work that a recording is about: GPU operations with their calls, or, without any, the host's operators. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.joining.columns import CODES, NONE, Numbers, RecordArrays
from gpu_profile.kernels.joining.nesting import Nesting
from gpu_profile.kernels.records import HOST, Kind


class OperationTable(NamedTuple):
    """Operations as arrays of one length, sorted by start and then by launch.

    `launched` is when the call of each began and `threads` the thread that made it, `NONE` and -1 where that is not
    known; `calls` numbers the call, -1: none. `lengths` is the time of each that no other counts: of an operator, that
    outside those that it calls. `ranges` is an external correlation's range id, 0: none. The rest is as
    in `columns.OperationArrays`.
    """

    devices: Numbers
    streams: NDArray[np.int32]
    kinds: NDArray[np.int8]
    starts: Numbers
    ends: Numbers
    lengths: Numbers
    launched: Numbers
    threads: Numbers
    calls: Numbers
    ranges: Numbers
    names: NDArray[np.int32]
    bytes: Numbers
    occupancy: NDArray[np.float32]
    blocks: NDArray[np.float32]
    graphs: NDArray[np.bool_]


def gpu_work(columns: RecordArrays) -> tuple[OperationTable, Mapping[str, int]]:
    """GPU operations, and how many of them could not be joined with a call, by reason."""
    found, calls = columns.operations, columns.calls
    call, notes = _launching(columns)
    has = call >= 0
    launched, threads = np.full(len(call), NONE), np.full(len(call), -1, np.int64)
    launched[has], threads[has] = calls.starts[call[has]], calls.threads[call[has]]
    moved, graphs = found.bytes.copy(), found.graphs.astype(bool)
    untold = has & (moved == NONE)
    moved[untold] = calls.bytes[call[untold]]
    launching = np.array(["GraphLaunch" in name for name in columns.names], bool)
    graphs[has] |= launching[calls.names[call[has]]]
    work = OperationTable(
        devices=np.array([device for device, _ in columns.streams], np.int64)[found.streams],
        streams=found.streams,
        kinds=found.kinds,
        starts=found.starts,
        ends=found.ends,
        lengths=found.ends - found.starts,
        launched=launched,
        threads=threads,
        calls=call,
        ranges=_external(columns, found.causes),
        names=found.names,
        bytes=moved,
        occupancy=found.occupancy,
        blocks=found.blocks,
        graphs=graphs,
    )
    order = np.lexsort((found.ends, launched, found.starts))
    return OperationTable._make(column[order] for column in work), notes


def _launching(columns: RecordArrays) -> tuple[Numbers, Mapping[str, int]]:
    """The call of each operation by its number among the calls, and how many have none, by reason.

    -1 where there is none, or where unrelated calls share its id. A driver's call inside the runtime's, with the same
    id, is part of it.
    """
    calls, causes = columns.calls, columns.operations.causes
    if not len(calls.ids):
        return np.full(len(causes), -1, np.int64), _noted(len(causes), 0)
    order = np.lexsort((-calls.ends, calls.starts, calls.ids))
    ids = calls.ids[order]
    first = np.ones(len(ids), bool)
    first[1:] = ids[1:] != ids[:-1]
    heads = np.flatnonzero(first)
    outer = np.repeat(order[heads], np.diff(np.append(heads, len(ids))))
    inside = (calls.threads[order] == calls.threads[outer]) & (calls.starts[order] <= calls.ends[outer])
    clear = np.logical_and.reduceat(inside, heads)
    place = np.minimum(np.searchsorted(ids[heads], causes), len(heads) - 1)
    known = (ids[heads][place] == causes) & (causes != 0)
    found = np.where(known & clear[place], order[heads][place], -1)
    return found, _noted(int((~known).sum()), int((known & ~clear[place]).sum()))


def _noted(missing: int, ambiguous: int) -> Mapping[str, int]:
    return +Counter(
        {
            "operations whose launching call is not recorded": missing,
            "operations whose correlation id several calls have": ambiguous,
        }
    )


def _external(columns: RecordArrays, causes: Numbers) -> Numbers:
    calls, ranges = columns.launched
    if not len(calls) or not len(causes):
        return np.zeros(len(causes), np.int64)
    # Ranges inside one another are all told; the innermost was pushed last, and has the highest id.
    order = np.lexsort((ranges, calls))
    calls, ranges = calls[order], ranges[order]
    place = np.searchsorted(calls, causes, "right") - 1
    found: Numbers = np.where((place >= 0) & (calls[place] == causes) & (causes != 0), ranges[place], 0)
    return found


def host_work(columns: RecordArrays) -> OperationTable:
    """Operators: the work of a program that uses no GPU. Each launches itself, and takes the time that is its own."""
    found = columns.operators
    nesting = Nesting(found.threads.astype(np.int64), found.starts, found.ends)
    own = found.ends - found.starts
    inside = np.flatnonzero(nesting.parents >= 0)
    np.subtract.at(own, nesting.parents[inside], (found.ends - found.starts)[inside])
    order = np.lexsort((found.ends, found.starts))
    count = len(order)
    nothing = np.full(count, np.nan, np.float32)
    return OperationTable(
        devices=np.full(count, HOST, np.int64),
        streams=found.threads[order],
        kinds=np.full(count, CODES[Kind.KERNEL], np.int8),
        starts=found.starts[order],
        ends=found.ends[order],
        lengths=np.maximum(own[order], 0),
        launched=found.starts[order],
        threads=found.threads[order].astype(np.int64),
        calls=np.full(count, -1, np.int64),
        ranges=np.zeros(count, np.int64),
        names=found.names[order],
        bytes=np.full(count, NONE, np.int64),
        occupancy=nothing,
        blocks=nothing,
        graphs=np.zeros(count, bool),
    )
