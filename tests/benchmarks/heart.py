"""The join and the unmixing, against the loops that people write and against the truth of a synthetic load."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from benchmarks import regimes
from benchmarks.rows import Row, best
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS
from gpu_profile.join import Activity
from gpu_profile.pooling import Pool
from gpu_profile.samples import Device, Sample
from gpu_profile.timeline import Column, Timeline
from gpu_profile.units import NS_PER_S

_MS = 1_000_000


def rows() -> Iterator[Row]:
    """The heart's rows."""
    yield from _join()
    yield from _unmix()
    yield from regimes.rows()


def _join(spans: int = 100_000, samples: int = 100_000) -> Iterator[Row]:
    rng = np.random.default_rng(7)
    column = Column(GRAPHICS, samples)
    ends = np.cumsum(rng.integers(90 * _MS, 110 * _MS, samples))
    values = rng.integers(0, 10_000, samples)
    start = 0
    for end, value in zip(ends.tolist(), values.tolist(), strict=True):
        column.append(Sample(GRAPHICS, start, end, value))
        start = end
    a = rng.integers(0, int(ends[-1]) - 10 * NS_PER_S, spans)
    b = a + np.exp(rng.uniform(np.log(_MS), np.log(10 * NS_PER_S), spans)).astype(np.int64)
    # As executions arrive: in the order of their ends.
    order = np.argsort(b)
    a, b = a[order], b[order]
    ours = best(lambda: column.integrals(a, b))
    some = 2_000
    step = spans // some
    loop = best(lambda: _loop(ends, values, a[::step], b[::step]), 3) * step
    masses, _ = column.integrals(a[::step], b[::step])
    error = int(np.abs(masses - _loop(ends, values, a[::step], b[::step])).max())
    yield Row(
        f"exact join, {spans:,} spans x {samples:,} samples",
        f"{spans / ours / 1e6:.1f} M spans/s, max error {error}",
        f"numpy loop per span {spans / loop / 1e6:.3f} M/s",
        f"{loop / ours:.0f}x",
        ">=40x, error 0",
        loop / ours >= 40 and error == 0,
    )


def _loop(ends: np.ndarray, values: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.zeros(len(a), np.int64)
    for i in range(len(a)):
        lo, hi = np.searchsorted(ends, a[i], "right"), np.searchsorted(ends, b[i], "left") + 1
        edges = np.concatenate(([a[i]], ends[lo : hi - 1], [b[i]]))
        out[i] = int((np.diff(edges) * values[lo:hi]).sum())
    return out


def _unmix(seeds: int = 5) -> Iterator[Row]:
    """Six regions of 2-20 ms in random order under a counter that is renewed every 100 ms, for 60 s."""
    errors, means = [], []
    for seed in range(seeds):
        error, naive = _unmixed(seed)
        errors.append(error)
        means.append(naive)
    figure = median(errors) * 100
    yield Row(
        "unmix power, 6 regions of 2-20 ms, random order, 60 s",
        f"{figure:.1f} % median error",
        f"overlap mean {median(means) * 100:.0f} %",
        f"{median(means) / median(errors):.0f}x",
        "<=2 %",
        figure <= 2,
    )


def _unmixed(seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(2), np.log(20), 6)) * _MS
    watts = rng.uniform(120, 650, 6)
    activities: list[Activity] = []
    power: list[tuple[int, int, float]] = []
    t = 0
    while t < 60 * NS_PER_S:
        k = int(rng.integers(6))
        length = int(lengths[k] * rng.uniform(0.5, 1.5))
        activities.append(Activity(len(activities), None, f"r{k}", t, t + length))
        power.append((t, t + length, watts[k] * rng.normal(1, 0.05)))
        t += length + int(rng.exponential(0.2 * _MS))
    starts, ends, levels = (np.array(part) for part in zip(*power, strict=True))
    joules = np.concatenate(([0.0], np.cumsum((ends - starts) * (levels - 90) / NS_PER_S)))
    moments = np.arange(0, t, 100 * _MS)
    before = np.searchsorted(ends, moments)
    inside = np.clip(moments - starts[np.minimum(before, len(starts) - 1)], 0, None)
    part = inside * (levels[np.minimum(before, len(levels) - 1)] - 90) / NS_PER_S
    counter = joules[before] + part + 90 * moments / NS_PER_S
    timeline = Timeline(Device("GPU-bench"), [ENERGY])
    phase = int(rng.integers(100 * _MS))
    for moment, value in zip(moments.tolist(), counter.tolist(), strict=True):
        stamp = moment + phase + int(rng.normal(0, _MS))
        timeline.append([Sample(ENERGY, stamp, stamp, ENERGY.quanta(value))])
    pool = Pool(timeline, start_ns=0)
    pool.advance(activities, t, final=True)
    rates = [pool.pooled(f"r{k}").rates[ENERGY] for k in range(6)]
    # A refusal counts as wrong altogether.
    errors = [1.0 if rate.reason else abs(rate.value / w - 1) for rate, w in zip(rates, watts, strict=True)]
    mean = counter[-1] / (moments[-1] / NS_PER_S)
    return float(np.mean(errors)), float(np.mean(np.abs(mean / watts - 1)))
