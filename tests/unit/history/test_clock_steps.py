from collections.abc import Callable

import numpy as np
import pytest
from unit.history.columns import MS, T0, THROTTLE, column, reading, window

from gpu_profile.catalogue.samples import Device, Interval, Sample
from gpu_profile.catalogue.signals import ENERGY, MEMORY_USED, UTILIZATION
from gpu_profile.history.ledger import Ledger
from gpu_profile.history.rows import Cumulative
from gpu_profile.history.timeline import Column, Timeline
from gpu_profile.join.reading import read
from gpu_profile.units import NS_PER_S

# ---------------------------------------------------------------------- the clock is set

STEP = 100 * MS


def steady(held: Column, since: int, count: int, value: int = 40) -> None:
    for i in range(count):
        held.append(window(since + i * STEP, since + (i + 1) * STEP, value))


def test_a_single_stray_sample_is_late_and_changes_nothing() -> None:
    held = Column(UTILIZATION, 64)
    steady(held, T0, 5)
    for _ in range(10):
        held.append(window(T0 - 3600 * NS_PER_S, T0 - 3600 * NS_PER_S + 1, 99))
        steady(held, held.watermark_ns or 0, 1)
    assert held.dropped == {"late": 10}
    assert len(held) == 15


def test_samples_that_are_a_little_late_never_look_like_a_clock_that_was_set_back() -> None:
    held = Column(UTILIZATION, 64)
    steady(held, T0, 40)
    steady(held, T0 + STEP, 30)
    assert held.dropped == {"late": 30}
    assert held.oldest_ns == T0


def test_the_same_old_sample_again_and_again_is_no_clock_that_was_set_back() -> None:
    held = Column(UTILIZATION, 64)
    steady(held, T0, 5)
    for _ in range(9):
        held.append(window(T0 - 3600 * NS_PER_S, T0 - 3599 * NS_PER_S, 99))
    assert held.dropped == {"late": 9}


@pytest.mark.parametrize("older", [None, 100])
def test_after_the_clock_is_set_back_a_column_starts_again_and_its_total_goes_on(older: int | None) -> None:
    held = Column(UTILIZATION, 8, older=older)
    steady(held, T0, 50)
    total, back = held.total_mass, T0 - 3600 * NS_PER_S
    steady(held, back, 7, value=10)
    assert held.dropped == {"late": 2, "clock set back": 1}
    assert (held.oldest_ns, held.watermark_ns) == (back + 2 * STEP, back + 7 * STEP)
    assert held.integral(0, T0 + 3600 * NS_PER_S) == Cumulative(5 * STEP * 10, 5 * STEP)
    assert held.integrals(np.array([0]), np.array([T0]))[0].tolist() == [5 * STEP * 10]
    assert held.total_mass == total + 5 * STEP * 10
    steady(held, back + 7 * STEP, 50, value=20)
    kept = 57 - 2 if older else 8
    assert held.integral(0, T0).mass == (50 * 20 + 5 * 10 if older else 8 * 20) * STEP
    assert len(held) == kept


def test_one_stamp_far_in_the_future_silences_a_column_for_two_samples_only() -> None:
    held = Column(UTILIZATION, 64)
    steady(held, T0, 5)
    held.append(window(T0 + 10**18, T0 + 10**18 + STEP, 99))
    steady(held, T0 + 5 * STEP, 4)
    assert held.dropped == {"late": 2, "clock set back": 1}
    assert held.watermark_ns == T0 + 9 * STEP


def test_what_a_counter_grew_by_while_the_clock_was_set_back_stays_in_its_total_and_in_no_interval() -> None:
    held = column(THROTTLE, *[(T0 + i * STEP, 100 * i) for i in range(10)])
    back = T0 - 3600 * NS_PER_S
    for i in range(4):
        held.append(reading(back + i * STEP, 1000 + 100 * i))
    assert held.dropped == {"late": 2, "clock set back": 1}
    assert held.total_mass == 1300
    assert held.integral(0, T0 + NS_PER_S) == Cumulative(100, STEP)
    assert held.last == reading(back + 3 * STEP, 1300)


