from collections.abc import Callable

import numpy as np
import pytest

from gpu_profile.catalogue import Kind, Signal
from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, PCIE_RX, POWER, UTILIZATION
from gpu_profile.history.timeline import Column, Ints, Timeline
from gpu_profile.join.reading import Reading, quantiles, read
from gpu_profile.units import NS_PER_S

DEVICE = Device("GPU-a")
T0 = 1_700_000_000 * NS_PER_S
LONG = 14_400
#: A region that begins and ends in the middle of rows.
START, END = T0 + 100 * NS_PER_S + 123_456_789, T0 + LONG * NS_PER_S - 987_654_321


def counter(rng: np.random.Generator, n: int) -> Ints:
    return np.cumsum(rng.integers(0, 700_000, n))


KINDS: dict[str, tuple[Signal, Callable[[np.random.Generator, int], Ints]]] = {
    "few levels": (UTILIZATION, lambda rng, n: rng.integers(0, 101, n)),
    "many levels": (GRAPHICS, lambda rng, n: rng.integers(0, 10_001, n)),
    "drifting": (GRAPHICS, lambda rng, n: (np.arange(n) * 10_000 // n + rng.integers(0, 50, n)).clip(0, 10_000)),
    "one outlier": (POWER, lambda rng, n: np.where(np.arange(n) == n // 3, 700_000, rng.integers(90_000, 95_000, n))),
    "instant": (MEMORY_USED, lambda rng, n: 1000 + np.cumsum(rng.integers(-4, 5, n)).clip(-900)),
    "counter": (ENERGY, counter),
    "counter that restarts": (PCIE_RX, lambda rng, n: counter(rng, n) % 7_777_777_777),
}


def samples(row: Signal, values: Ints) -> list[Sample]:
    """A reading a second, with every 1000th left out."""
    back = NS_PER_S if row.kind is Kind.WINDOW_MEAN else 0
    ends = [T0 + (i + 1) * NS_PER_S for i in range(len(values))]
    return [Sample(row, t - back, t, v) for i, (t, v) in enumerate(zip(ends, values.tolist(), strict=True)) if i % 1000]


def both(name: str, hot: int) -> tuple[Column, Column]:
    """A column of ten minutes with an anchor, and one of all the time."""
    row, draw = KINDS[name]
    taken = samples(row, draw(np.random.default_rng(5), LONG))
    timeline = Timeline(DEVICE, [row], capacity=600, hot=hot)
    full = Column(row, LONG)
    anchored = False
    for sample in taken:
        if not anchored and timeline.anchor_due(START):
            timeline.anchor(START)
            anchored = True
        timeline.append([sample])
        full.append(sample)
    held = timeline.column(row)
    assert held is not None
    assert anchored
    assert len(held) < 1200
    return held, full


def seen(column: Column, a: int, b: int) -> Reading:
    reading = read(column, Interval(a, b))
    assert reading is not None
    return reading


@pytest.mark.parametrize("hot", [200, 600], ids=["with a history", "buffer only"])
@pytest.mark.parametrize("name", KINDS)
def test_hours_over_a_history_of_ten_minutes_read_as_over_a_history_of_hours(name: str, hot: int) -> None:
    held, full = both(name, hot)
    ours, theirs = seen(held, START, END), seen(full, START, END)
    assert ours == theirs
    if held.signal.kind is Kind.COUNTER:
        return
    values = full.rows(START, END).values
    tolerance = 0.01 * held.signal.base(int(values.max() - values.min()))
    whole = Interval(START, END)
    for found, true in zip(*(quantiles(each, whole, 0.5, 0.95, 0.99) for each in (held, full)), strict=True):
        assert found == pytest.approx(true, abs=tolerance)


def small(rounds: int, *anchors: int, capacity: int = 20, hot: int = 4, since: int = 0) -> Timeline:
    timeline = Timeline(DEVICE, [UTILIZATION], capacity=capacity, hot=hot)
    for anchor in anchors:
        timeline.anchor(anchor)
    for i in range(since, rounds):
        timeline.append([Sample(UTILIZATION, i * 10, i * 10 + 10, i % 7)])
    return timeline


def only(timeline: Timeline) -> Column:
    column = timeline.column(UTILIZATION)
    assert column is not None
    return column


def test_an_interval_whose_rows_are_gone_says_so_by_its_coverage() -> None:
    held = only(small(100))
    reading = seen(held, 5, 1000)
    assert reading.coverage == pytest.approx(len(held) * 10 / 995)
    assert read(held, Interval(5, 100)) is None
    assert quantiles(held, Interval(5, 100), 0.5) == [None]


def test_an_interval_that_ended_before_rows_went_is_not_answered_from_more_than_it_was() -> None:
    held = only(small(100, 5))
    assert seen(held, 5, 1000).coverage == 1.0
    assert read(held, Interval(5, 100)) is None


def test_only_an_interval_that_begins_at_the_anchor_reads_what_is_gone() -> None:
    held = only(small(100, 5))
    assert seen(held, 6, 1000).coverage < 0.5


def test_an_anchor_that_was_set_late_has_what_was_there_by_then() -> None:
    timeline = small(100)
    oldest = only(timeline).oldest_ns or 0
    timeline.anchor(5)
    for i in range(100, 200):
        timeline.append([Sample(UTILIZATION, i * 10, i * 10 + 10, i % 7)])
    reading = seen(only(timeline), 5, 2000)
    assert reading.coverage == pytest.approx((2000 - oldest) / 1995)
    assert reading.total == pytest.approx(sum(i % 7 for i in range(oldest // 10, 200)) * 10 / 1e11)


def test_an_anchor_is_counted_and_goes_with_its_last_release() -> None:
    timeline = small(10, 5, 5, 30)
    assert timeline.anchors == [5, 30]
    timeline.release(5)
    assert timeline.anchors == [5, 30]
    timeline.release(5)
    timeline.release(5)
    timeline.release(12_345)
    assert timeline.anchors == [30]


def test_nothing_more_is_kept_for_an_anchor_that_was_released() -> None:
    timeline = small(100, 5)
    timeline.release(5)
    for i in range(100, 200):
        timeline.append([Sample(UTILIZATION, i * 10, i * 10 + 10, i % 7)])
    assert seen(only(timeline), 5, 2000).coverage < 0.5


@pytest.mark.parametrize(("capacity", "hot"), [(20, 4), (20, 20), (6, 6)])
def test_an_anchor_is_due_before_any_of_its_rows_go_and_not_while_all_are_safe(capacity: int, hot: int) -> None:
    timeline = Timeline(DEVICE, [UTILIZATION], capacity=capacity, hot=hot)
    due = []
    for i in range(10 * capacity):
        due.append(timeline.anchor_due(35))
        timeline.append([Sample(UTILIZATION, i * 10, i * 10 + 10, 1)])
        if (only(timeline).oldest_ns or 0) > 30:
            break
    assert due[-1]
    assert not any(due[: capacity // 2])
    assert not timeline.anchor_due(i * 10)


def test_a_retention_in_ns_makes_anchors_due_as_well() -> None:
    timeline = Timeline(DEVICE, [UTILIZATION], capacity=10_000, hot=4, retention_ns=200)
    for i in range(100):
        if (only(timeline).oldest_ns or 0) > 30:
            break
        due = timeline.anchor_due(35)
        timeline.append([Sample(UTILIZATION, i * 10, i * 10 + 10, 1)])
    assert due


def test_after_the_clock_was_set_back_an_anchor_keeps_what_lies_before_the_new_present() -> None:
    step = NS_PER_S
    timeline = Timeline(DEVICE, [UTILIZATION], capacity=40, hot=8)
    timeline.anchor(T0)
    for i in range(100):
        timeline.append([Sample(UTILIZATION, T0 + i * step, T0 + (i + 1) * step, 50)])
    # One stamp far in the future, and then all goes on.
    timeline.append([Sample(UTILIZATION, T0 + 10**18, T0 + 10**18 + step, 99)])
    for i in range(100, 200):
        timeline.append([Sample(UTILIZATION, T0 + i * step, T0 + (i + 1) * step, 50)])
    whole = T0, T0 + 200 * step
    reading = seen(only(timeline), *whole)
    assert only(timeline).dropped == {"late": 2, "clock set back": 1}
    assert reading.coverage == pytest.approx(198 / 200)
    assert (reading.mean, reading.maximum) == (0.5, 0.5)
    assert quantiles(only(timeline), Interval(*whole), 0.99) == [0.5]
    assert reading.total == pytest.approx(0.5 * 198)


def test_an_anchor_holds_sums_that_no_64_bits_hold() -> None:
    timeline = Timeline(DEVICE, [POWER], capacity=10, hot=4)
    timeline.anchor(T0)
    hour = 3600 * NS_PER_S
    for i in range(30 * 24):
        timeline.append([Sample(POWER, T0 + i * hour, T0 + (i + 1) * hour, 1_000_000)])
    held = timeline.column(POWER)
    assert held is not None
    assert held.extent(T0, T0 + 720 * hour)[:2] == (720 * hour * 1_000_000, 720 * hour)
