"""Active time under the assumption that stamps of ends are later than stamps of starts. Pure."""

from __future__ import annotations

import numpy as np

from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces


def shortened(active: ActiveTime, by_ns: int) -> ActiveTime:
    """The active time if every execution is shorter by `by_ns`, half of it at each end. None is shorter than 0.

    The middles stay, because a sensor's lag makes up for any lateness that starts and ends have in common. The time
    beside an execution inside another one goes to the outer one.
    """
    half, (starts, ends, columns) = by_ns // 2, (active.starts, active.ends, active.alone)
    touches, inner = starts[1:] == ends[:-1], np.zeros(len(starts), bool)
    inner[1:-1] = touches[:-1] & touches[1:] & (columns[:-2] == columns[2:])
    starts, ends = starts + half, ends - half
    starts[1:] -= 2 * half * inner[:-1]
    ends[:-1] += 2 * half * inner[1:]
    middles = (starts + ends) // 2
    starts, ends = np.minimum(starts, middles), np.maximum(ends, middles)
    if len(active.times):
        order = starts.argsort(kind="stable")
    else:
        # The edges stay in order: an inner execution may be shorter than the time beside it.
        starts, ends = np.maximum.accumulate(np.column_stack((starts, ends)).ravel()).reshape(-1, 2).T
        order = np.arange(len(starts))
    return ActiveTime.of(Pieces(order, starts[order], ends[order]), active.alone[order], active.shared[order])
