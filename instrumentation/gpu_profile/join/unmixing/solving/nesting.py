"""The time of every column inside every region: regions contain others. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Activities


def time_inside(activities: Activities, owners: Ints, time: ActiveTime, shared: Ints) -> Floats:
    """Active ns of every column while a region, or a region inside it, was active: `[regions, columns]`.

    A region inside itself counts once. `time` has the pieces in which activities were innermost, and `owners` the
    activity of each. `shared` is the column of each column's shared time.
    """
    alone, columns = activities.columns[owners], len(shared)
    within, region, starts, ends = np.array([*_inside_others(activities)], np.int64).reshape(-1, 4).T
    which, piece = _matches(within, owners)
    starts, ends = np.maximum(time.starts[piece], starts[which]), np.minimum(time.ends[piece], ends[which])
    # Each piece in its own region, and then in the regions around it.
    row, column = np.append(alone, region[which]) * columns, np.append(alone, alone[piece])
    both_run = np.append(time.starts, starts), np.append(time.ends, np.maximum(starts, ends))
    alone_ns, shared_ns = time.within(*both_run)
    sums = np.bincount(row + column, alone_ns, columns**2) + np.bincount(row + shared[column], shared_ns, columns**2)
    return sums.reshape(columns, columns).astype(np.float64, copy=False)


def _inside_others(activities: Activities) -> Iterator[tuple[int, int, int, int]]:
    """Stretches of activities inside other regions than their own: the activity, the region's column, start and end in
    ns. Stretches of one activity in one region do not overlap."""
    stretches: list[tuple[int, int, int, int]] = []
    for of, at in activities.ancestors():
        region = activities.columns[at]
        starts = np.maximum(activities.starts[of], activities.starts[at])
        ends = np.minimum(activities.ends[of], activities.ends[at])
        other = (region != activities.columns[of]) & (starts < ends)
        stretches += zip(*(part[other].tolist() for part in (of, region, starts, ends)), strict=True)
    before, reached = None, 0
    for activity, column, start, end in sorted(stretches):
        since = max(start, reached) if before == (activity, column) else start
        if since < end:
            yield activity, column, since, end
            before, reached = (activity, column), end


def _matches(wanted: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Every pair of indices of equal values."""
    order = np.argsort(values, kind="stable")
    first, last = (np.searchsorted(values[order], wanted, side=side) for side in ("left", "right"))
    counts = last - first
    which = np.repeat(np.arange(len(wanted)), counts)
    return which, order[np.arange(len(which)) + (first + counts - np.cumsum(counts))[which]]
