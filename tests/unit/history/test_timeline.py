from typing import Any

import numpy as np
import pytest
from unit.history.columns import MS, T0, THROTTLE, reading, window

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signals import CLOCK_SM, ENERGY, GRAPHICS, MEMORY_USED, POWER, UTILIZATION
from gpu_profile.history.rows import Cumulative
from gpu_profile.history.timeline import SLOW_ROWS, Column, Timeline
from gpu_profile.units import NS_PER_S

STEP = 100 * MS


# ---------------------------------------------------------------------- large batches


def long(row: Signal, shape: str, rows: int = 5000) -> Column:
    """A column of many rows, most of them in its history, at moments of some shape."""
    rng = np.random.default_rng(4)
    steps = {
        "steady": rng.integers(9 * MS, 11 * MS, rows),
        "bursts": np.where(rng.random(rows) < 0.99, rng.integers(1, 1000, rows), NS_PER_S),
        "pauses": np.where(rng.random(rows) < 0.9, 10 * MS, 6 * NS_PER_S),
    }[shape]
    held, now, total = Column(row, 300, older=rows), T0, 0
    for step, value in zip(steps.tolist(), rng.integers(0, 100, rows).tolist(), strict=True):
        before, now, total = now, now + step, total + value
        start = before if shape != "pauses" or row.kind is not Kind.WINDOW_MEAN else max(before, now - 10 * MS)
        held.append(Sample(row, start, now, total if row.kind is Kind.COUNTER else value))
    assert len(held) == rows
    return held


def spans(held: Column, n: int, *, ordered: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(8)
    oldest, newest = held.oldest_ns or 0, held.watermark_ns or 0
    ends = rng.integers(oldest - 10 * MS, newest + 10 * MS, n)
    ends = np.sort(ends) if ordered else ends
    return ends - np.exp(rng.uniform(0, np.log(newest - oldest), n)).astype(np.int64), ends


@pytest.mark.parametrize("ordered", [True, False], ids=["as they end", "in any order"])
@pytest.mark.parametrize("shape", ["steady", "bursts", "pauses"])
@pytest.mark.parametrize("row", [POWER, THROTTLE, MEMORY_USED], ids=lambda row: row.kind.value)
def test_a_large_batch_equals_one_interval_at_a_time(row: Signal, shape: str, ordered: bool) -> None:
    held = long(row, shape)
    starts, ends = spans(held, 40_000, ordered=ordered)
    masses, covered = held.integrals(starts, ends)
    highest, known = held.maxima(starts, ends)
    scale = row.quantum * (NS_PER_S if row.kind is Kind.COUNTER else 1)
    for i in range(0, 40_000, 199):
        extent = held.extent(int(starts[i]), int(ends[i]))
        assert (int(masses[i]), int(covered[i])) == extent[:2]
        assert known[i] == (extent.peak is not None)
        assert extent.peak is None or highest[i] == extent.peak * scale


# ---------------------------------------------------------------------- timelines

DEVICE = Device("GPU-a")


def test_a_timeline_grows_a_column_with_a_signals_first_sample() -> None:
    timeline = Timeline(DEVICE, [POWER], capacity=8)
    assert list(timeline.columns) == [POWER]
    assert timeline.column(UTILIZATION) is None
    assert timeline.append([window(T0, T0 + 10, 5), window(T0, T0 + 10, 5), window(T0, T0 + 10, 5, POWER)]) == 2
    assert list(timeline.columns) == [POWER, UTILIZATION]


def test_columns_live_in_the_buffers_that_their_owner_supplies() -> None:
    buffers: dict[Signal, bytearray] = {}

    def allocate(row: Signal, size: int) -> bytearray:
        return buffers.setdefault(row, bytearray(size))

    timeline = Timeline(DEVICE, capacity=8, allocate=allocate)
    timeline.append([window(T0, T0 + 10, 5)])
    reader = Column(UTILIZATION, 8, buffers[UTILIZATION])
    assert reader.integral(T0, T0 + 10) == Cumulative(50, 10)
    timeline.append([window(T0 + 10, T0 + 20, 7)])
    assert reader.last == window(T0 + 10, T0 + 20, 7)


def test_the_watermark_is_the_moment_up_to_which_all_signals_that_there_are_are_known() -> None:
    timeline = Timeline(DEVICE, [ENERGY], capacity=8)
    assert timeline.watermark_ns([UTILIZATION, ENERGY]) is None
    timeline.append([window(T0, T0 + 10, 5), window(T0, T0 + 30, 5, POWER)])
    assert timeline.watermark_ns([UTILIZATION, POWER, CLOCK_SM]) == T0 + 10
    assert timeline.watermark_ns([CLOCK_SM]) is None


def test_a_source_that_never_got_a_row_hides_none_that_has_rows() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS, UTILIZATION], capacity=8)
    assert timeline.best([GRAPHICS, UTILIZATION]) is timeline.column(GRAPHICS)
    timeline.append([window(T0, T0 + 10, 5)])
    assert timeline.best([GRAPHICS, UTILIZATION]) is timeline.column(UTILIZATION)
    timeline.append([window(T0, T0 + 10, 5, GRAPHICS)])
    assert timeline.best([GRAPHICS, UTILIZATION]) is timeline.column(GRAPHICS)


