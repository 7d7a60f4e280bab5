"""Which call launched an operation: by correlation id, and only by that. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_profile.kernels.joining.columns import NONE, Columns, Numbers


class Launches(NamedTuple):
    """The call of each operation, by its number among the calls; -1 where there is none, or where it is not clear.

    `ambiguous` is how many operations have an id that unrelated calls share, and `missing` how many have none at all.
    """

    calls: Numbers
    ambiguous: int
    missing: int


def launches_of(columns: Columns) -> Launches:
    """Join operations and calls. A driver's call inside the runtime's, with the same id, is part of it."""
    calls, causes = columns.calls, columns.operations.causes
    if not len(calls.ids):
        return Launches(np.full(len(causes), -1, np.int64), 0, len(causes))
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
    return Launches(found, int((known & ~clear[place]).sum()), int((~known).sum()))


def launch_times(columns: Columns, launches: Launches | None = None) -> Numbers:
    """When the call of each operation began; `NONE` where there is no such call."""
    found = (launches or launches_of(columns)).calls
    starts = columns.calls.starts
    if not len(starts):
        return np.full(len(found), NONE, np.int64)
    return np.where(found >= 0, starts[found], NONE)
