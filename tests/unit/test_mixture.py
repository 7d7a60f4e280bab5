from __future__ import annotations

import pytest
from pooling_world import DEVICE, MS, NAMES, T0, WATTS, World, known

from gpu_profile.catalogue.signals import GRAPHICS, POWER_AVERAGE, SM, TENSOR
from gpu_profile.pooling import Pool
from gpu_profile.samples import Sample
from gpu_profile.timeline import Timeline
from gpu_profile.units import NS_PER_S


def test_a_reading_that_looks_back_to_before_the_first_slice_spoils_no_rate() -> None:
    world = World(seconds=60)
    timeline = Timeline(DEVICE, [POWER_AVERAGE], capacity=1000)
    pool = Pool(timeline, start_ns=T0)
    joules = [both[1].value for both in world.samples]
    for i, (window, energy) in enumerate(world.samples):
        # Before the start something else drew 500 W.
        before = joules[i - 10] if i >= 10 else -500 * (1000 - (i + 1) * 100)
        mean_mw = energy.value - before
        timeline.append([Sample(POWER_AVERAGE, window.t_end_ns - NS_PER_S, window.t_end_ns, mean_mw)])
    pool.advance(world.activities, T0 + world.seconds * NS_PER_S)
    for name, watts in zip(NAMES, WATTS, strict=True):
        rate = pool.pooled(name).rates[POWER_AVERAGE]
        assert rate.reason or abs(rate.value - watts) < 3 * rate.half_width
        assert rate.value == pytest.approx(watts, rel=0.15)


def test_what_was_measured_since_the_start_is_shared_out_whole() -> None:
    world = World(seconds=3)
    pool = world.run(5)
    truth = sum(world.true_busy_s.values())
    assert sum(known(pool.pooled(name).busy_s) for name in NAMES) == pytest.approx(truth, rel=0.03)


def test_a_signal_that_never_comes_does_not_silence_its_family() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS, SM, TENSOR], capacity=1000)
    pool = Pool(timeline, start_ns=T0)
    for second in range(10):
        for i in range(10 * second, 10 * second + 10):
            a = T0 + i * 100 * MS
            timeline.append([Sample(GRAPHICS, a, a + 100 * MS, 5000), Sample(TENSOR, a, a + 100 * MS, 2000)])
        pool.advance([], T0 + (second + 1) * NS_PER_S)
    assert pool.mean(GRAPHICS) == pytest.approx(0.5)
    assert pool.mean(TENSOR) == pytest.approx(0.2)
    assert pool.mean(SM) is None


def test_a_signal_that_ends_midway_leaves_and_the_others_go_on() -> None:
    world = World(seconds=40)
    timeline = Timeline(DEVICE, [GRAPHICS, SM], capacity=2000)
    pool = Pool(timeline, start_ns=T0)
    for i, (window, _) in enumerate(world.samples):
        timeline.append([window])
        if i < 150:
            timeline.append([Sample(SM, window.t_start_ns, window.t_end_ns, 1000)])
        if i % 10 == 9:
            until = window.t_end_ns
            active = [a for a in world.activities if a.start_ns < until and (a.end_ns or 0) > pool.frontier_ns]
            pool.advance(active, until)
    truth = sum(world.true_busy_s.values())
    assert sum(known(pool.pooled(name).busy_s) for name in NAMES) == pytest.approx(truth, rel=0.03)
    assert pool.mean(SM) is None