def full(hot: int, capacity: int, rounds: int, missed: int = -1) -> Timeline:
    """A timeline of two window means and a counter, in rounds of `STEP`; one of the means misses a round."""
    timeline = Timeline(DEVICE, [GRAPHICS, POWER, THROTTLE], capacity=capacity, hot=hot)
    for i in range(rounds):
        a, b = T0 + i * STEP, T0 + (i + 1) * STEP
        samples = [window(a, b, i % 97, GRAPHICS), window(a, b, i % 89, POWER), reading(b, 3 * i)]
        timeline.append(samples if i != missed else samples[1:])
    return timeline


def test_a_timeline_keeps_at_least_its_capacity_and_not_much_more() -> None:
    timeline = full(16, 100, 1000)
    for held in timeline.columns.values():
        assert 100 <= len(held) <= 100 + 3 * 16
        assert held.watermark_ns == T0 + 1000 * STEP
        kept = range(1000 - len(held), 1000)
        assert held.oldest_ns == T0 + kept[0] * STEP
    graphics = timeline.column(GRAPHICS)
    assert graphics is not None
    assert graphics.integral(0, 1 << 61).mass == sum(i % 97 for i in range(1000 - len(graphics), 1000)) * STEP


def test_a_retention_in_ns_lets_old_rows_go_however_few_they_are() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS], capacity=10_000, hot=8, retention_ns=50 * STEP)
    for i in range(500):
        timeline.append([window(T0 + i * STEP, T0 + (i + 1) * STEP, 1, GRAPHICS)])
    held = timeline.column(GRAPHICS)
    assert held is not None
    assert 50 <= len(held) <= 50 + 3 * 8


def test_columns_with_the_same_stamps_share_them_and_a_missed_sample_unshares_one_block_only() -> None:
    timeline = full(16, 400, 300, missed=100)
    blocks = [column._history._blocks for column in timeline.columns.values()]
    shared = [len({id(block.ends) for block in row}) for row in zip(*blocks, strict=True)]
    assert len(shared) > 10
    assert shared.count(2) == 1
    assert shared.count(1) == len(shared) - 1


def test_a_slow_signal_that_is_fed_often_neither_cuts_the_others_blocks_short_nor_its_own() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS, CLOCK_SM], capacity=40 * SLOW_ROWS, hot=8 * SLOW_ROWS)
    for i in range(40 * SLOW_ROWS):
        a, b = T0 + i * STEP, T0 + (i + 1) * STEP
        timeline.append([window(a, b, i % 97, GRAPHICS), Sample(CLOCK_SM, b, b, i % 89)])
    for held in timeline.columns.values():
        sizes = held._history._edges.counts.tolist()
        assert len(held) == 40 * SLOW_ROWS
        assert min(sizes[:-1]) >= 4 * SLOW_ROWS
        assert held.rows(0, 1 << 61).values.tolist() == [
            i % (97 if held.signal is GRAPHICS else 89) for i in range(len(held))
        ]


def test_the_best_source_is_the_first_that_the_device_has() -> None:
    timeline = Timeline(DEVICE, [POWER, UTILIZATION], capacity=8)
    best = timeline.best([ENERGY, UTILIZATION, POWER])
    assert best is not None
    assert best.signal is UTILIZATION
    assert timeline.best([ENERGY]) is None


def test_a_slow_signal_has_a_smaller_buffer_and_as_long_a_history() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS, MEMORY_USED], capacity=4 * SLOW_ROWS, hot=2 * SLOW_ROWS)
    for k in range(4 * SLOW_ROWS):
        timeline.append([Sample(MEMORY_USED, k + 1, k + 1, k)])
    fast, slow = timeline.column(GRAPHICS), timeline.column(MEMORY_USED)
    assert fast is not None
    assert slow is not None
    assert (fast.capacity, slow.capacity) == (2 * SLOW_ROWS, SLOW_ROWS)
    assert len(slow) == 4 * SLOW_ROWS
