"""Steps that ranks take together, for jobs without a region in which they wait: a step begins after the one before has
begun everywhere. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Final

import numpy as np

from gpu_profile.analysis.clocks.meetings import LEAST, Meetings
from gpu_profile.history.timeline import Floats

#: The fewest steps that can show it.
_LEAST_STEPS: Final = 5 * LEAST
#: Steps are compared over a sixteenth of the run.
_PARTS: Final = 16
#: The most by which steps differ between ranks, as a share of their differences over time. Ours.
_ALIKE: Final = 0.7
#: Standard errors by which the variance must be below that of ranks on their own.
_SURE: Final = 2.5


def steps(executions: Meetings) -> Meetings | None:
    """The steps of a region as meetings, from one start to the next. None if the ranks do not keep step.

    The starts of ranks on their own drift apart like a random walk: after q steps the variance of their distance has
    grown q-fold (Lo and MacKinlay, *Review of Financial Studies* 1, 1988). Ranks in step have a steady distance. So
    have ranks with timers, and the stages of a pipeline. But the steps of ranks in step are long and short together.
    """
    starts = executions.entries
    if starts.shape[1] < _LEAST_STEPS:
        return None
    first = {int(clock): row for row, clock in reversed(list(enumerate(executions.clocks)))}
    rows = list(first.values())
    kept = [row for row in rows if row == rows[0] or _in_step(starts[row], starts[rows[0]])]
    if len(kept) < 2:
        return None
    clocks = executions.clocks[kept]
    own = np.isin(executions.clocks, clocks)
    return replace(
        executions,
        ranks=executions.ranks[own],
        clocks=executions.clocks[own],
        entries=starts[own, :-1],
        exits=starts[own, 1:],
    )


def _in_step(own: Floats, others: Floats) -> bool:
    both = np.isfinite(own) & np.isfinite(others)
    own, others = own[both], others[both]
    apart = own - others
    if len(apart) < _LEAST_STEPS or _deviation(apart) > _ALIKE * min(_deviation(own), _deviation(others)):
        return False
    lag = max(2, len(apart) // _PARTS)
    once, often = np.diff(apart), apart[lag:] - apart[:-lag]
    power = float(np.var(once))
    if power <= 0:
        return False
    # Without its mean: clocks that drift are no sign of ranks on their own.
    ratio = float(np.var(often)) / (lag * power)
    error = sqrt(2 * (2 * lag - 1) * (lag - 1) / (3 * lag * len(apart)))
    return ratio + _SURE * error < 1


def _deviation(starts: Floats) -> float:
    """The median deviation of the differences of successive starts."""
    lengths = np.diff(starts)
    return float(np.median(np.abs(lengths - np.median(lengths))))
