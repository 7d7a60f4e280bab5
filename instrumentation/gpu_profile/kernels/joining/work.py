"""The work of a recording: GPU operations with their calls, or, without any, the host's operators. Pure."""

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

    `launched` is the start of the launching call and `threads` its thread; `NONE` and -1 where they are unknown.
    `calls` is the index of the call, -1: none. `lengths` is the exclusive duration: of an operator, without the
    operators that it calls. `ranges` is the range id of an external correlation, 0: none. The other columns are as in
    `columns.OperationArrays`.
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
    """GPU operations, and the number of operations that could not be joined with a call, by reason."""
    recorded, calls = columns.operations, columns.calls
    call, notes = _launching(columns)
    joined = call >= 0
    launched, threads = np.full(len(call), NONE), np.full(len(call), -1, np.int64)
    launched[joined], threads[joined] = calls.starts[call[joined]], calls.threads[call[joined]]
    moved, graphs = recorded.bytes.copy(), recorded.graphs.astype(bool)
    unsized = joined & (moved == NONE)
    moved[unsized] = calls.bytes[call[unsized]]
    launching = np.array(["GraphLaunch" in name for name in columns.names], bool)
    graphs[joined] |= launching[calls.names[call[joined]]]
    work = OperationTable(
        devices=np.array([device for device, _ in columns.streams], np.int64)[recorded.streams],
        streams=recorded.streams,
        kinds=recorded.kinds,
        starts=recorded.starts,
        ends=recorded.ends,
        lengths=recorded.ends - recorded.starts,
        launched=launched,
        threads=threads,
        calls=call,
        ranges=_external(columns, recorded.causes),
        names=recorded.names,
        bytes=moved,
        occupancy=recorded.occupancy,
        blocks=recorded.blocks,
        graphs=graphs,
    )
    order = np.lexsort((recorded.ends, launched, recorded.starts))
    return OperationTable._make(column[order] for column in work), notes


def _launching(columns: RecordArrays) -> tuple[Numbers, Mapping[str, int]]:
    """The index of each operation's call, and the number of operations without one, by reason.

    -1 where there is none, or where unrelated calls share its id. A call of the driver inside one of the runtime, with
    the same id, is part of it.
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
    recorded = (ids[heads][place] == causes) & (causes != 0)
    launching = np.where(recorded & clear[place], order[heads][place], -1)
    return launching, _noted(int((~recorded).sum()), int((recorded & ~clear[place]).sum()))


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
    # All ranges around a call are recorded. The innermost was pushed last, and has the highest id.
    order = np.lexsort((ranges, calls))
    calls, ranges = calls[order], ranges[order]
    place = np.searchsorted(calls, causes, "right") - 1
    innermost: Numbers = np.where((place >= 0) & (calls[place] == causes) & (causes != 0), ranges[place], 0)
    return innermost


def host_work(columns: RecordArrays) -> OperationTable:
    """Operators: the work of a program that uses no GPU. Each launches itself, and has its exclusive duration."""
    operators = columns.operators
    nesting = Nesting(operators.threads.astype(np.int64), operators.starts, operators.ends)
    own = operators.ends - operators.starts
    inside = np.flatnonzero(nesting.parents >= 0)
    np.subtract.at(own, nesting.parents[inside], (operators.ends - operators.starts)[inside])
    order = np.lexsort((operators.ends, operators.starts))
    count = len(order)
    nothing = np.full(count, np.nan, np.float32)
    return OperationTable(
        devices=np.full(count, HOST, np.int64),
        streams=operators.threads[order],
        kinds=np.full(count, CODES[Kind.KERNEL], np.int8),
        starts=operators.starts[order],
        ends=operators.ends[order],
        lengths=np.maximum(own[order], 0),
        launched=operators.starts[order],
        threads=operators.threads[order].astype(np.int64),
        calls=np.full(count, -1, np.int64),
        ranges=np.zeros(count, np.int64),
        names=operators.names[order],
        bytes=np.full(count, NONE, np.int64),
        occupancy=nothing,
        blocks=nothing,
        graphs=np.zeros(count, bool),
    )
