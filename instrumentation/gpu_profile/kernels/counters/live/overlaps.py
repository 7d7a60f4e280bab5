"""Samples of counters, joined with the times at which a region was on the GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.kernels.counters.formulas import adds_up
from gpu_profile.kernels.counters.sums import CounterMean, CounterSum, CounterSums


class Samples(NamedTuple):
    """Samples in the order of time, none of which overlap: starts and ends in ns, `values` by `[metric, sample]`."""

    metrics: tuple[str, ...]
    starts: Ints
    ends: Ints
    values: Floats

    @classmethod
    def of(cls, metrics: Sequence[str], rows: Sequence[Sequence[float]]) -> Self:
        """From rows of start, end and a value for each metric. A sample that begins before the one before it has ended
        is left out, and so is one of no length."""
        if not rows:
            none = np.zeros(0, np.int64)
            return cls(tuple(metrics), none, none, np.zeros((len(metrics), 0)))
        # Times since the epoch do not fit into a float.
        starts, ends = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
        values = np.array([row[2:] for row in rows], np.float64).T
        last = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
        keep = (ends > starts) & (starts >= last)
        return cls(tuple(metrics), starts[keep], ends[keep], values[:, keep])


def sums_of(samples: Samples, intervals: Sequence[tuple[int, int]]) -> CounterSums | None:
    """What the samples say of a region that was on the GPU at these times, in ns; None if none is of them.

    A metric that adds up is summed: exactly over samples within an interval, and by the share of those that only begin
    or end in it, whose whole count is the bound of how much it may be (`CounterSum.low` and `high`). A mean is weighted
    by time. `kernels` counts the intervals, `kernel_ns` is their time, of which `ns` has samples.
    """
    whole_ns = sum(end - start for start, end in intervals)
    overlaps = np.zeros(len(samples.starts))
    within = np.zeros(len(samples.starts), np.bool_)
    for start, end in intervals:
        first = int(np.searchsorted(samples.ends, start, "right"))
        last = int(np.searchsorted(samples.starts, end, "left"))
        some = slice(first, last)
        overlaps[some] += np.minimum(samples.ends[some], end) - np.maximum(samples.starts[some], start)
        within[some] |= (samples.starts[some] >= start) & (samples.ends[some] <= end)
    touched = overlaps > 0
    if not touched.any():
        return None
    lengths = (samples.ends - samples.starts).astype(np.float64)
    # Regions of one name may run at the same time in several threads: a sample is theirs once.
    shares = np.minimum(overlaps / lengths, 1.0)
    ns = float((shares * lengths).sum())
    edges = touched & ~within
    sums, means = {}, {}
    for metric, values in zip(samples.metrics, samples.values, strict=True):
        own = values[touched]
        if adds_up(metric):
            exact, shared = float(values[within].sum()), float((values * shares)[edges].sum())
            most = float(values[edges].sum())
            sums[metric] = CounterSum(exact, shared, 0.0, most, float(own.max()), len(intervals), ns)
        else:
            weighted = float((values * shares * lengths)[touched].sum())
            means[metric] = CounterMean(weighted, float(own.min()), float(own.max()), len(intervals), ns)
    return CounterSums(sums, means, len(intervals), whole_ns)
