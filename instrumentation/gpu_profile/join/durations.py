"""Durations of executions in bounded memory: counts for Prometheus' buckets, and a sketch for quantiles. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Ints
from gpu_profile.units import NS_PER_S

#: Upper edges, in seconds, of the published histogram: 100 µs to 10 min, about three per decade.
BUCKETS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 600.0,
)  # fmt: skip
#: Neighbouring buckets of the sketch differ by 2 %, so a quantile is within 1 % of a duration that occurred. The idea
#: of DDSketch (Masson et al., VLDB 2019).
_GAMMA: Final = math.log(1.02)
_EDGES_S: Final = np.array(BUCKETS_S)
#: Fewer durations than this are counted one by one: for them, numpy's cost per call dominates.
_FEW: Final = 40


def _counted(keys: Ints) -> Iterable[tuple[int, int]]:
    unique, counts = np.unique(keys, return_counts=True)
    return zip(unique.tolist(), counts.tolist(), strict=True)


class DurationStats:
    """Durations of one region. Times are ns in, seconds out."""

    __slots__ = ("_sketch", "calls", "counts", "errors", "items", "max_ns", "total_ns")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.items: float | None = None
        self.total_ns = 0
        self.max_ns = 0
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self._sketch: dict[int, int] = {}

    def add(self, duration_ns: int, *, items: float | None = None, failed: bool = False) -> None:
        """Add one execution that ended."""
        self._add_one(max(duration_ns, 0))
        self.errors += failed
        if items is not None:
            self.add_items(items)

    def add_items(self, items: float) -> None:
        """Add units of work that an execution did."""
        self.items = (self.items or 0.0) + items

    def add_many(self, durations_ns: Ints) -> None:
        """Add executions that ended."""
        if len(durations_ns) < _FEW:
            for duration_ns in durations_ns.tolist():
                self._add_one(max(duration_ns, 0))
            return
        lengths = np.maximum(durations_ns, 0)
        self.calls += len(lengths)
        # The total of many long executions exceeds 64 bits.
        self.total_ns += (int((lengths >> 32).sum()) << 32) + int((lengths & 0xFFFFFFFF).sum())
        self.max_ns = max(self.max_ns, int(lengths.max(initial=0)))
        for bucket, count in _counted(np.searchsorted(_EDGES_S, lengths / NS_PER_S)):
            self.counts[bucket] += count
        for key, count in _counted(np.ceil(np.log(np.maximum(lengths, 1)) / _GAMMA).astype(np.int64)):
            self._sketch[key] = self._sketch.get(key, 0) + count

    def add_repeated(self, duration_ns: int, times: int) -> None:
        """Add `times` executions of one duration."""
        self._add_one(max(duration_ns, 0), times)

    def _add_one(self, length_ns: int, times: int = 1) -> None:
        self.calls += times
        self.total_ns += length_ns * times
        self.max_ns = max(self.max_ns, length_ns)
        self.counts[bisect_left(BUCKETS_S, length_ns / NS_PER_S)] += times
        key = math.ceil(math.log(max(length_ns, 1)) / _GAMMA)
        self._sketch[key] = self._sketch.get(key, 0) + times

    def quantile_s(self, q: float) -> float | None:
        """The `q` quantile (0-1) in seconds, within 1 % of an execution's duration; None without executions."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies in 0-1, not {q}")
        if not self.calls:
            return None
        rank = q * (self.calls - 1)
        seen = 0
        for key in sorted(self._sketch):
            seen += self._sketch[key]
            if seen > rank:
                return min(math.exp((key - 0.5) * _GAMMA), self.max_ns) / NS_PER_S
        return self.max_ns / NS_PER_S

    def cumulative(self) -> list[tuple[float, int]]:
        """`(upper edge in seconds, executions at most that long)`, the last edge infinite."""
        seen, result = 0, []
        for edge, count in zip((*BUCKETS_S, math.inf), self.counts, strict=True):
            seen += count
            result.append((edge, seen))
        return result