def test_after_a_jump_forward_the_gap_is_nobodys_time_for_means_and_keeps_a_counters_growth() -> None:
    gap = 3600 * NS_PER_S
    held = Column(UTILIZATION, 64)
    steady(held, T0, 5)
    steady(held, T0 + gap, 5)
    assert held.integral(T0, T0 + gap).covered_ns == 5 * STEP
    counter = column(THROTTLE, (T0, 0), (T0 + STEP, 10), (T0 + gap, 50_000), (T0 + gap + STEP, 50_010))
    assert counter.integral(T0, T0 + gap + STEP) == Cumulative(50_010, gap + STEP)
    assert counter.dropped == {}
    # A reader of a part of it sees the growth spread evenly, and a resolution that says how little that tells.
    part = Interval(T0 + gap // 2, T0 + gap // 2 + NS_PER_S)
    seen = read(counter, part)
    assert seen is not None
    assert seen.resolution > 3000
    assert seen.total == pytest.approx(49_990 / 3599.9 * 1e-9, abs=1e-9)


@pytest.mark.parametrize("ahead", [50 * MS, 3 * NS_PER_S, 3600 * NS_PER_S])
@pytest.mark.parametrize("make", [lambda: Timeline(Device("GPU-a")), Ledger], ids=["timeline", "ledger"])
def test_rows_cover_no_time_that_a_clock_was_set_ahead_by(make: Callable[[], Timeline | Ledger], ahead: int) -> None:
    history = make()
    for i in range(10):
        history.append([reading(T0 + i * STEP, 100 * i), window(T0 + (i - 1) * STEP, T0 + i * STEP, 40)])
        history.append([Sample(MEMORY_USED, T0 + i * STEP, T0 + i * STEP, 7)])
    covered = {signal: column.total_covered_ns for signal, column in history.columns.items()}
    busy = history.busy.covered_ns
    history.skip(ahead)
    since = T0 + 9 * STEP + ahead
    for i in range(1, 11):
        at = since + i * STEP
        # Drivers without a clock of elapsed time stretch the first window.
        start = at - STEP - ahead * (i == 1)
        history.append([reading(at, 900 + 100 * i), window(start, at, 40), Sample(MEMORY_USED, at, at, 7)], at)
    for signal, held in history.columns.items():
        assert held.total_covered_ns - covered[signal] == 10 * STEP, signal.key
        assert held.dropped == {}
    assert history.busy.covered_ns - busy == 10 * STEP
    counter = history.columns[THROTTLE]
    if isinstance(counter, Column):
        assert counter.integral(since, since + 10 * STEP) == Cumulative(1000, 10 * STEP)
        assert counter.integral(T0, since) == Cumulative(900, 9 * STEP)


def test_samples_from_before_the_step_that_come_after_it_are_late_and_no_clock_that_was_set_back() -> None:
    held = Timeline(Device("GPU-a"))
    held.append([reading(T0 + i * STEP, 100 * i) for i in range(10)])
    ahead = 3600 * NS_PER_S
    held.skip(ahead)
    now = T0 + 15 * STEP + ahead
    held.append([reading(T0 + i * STEP, 100 * i) for i in range(10, 15)], now)
    held.append([reading(now, 1500)], now)
    counter = held.columns[THROTTLE]
    assert counter.dropped == {"late": 5}
    assert counter.integral(now - 6 * STEP, now) == Cumulative(600, 6 * STEP)


@pytest.mark.parametrize("back", [150 * MS, 3 * NS_PER_S, 3600 * NS_PER_S])
@pytest.mark.parametrize("make", [lambda: Timeline(Device("GPU-a")), Ledger], ids=["timeline", "ledger"])
def test_after_a_noticed_step_back_rows_begin_anew_and_totals_go_on(
    make: Callable[[], Timeline | Ledger], back: int
) -> None:
    history = make()
    for i in range(10):
        history.append([reading(T0 + i * STEP, 100 * i), window(T0 + (i - 1) * STEP, T0 + i * STEP, 40)])
    latest = T0 + 9 * STEP
    since = latest - back
    history.set_back(since, latest + 10 * MS)
    # A reader delivers two more samples from before the step.
    late = [reading(latest, 950), window(latest - STEP, latest, 90)]
    assert history.append(late, since + 20 * MS) == 0
    for i in range(1, 11):
        at = since + i * STEP
        assert history.append([reading(at, 950 + 100 * i), window(at - STEP, at, 60)], at) == 2
    counter, busy = history.columns[THROTTLE], history.columns[UTILIZATION]
    for held in (counter, busy):
        assert held.dropped == {"clock set back": 1, "late": 1}
        assert held.watermark_ns == since + 10 * STEP
    assert counter.total_mass == 1950
    assert (busy.total_mass, busy.total_covered_ns) == ((10 * 40 + 10 * 60) * STEP, 20 * STEP)
    assert history.busy.covered_ns == 20 * STEP if isinstance(history, Ledger) else 10 * STEP
    if isinstance(counter, Column):
        assert counter.integral(since, since + 10 * STEP) == Cumulative(900, 9 * STEP)


def test_a_device_that_went_on_while_the_machine_stood_still_has_no_implausible_row() -> None:
    held = Column(ENERGY, 64)
    for i in range(10):
        held.append(reading(T0 + i * STEP, 30_000 * i, ENERGY))
    held.skip(3600 * NS_PER_S)
    since = T0 + 3600 * NS_PER_S
    for i in range(10, 20):
        held.append(reading(since + i * STEP, 60 * 3_600_000 + 30_000 * i, ENERGY))
    assert held.dropped == {"clock set ahead": 1}
    assert held.integral(T0, since + 20 * STEP) == Cumulative(18 * 30_000, 18 * STEP)
