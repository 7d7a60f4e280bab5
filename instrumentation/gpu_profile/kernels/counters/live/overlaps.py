"""Samples of counters, joined with the times at which a region was on the GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.kernels.counters.formulas import adds_up
from gpu_profile.kernels.counters.sums import CounterMean, CounterSum, CounterSums


class Samples(NamedTuple):
    """Samples in the order of time, without overlaps: starts and ends in ns, `values` by `[metric, sample]`."""

    metrics: tuple[str, ...]
    starts: Ints
    ends: Ints
    values: Floats

    @classmethod
    def of(cls, metrics: Sequence[str], rows: Sequence[Sequence[float]]) -> Self:
        """From rows of start, end and a value for each metric. Left out are samples without a start (a session's
        first), of no length, and samples that begin before the end of an accepted one.
        """
        kept: list[Sequence[float]] = []
        last = 0
        for row in rows:
            if row[0] and row[1] > row[0] >= last:
                kept.append(row)
                last = int(row[1])
        if not kept:
            none = np.zeros(0, np.int64)
            return cls(tuple(metrics), none, none, np.zeros((len(metrics), 0)))
        # Times since the epoch do not fit into a float.
        starts, ends = (np.array([row[i] for row in kept], np.int64) for i in (0, 1))
        return cls(tuple(metrics), starts, ends, np.array([row[2:] for row in kept], np.float64).T)


def sums_of(samples: Samples, intervals: Sequence[tuple[int, int]]) -> CounterSums | None:
    """The counters of a region that was on the GPU in these intervals, in ns; None without samples of them.

    Executions that overlap are one stretch of time, in which a sample counts once. A metric that adds up is summed:
    exactly over samples within a stretch, else by the share of a sample that lies in it. The whole count of such a
    sample bounds the estimate (`CounterSum.low` and `high`). A mean is weighted by time. NaN (on an idle GPU a ratio is
    0/0) is no sample of that metric. `kernels` counts the intervals; `kernel_ns` is the time of the stretches, of which
    `ns` has samples.
    """
    stretches = _merged(intervals)
    overlaps = np.zeros(len(samples.starts))
    within = np.zeros(len(samples.starts), np.bool_)
    for start, end in stretches:
        some = slice(
            int(np.searchsorted(samples.ends, start, "right")), int(np.searchsorted(samples.starts, end, "left"))
        )
        overlaps[some] += np.minimum(samples.ends[some], end) - np.maximum(samples.starts[some], start)
        within[some] |= (samples.starts[some] >= start) & (samples.ends[some] <= end)
    if not (overlaps > 0).any():
        return None
    shares = overlaps / (samples.ends - samples.starts)
    sums, means = {}, {}
    for metric, values in zip(samples.metrics, samples.values, strict=True):
        valid = np.isfinite(values) & (overlaps > 0)
        if not valid.any():
            continue
        inside, edge, own = valid & within, valid & ~within, values[valid]
        ns = float(overlaps[valid].sum())
        if adds_up(metric):
            exact, shared = float(values[inside].sum()), float((values[edge] * shares[edge]).sum())
            sums[metric] = CounterSum(
                exact, shared, 0.0, float(values[edge].sum()), float(own.max()), len(intervals), ns
            )
        else:
            weighted = float((own * overlaps[valid]).sum())
            means[metric] = CounterMean(weighted, float(own.min()), float(own.max()), len(intervals), ns)
    return CounterSums(sums, means, len(intervals), sum(end - start for start, end in stretches))


def _merged(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches of time that intervals cover, in order."""
    stretches: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if stretches and start <= stretches[-1][1]:
            stretches[-1] = stretches[-1][0], max(stretches[-1][1], end)
        elif end > start:
            stretches.append((start, end))
    return stretches
