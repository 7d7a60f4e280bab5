"""How a region's windows differ from each other: two kinds of work by turns, or phases. Pure.

A mean over unlike kernels describes none of them. A window of 100 ms with more of one kernel has less of the other. So
the activities of two kinds move against each other, even if each kernel takes a few milliseconds only. The activities
of one kernel, and waits between its launches, move together or not at all.
"""

from __future__ import annotations

import math
from operator import add
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.catalogue import BUSY_SOURCES
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Interval
from gpu_profile.history.timeline import Column, Floats, Timeline
from gpu_profile.units import NS_PER_S

_PIPES: Final = (rows.TENSOR, rows.FP32, rows.FP64, rows.FP16, rows.INTEGER)
#: The share of the pipe's cycles and of the DRAM's bandwidth that the best kernels reach.
_MOST_COMPUTE, _MOST_MEMORY = 1.0, 0.9
#: Windows with less busy time than this are left out: their ratios are noise.
_BUSY: Final = 0.2
#: The fewest windows, and the most, the newest ones.
_FEWEST, _MOST_NS = 8, 60 * NS_PER_S
#: Standard errors between a correlation and the bound that is used for it: chance exceeds it in 1 of 500.
_SURE: Final = 2.9
#: A line explains the windows if its correlation is at least this.
_STRAIGHT: Final = 0.95
#: Relative standard deviations below this are the noise of sensors.
_NOISE: Final = 0.005
#: Windows that hold one kind of work each have this share of the greatest variance between their extremes, or more; a
#: sine has half of it.
_PURE: Final = 0.65
#: Of two values with this share or more each, the windows may be mixtures in an even alternation.
_FEW: Final = 0.25
#: A ceiling limits work that reaches this share of it; below, something else does.
_LIMITED: Final = 0.5


class WindowContrast(NamedTuple):
    """Sums over windows of the busiest pipe's and the memory's activity while the GPU was busy, of the higher of both,
    and of the multiprocessors in use.

    `n` is the number of windows. `least` and `most` are the extremes of the pipe's activity. Sums of several executions
    add up.
    """

    n: int = 0
    compute: float = 0.0
    memory: float = 0.0
    both: float = 0.0
    compute_squares: float = 0.0
    memory_squares: float = 0.0
    higher: float = 0.0
    higher_squares: float = 0.0
    sm: float = 0.0
    sm_squares: float = 0.0
    sm_higher: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def plus(self, others: WindowContrast) -> WindowContrast:
        """The sums over these windows and others."""
        least, most = min(self.least, others.least), max(self.most, others.most)
        return WindowContrast._make(map(add, self, others))._replace(least=least, most=most)

    @property
    def values(self) -> dict[str, float]:
        """The evidence of `part`, `uneven` and `held`, where there are enough windows."""
        if self.n < _FEWEST:
            return {}
        values = {"uneven": _deviation(self.n, self.higher, self.higher_squares)}
        inferred = {"part": self._part(), "held": self._held()}
        return values | {key: value for key, value in inferred.items() if value is not None}

    def _held(self) -> float | None:
        """The share of the multiprocessors that kernels hold while nothing moves, where that takes turns with work.

        The line of multiprocessors over activity meets this share where activity is 0. Of launches with gaps between
        them, it meets 0: both go to 0 together.
        """
        n = self.n
        mean, sm = self.higher / n, self.sm / n
        wide, high = _deviation(n, self.higher, self.higher_squares), _deviation(n, self.sm, self.sm_squares)
        if not sm or wide <= _NOISE * mean or high <= _NOISE * sm or not wide:
            return None
        slope = (self.sm_higher / n - mean * sm) / wide**2
        if slope * wide < _STRAIGHT * high:
            return None
        return min(1.0, max(0.0, sm - slope * mean))

    def _part(self) -> float | None:
        """The share of the busy time in which a pipe limits the work, if memory limits it for the rest; else None.

        The line through the windows ends where no work of one kind is left, or where one reaches all that it can: at
        the extremes of windows that hold one kind of work each. The mean's place between both ends is the share. At
        its end, each kind of work must be near its ceiling.
        """
        n = self.n
        compute, memory = self.compute / n, self.memory / n
        wide, high = _deviation(n, self.compute, self.compute_squares), _deviation(n, self.memory, self.memory_squares)
        if wide <= _NOISE * compute or high <= _NOISE * memory or min(wide, high) <= 0:
            return None
        together = (self.both / n - compute * memory) / (wide * high)
        bound = math.atanh(max(-0.999, min(0.999, together))) + _SURE / math.sqrt(max(1, n - 3))
        if bound >= 0:
            return None
        to_compute = min(max(0.0, _MOST_COMPUTE - compute) / wide, memory / high)
        to_memory = min(compute / wide, max(0.0, _MOST_MEMORY - memory) / high)

        def limited(to_compute: float, to_memory: float) -> bool:
            reached = (compute + to_compute * wide) / _MOST_COMPUTE, (memory + to_memory * high) / _MOST_MEMORY
            return min(reached) >= _LIMITED

        above, below = self.most - compute, compute - self.least
        few = min(above, below) < _FEW * (above + below)
        if few and wide**2 >= _PURE * above * below:  # the product is the variance of windows of two values
            nearer = min(to_compute, above / wide), min(to_memory, below / wide)
            to_compute, to_memory = nearer if limited(*nearer) else (to_compute, to_memory)
        if not limited(to_compute, to_memory):
            return None
        return to_memory / (to_compute + to_memory) if to_compute + to_memory > 0 else None


def _deviation(n: int, total: float, squares: float) -> float:
    return math.sqrt(max(0.0, squares / n - (total / n) ** 2))


def contrast(timeline: Timeline, interval: Interval) -> WindowContrast:
    """The sums over the windows inside `interval`, the last minute's at most; none without the signals for it."""
    memory = timeline.column(rows.DRAM)
    pipes = [column for pipe in _PIPES if (column := timeline.column(pipe)) is not None]
    if memory is None or not pipes:
        return WindowContrast()
    starts, ends, _ = memory.edges(max(interval.start_ns, interval.end_ns - _MOST_NS), interval.end_ns)
    inside = starts >= interval.start_ns
    starts, ends = starts[inside], ends[inside]
    busy_column = timeline.best(BUSY_SOURCES)
    if busy_column is None or len(starts) == 0:
        return WindowContrast()

    def means(column: Column) -> Floats:
        return column.means(starts, ends)[0]

    busy = means(busy_column)
    worked = busy > _BUSY
    each = np.maximum(busy[worked], _BUSY)
    compute = np.max([means(pipe)[worked] for pipe in pipes], axis=0) / each
    moved = means(memory)[worked] / each
    higher = np.maximum(compute / _MOST_COMPUTE, moved / _MOST_MEMORY)
    occupied = timeline.column(rows.SM)
    sm = np.zeros(len(each)) if occupied is None else means(occupied)[worked] / each
    parts = (compute, moved, compute * moved, compute**2, moved**2, higher, higher**2, sm, sm**2, sm * higher)
    sums = (float(part.sum()) for part in parts)
    extremes = (float(compute.min()), float(compute.max())) if len(each) else ()
    return WindowContrast(len(each), *sums, *extremes)
