"""Probes of power in shared time that depends on the regions that share it. Pure.

The rates of shared time give each region an equal part: with the parts `n_k / sum(n)` of the `n_k` executions that run
at a moment, a device draws `sum_k r_k n_k / sum(n)`. A region that waits may draw nothing, though, and the kernels of
several executions may run at once, so that their power adds up. So a device may draw `sum_k a_k n_k + b_k [n_k > 0]`
besides. These functions of time are the probes `BESIDE`.
"""

from __future__ import annotations

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Activities
from gpu_profile.join.unmixing.windows.piece_sums import order_of, passed
from gpu_profile.join.unmixing.windows.probes import BESIDE


def functions(open_: Floats) -> tuple[Floats, Floats]:
    """The functions of the number of a column's executions that run, in the order of `BESIDE`."""
    return open_, np.minimum(open_, 1.0)


def beside(active: ActiveTime, moments: Ints, slots: Ints) -> Floats:
    """The integrals of the functions over shared time up to each moment, in ns: `[functions * slots, moments]`.

    `slots` is the place of each column's probes, -1 for none. The origin is arbitrary: use differences only.
    """
    count, placed = int(slots.max(initial=-1)) + 1, active.placed(moments)
    result = np.zeros((len(BESIDE), count, len(moments)))
    if placed and len(active.times):
        some, order = placed.pieces, order_of(moments)
        first, shared = active.times[0], np.diff(active.shared_ns) > 0
        shared_ns = np.append(0.0, np.cumsum(np.where(shared, np.diff(active.times), 0)))
        every = Activities(some.starts, some.ends, np.full(len(some.starts), -1), slots[some.shared])
        # Any of a column's executions runs during their union.
        for each, executions in zip(result, (every, every.once()), strict=True):
            edges = executions.starts, executions.ends, moments[order]
            starts, ends, at = (np.interp(edge - first, active.times - first, shared_ns) for edge in edges)
            used = (executions.columns >= 0) & (ends > starts)
            weights = np.ones((1, int(used.sum())))
            each[:, order] = passed(starts[used], ends[used], at, executions.columns[used], count, weights)[0]
    integrals: Floats = result.reshape(len(BESIDE) * count, len(moments))
    return integrals
