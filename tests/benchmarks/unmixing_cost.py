"""What unmixing costs: time and memory while a timing is looked for and after, an hour at once, names without end.

Times are CPU time of the process: others use the machine too, and nothing here waits.
"""

import time
import tracemalloc
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from benchmarks.rows import Row
from benchmarks.unmixing_worlds import MS, ORIGIN_NS, Feed, World, activities, bytes_held, bytes_of_arrays, sensor_of
from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import ENERGY, POWER_AVERAGE
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.windows.activities import Activities

_KIB: Final = 1024


def cost() -> Iterator[Row]:
    """Row 8."""
    for signal in (ENERGY, POWER_AVERAGE):
        yield from _running_cost(signal)
    yield _hour()
    yield _names()


def _running_cost(signal: Signal, *, searched_s: int = 120, block_s: int = 10, blocks: int = 9) -> Iterator[Row]:
    feed = Feed(World(0, regions=10, seconds=searched_s + block_s * blocks, signal=signal))
    most = whole = 0
    for piece in feed.slices(0, searched_s):
        feed.advance(piece)
        if not _locked(feed.pool):
            most, whole = max(most, _state(feed.pool)), max(whole, bytes_held(feed.pool))
    locked = _locked(feed.pool)
    pieces = list(feed.slices(searched_s))
    times = []
    for piece in pieces:
        feed.append(piece.until_ns)
        started = time.process_time()
        feed.advance(piece)
        times.append(time.process_time() - started)
    # The mean of a block, in which windows are taken in twice; the best block, as others use the caches too.
    micros = float(np.reshape(times, (blocks, block_s)).mean(axis=1).min()) * 1e6
    state, spans = _state(feed.pool), sum(piece.n for piece in pieces) / len(pieces)
    yield Row(
        f"cost of unmixing, {sensor_of(signal)}, 10 regions, locked",
        f"{micros:.0f} us of CPU per GPU-second of {spans:.0f} spans ({'locked' if locked else 'NOT locked'}); "
        f"state {state / _KIB:.1f} KiB, the whole pool {bytes_held(feed.pool) / _KIB:.0f} KiB",
        reach="<=300 us, <=48 KiB",
        ok=locked and micros <= 300 and state <= 48 * _KIB,
        cost=micros,
    )
    yield Row(
        f"cost of unmixing, {sensor_of(signal)}, 10 regions, while lag and window are looked for",
        f"the whole pool {whole / _KIB:.0f} KiB at most, of it the mixture's arrays {most / _KIB:.1f} KiB",
        reach="<=512 KiB for the whole pool",
        ok=whole <= 512 * _KIB,
        cost=whole / _KIB,
    )


def _hour(spans: int = 440_000, step_s: int = 60) -> Row:
    """An hour that was recorded, handed to a pool by the minute; what makes the input is not timed.

    Answers do not depend on the times of the calls, so the pool takes the steps of a live one, at a live one's price.
    The search for the timing comes on top, once.
    """
    feed = Feed(World(3, regions=10, seconds=3600, signal=ENERGY))
    taken, times, locked = 0, [], []
    for piece in feed.slices(step_s=step_s):
        taken += piece.n
        feed.append(piece.until_ns)
        running = Activities.of(piece.running, feed.pool.attribution.column, piece.until_ns)
        locked.append(_locked(feed.pool))
        started = time.process_time()
        feed.pool.take(running, piece.until_ns)
        times.append(time.process_time() - started)
    took, searching = sum(times) * spans / taken, sum(t for t, ok in zip(times, locked, strict=True) if not ok)
    micros = (sum(times) - searching) / (step_s * sum(locked)) * 1e6
    return Row(
        f"one GPU-hour, {spans:,} spans, 100 ms windows, 10 regions",
        f"{took:.2f} s (of {taken:,} spans, scaled): {searching:.2f} s until the timing is locked, "
        f"then {micros:.0f} us of CPU per GPU-second",
        reach="<=300 us per GPU-second, as live",
        ok=micros <= 300,
        cost=took,
    )


def _names(first: int = 100_000, last: int = 1_000_000, block: int = 1000) -> Row:
    """Memory that grows with the number of distinct names, of executions of 1 ms each."""
    timeline = Timeline(Device("GPU-bench"), [ENERGY])
    pool = Pool(timeline, start_ns=ORIGIN_NS)
    started, before = time.perf_counter(), 0
    for at in range(0, last, block):
        if at == first:
            tracemalloc.start()
        # What is let go of between the start and here was not traced: a settled pool is what to compare with.
        if at == first + 10 * block:
            before = tracemalloc.get_traced_memory()[0]
        _names_slice(pool, at, block)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    took = time.perf_counter() - started
    return Row(
        f"{last:,} distinct region names",
        f"memory grows by {grown / _KIB:.0f} KiB from {first:,} names on; {took:.0f} s, most of it traced",
        reach="<100 KiB",
        ok=grown < 100 * _KIB,
        cost=max(0.0, grown / _KIB),
    )


def _names_slice(pool: Pool, at: int, block: int) -> None:
    moments = [ORIGIN_NS + (at + i) * MS for i in range(block + 1)]
    names = [f"r{at + i}" for i in range(block)]
    pool.timeline.append([Sample(ENERGY, t, t, (t - ORIGIN_NS) // MS * 300) for t in moments[100::100]])
    for name in names:
        pool.count(name)
    pool.advance(activities(at, names, moments[:-1], [*moments[1:]]), moments[-1])


def _mixtures(pool: Pool) -> list[Any]:
    return list(pool._mixtures)


def _locked(pool: Pool) -> bool:
    return all(mixture.locked for mixture in _mixtures(pool))


def _state(pool: Pool) -> int:
    return sum(bytes_of_arrays(mixture) for mixture in _mixtures(pool))
