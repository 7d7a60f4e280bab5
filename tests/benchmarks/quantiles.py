"""Time-weighted quantiles of a million spans, against `np.percentile` per span and a weighted loop.

Each figure includes building the index, over all its chunks, from bare columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from benchmarks.rows import Row, best
from gpu_profile.quantiles import OrderIndex
from gpu_profile.units import NS_PER_S

_MS: Final = 1_000_000
_SPANS: Final = 1_000_000
_SAMPLES: Final = 1_000_000
#: Spans that the baseline and the check walk: few, as they take up to a thousand times as long.
_SOME: Final = 2_000
_LONG: Final = 3600 * NS_PER_S
_SHORT: Final = 10 * NS_PER_S


class _World(NamedTuple):
    """Samples every 100 ms, give or take 10 ms."""

    starts: np.ndarray
    ends: np.ndarray
    values: np.ndarray

    def p95(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return OrderIndex(self.starts, self.ends, self.values).quantiles(a, b, 0.95)[0]

    def held(self, a: int, b: int) -> slice:
        return slice(np.searchsorted(self.ends, a, "right"), np.searchsorted(self.starts, b, "left"))

    def percentiles(self, a: np.ndarray, b: np.ndarray) -> None:
        """What people write: no weights, so also not the same number."""
        for start, end in zip(a, b, strict=True):
            np.percentile(self.values[self.held(start, end)], 95)

    def weighted(self, a: int, b: int) -> int:
        held = self.held(a, b)
        times = np.minimum(self.ends[held], b) - np.maximum(self.starts[held], a)
        order = np.argsort(self.values[held])
        reached = np.cumsum(times[order])
        return int(self.values[held][order][np.searchsorted(reached, -(-int(reached[-1]) * 19 // 20))])

    def error(self, a: np.ndarray, b: np.ndarray, found: np.ndarray) -> int:
        """How far what was found is off, in quanta, from a weighted loop."""
        spans = zip(a.tolist(), b.tolist(), found.tolist(), strict=True)
        return int(max(abs(value - self.weighted(start, end)) for start, end, value in spans))


def rows() -> Iterator[Row]:
    """The quantiles' rows."""
    rng = np.random.default_rng(7)
    ends = np.cumsum(rng.integers(90 * _MS, 110 * _MS, _SAMPLES))
    starts = np.concatenate((ends[:1] - 100 * _MS, ends[:-1]))
    few = _World(starts, ends, rng.integers(0, 101, _SAMPLES))
    # Power in mW: a walk between idle and the limit, with noise, so that nearly every sample has its own value.
    walk = 400_000 + 300_000 * np.sin(np.cumsum(rng.normal(size=_SAMPLES)) / 50)
    many = _World(starts, ends, np.clip(walk + rng.normal(0, 5_000, _SAMPLES), 90_000, 700_000).astype(np.int64))
    long, short = _spans(rng, ends, _LONG), _spans(rng, ends, _SHORT)
    yield _against_percentile("samples of 0-100", few, *long, 0)
    yield _against_percentile("samples of power in mW", many, *long, 0.01)
    taken = [(best(lambda: few.p95(*short), 1), best(lambda: few.p95(*long), 1)) for _ in range(7)]
    brief, lasting = (min(times) for times in zip(*taken, strict=True))
    yield Row(
        "time-weighted p95, spans of 1 ms-1 h beside spans of 1 ms-10 s",
        f"{_SPANS / lasting / 1e6:.1f} M spans/s",
        f"1 ms-10 s {_SPANS / brief / 1e6:.1f} M spans/s",
        f"{lasting / brief:.2f}x the time",
        "<=1.3x",
        lasting / brief <= 1.3,
    )


def _spans(rng: np.random.Generator, ends: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    a = rng.integers(ends[0], ends[-1] - _LONG, _SPANS)
    b = a + np.exp(rng.uniform(np.log(_MS), np.log(longest), _SPANS)).astype(np.int64)
    # As executions arrive: in the order of their ends.
    order = np.argsort(b)
    return a[order], b[order]


def _against_percentile(title: str, world: _World, a: np.ndarray, b: np.ndarray, allowed: float) -> Row:
    """`allowed`: how far an answer may be off, as a share of the samples' range."""
    some = slice(0, _SPANS, _SPANS // _SOME)
    # In turns, so that what else the machine does meets both.
    taken = [(best(lambda: world.p95(a, b), 2), best(lambda: world.percentiles(a[some], b[some]), 1)) for _ in range(3)]
    ours, theirs = (min(times) for times in zip(*taken, strict=True))
    ratio = theirs * _SPANS / _SOME / ours
    rate = _SPANS / ours / 1e6
    off = world.error(a[some], b[some], world.p95(a[some], b[some])) / int(np.ptp(world.values))
    return Row(
        f"time-weighted p95, {_SPANS:,} spans of 1 ms-1 h x {_SAMPLES:,} {title}",
        f"{rate:.1f} M spans/s with building the index, "
        + (f"max error {off:.2%} of the range" if allowed else f"max error {off:.0%}"),
        f"np.percentile per span {rate / ratio:.3f} M/s",
        f"{ratio:.0f}x",
        f">=2 M spans/s, >=40x, error {f'<={allowed:.0%}' if allowed else 0}",
        rate >= 2 and ratio >= 40 and off <= allowed,
    )
