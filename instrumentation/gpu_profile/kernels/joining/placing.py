"""The region that launched each operation: by thread and time of the launching call, or by an external id. Pure.

The backward pass of operators that a region ran forward belongs to that region: autograd gives both operators one
number. It also belongs to the region in which `backward` was called, and counts as inside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.joining.columns import NONE, Numbers, Operators, Ranges, RecordArrays
from gpu_profile.kernels.joining.nesting import Forest, Nesting
from gpu_profile.kernels.joining.work import OperationTable


class Placing(NamedTuple):
    """By operation: `own` is the range that it belongs to, `second` another range around it; -1: none.

    `calls` and `allocations` are the ranges in which each of these was made.
    """

    forest: Forest
    own: Numbers
    second: Numbers
    backward: NDArray[np.bool_]
    calls: Numbers
    allocations: Numbers
    notes: Mapping[str, int]


def place(columns: RecordArrays, work: OperationTable) -> Placing:
    """The ranges of all operations, calls and allocations."""
    ranges, calls, allocations = columns.ranges, columns.calls, columns.allocations
    threads = ranges.threads.astype(np.int64)
    nesting = Nesting(threads, ranges.starts, ranges.ends)
    notes = Counter[str]()
    if nesting.crossing:
        notes["regions that end after one that they began in, on the same thread"] = nesting.crossing
    by_id = {number: at for at, number in enumerate(ranges.ids.tolist()) if number}
    parents = _parents(nesting.parents, ranges, by_id)
    direct = nesting.at(work.threads, work.launched)
    external = np.array([by_id.get(number, -1) for number in work.ranges.tolist()], np.int64)
    direct = np.where(external >= 0, external, direct)
    own, second, backward, unclear = _backward(columns.operators, work, direct, nesting, ranges.starts)
    if unclear:
        notes["operations of a backward pass whose forward could be on several threads"] = unclear
    return Placing(
        forest=Forest(parents, ranges.names.astype(np.int64)),
        own=own,
        second=second,
        backward=backward,
        calls=nesting.at(calls.threads.astype(np.int64), calls.starts),
        allocations=nesting.at(allocations.threads.astype(np.int64), allocations.times),
        notes=notes,
    )


def _parents(around: Numbers, ranges: Ranges, by_id: Mapping[int, int]) -> Numbers:
    """The recorded parents, else the ranges that were open around; never a range that began later.

    If two began together, the longer one counts as the earlier, as in `Nesting`. So there are no cycles.
    """
    parents, recorded, starts, ends = around.copy(), ranges.parents, ranges.starts, ranges.ends
    for number in np.flatnonzero(recorded).tolist():
        parent = by_id.get(int(recorded[number]), -1)
        if parent >= 0 and (starts[parent], -ends[parent], parent) < (starts[number], -ends[number], number):
            parents[number] = parent
    return parents


def _backward(
    operators: Operators, work: OperationTable, direct: Numbers, nesting: Nesting, starts: Numbers
) -> tuple[Numbers, Numbers, NDArray[np.bool_], int]:
    none = np.full(len(direct), -1, np.int64)
    back = np.flatnonzero((operators.backward != 0) & (operators.sequences >= 0))
    ahead, several = _forward(operators)
    if not len(back) or not len(ahead):
        return direct, none, np.zeros(len(direct), bool), 0
    threads = operators.threads.astype(np.int64)
    # The forward operator of each backward one.
    at = np.minimum(np.searchsorted(operators.sequences[ahead], operators.sequences[back]), len(ahead) - 1)
    same = operators.sequences[ahead][at] == operators.sequences[back]
    source = np.where(same & ~several[at], ahead[at], -1)
    inner = Nesting(threads[back], operators.starts[back], operators.ends[back]).at(work.threads, work.launched)
    within = inner >= 0
    inner = np.where(within, inner, 0)
    forward = np.where(within, source[inner], -1)
    # A region that began inside the operator, such as a hook's, is nearer than the forward operator's region.
    begun = np.where(direct >= 0, starts[direct] if len(starts) else 0, -NONE)
    nearer = within & (direct >= 0) & (begun >= operators.starts[back[inner]])
    some = forward >= 0
    launcher = nesting.at(np.where(some, threads[forward], -1), np.where(some, operators.starts[forward], 0))
    waiting = nesting.at(_waiting(threads, back, source, work.threads), work.launched)
    around = np.where(direct >= 0, direct, waiting)
    by_forward = within & ~nearer & (launcher >= 0)
    own = np.where(by_forward, launcher, around)
    second = np.where(by_forward, around, waiting)
    unclear = within & same[inner] & (forward < 0)
    return own, np.where(second == own, -1, second), within | (waiting >= 0), int(unclear.sum())


def _waiting(threads: Numbers, back: Numbers, source: Numbers, launching: Numbers) -> Numbers:
    """The thread that waits for the backward pass run by each launching thread; -1: none, or ambiguous.

    Autograd runs the pass on a thread of its own for the thread that called `backward`. The caller is inferred: the
    thread of all matched forward operators, if they ran on one. Accumulation of gradients has no forward operator of
    its own.
    """
    matched = source >= 0
    runs, waits = threads[back[matched]], threads[source[matched]]
    result = np.full(len(launching), -1, np.int64)
    for thread in np.unique(runs).tolist():
        callers = np.unique(waits[runs == thread])
        if len(callers) == 1 and callers[0] != thread:
            result[launching == thread] = callers[0]
    return result


def _forward(operators: Operators) -> tuple[Numbers, NDArray[np.bool_]]:
    """The forward operator of each number, sorted by number, and whether operators of several threads share the number.

    Of several operators with a number, the last to begin counts: the earlier ones make no node.
    """
    ahead = np.flatnonzero((operators.backward == 0) & (operators.sequences >= 0))
    if not len(ahead):
        return ahead, np.zeros(0, bool)
    ahead = ahead[np.lexsort((operators.starts[ahead], operators.sequences[ahead]))]
    sequences, threads = operators.sequences[ahead], operators.threads[ahead]
    last = np.append(sequences[1:] != sequences[:-1], True)
    heads = np.flatnonzero(np.append(True, last[:-1]))
    several = np.minimum.reduceat(threads, heads) != np.maximum.reduceat(threads, heads)
    return ahead[last], several
