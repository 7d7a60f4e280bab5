import numpy as np
import pytest
from benchmarks.unmixing import estimate
from benchmarks.unmixing_worlds import World as Study
from support.worlds import BUSY, DEVICE, LATE, LATE_BUSY, MS, NAMES, T0, WATTS, World, known

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, PCIE_RX, POWER_AVERAGE, SM, TENSOR
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.mixture import Mixture
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.pools.shares import CountedShare
from gpu_profile.join.unmixing.solving.region_columns import RegionColumns
from gpu_profile.join.unmixing.solving.unmix import TIMING
from gpu_profile.join.unmixing.timing.expected import DevicePrior
from gpu_profile.join.unmixing.timing.timings import lagging, renewing, shapes, stepping
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.join.unmixing.windows.sensor import FINE_STEPS_NS
from gpu_profile.units import NS_PER_S


def mixture_of(pool: Pool) -> Mixture:
    found = next(mixture for mixture in pool._mixtures if mixture.lead is GRAPHICS)
    assert isinstance(found, Mixture)
    return found


def busy(pool: Pool, region: str) -> float:
    rate = pool.pooled(region).rates[GRAPHICS]
    assert rate.reason == ""
    return rate.value


def test_a_loop_of_half_a_counters_period_has_no_rates() -> None:
    """Its windows are all alike. Periods that leave no time to windows in which the counter grew fit them as well."""
    study = Study(1, seconds=120, signal=ENERGY, order="fixed", jitter=0.0, loop_ns=50 * MS)
    assert [region.value for region in estimate(study).regions] == [None] * study.regions


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
            pool.advance(active, until, final=i == len(world.samples) - 1)
    truth = sum(world.true_busy_s.values())
    assert sum(known(pool.pooled(name).busy_s) for name in NAMES) == pytest.approx(truth, rel=0.03)
    assert pool.mean(SM) is None


# ---------------------------------------------------------------------- once the timing is known


def test_a_timing_that_is_sure_is_locked_and_the_windows_and_old_fits_are_dropped() -> None:
    fits = []

    def check(pool: Pool) -> None:
        fits.append(len(mixture_of(pool)._fits))
        if mixture_of(pool).timed:
            busy(pool, NAMES[0])
            assert mixture_of(pool)._fits

    mixture = mixture_of(World(seconds=40).run(50, check))
    assert (mixture.locked, mixture.drifts) == (True, 0)
    assert not mixture._kept
    assert fits[-1] == 0
    # The solution that new windows are compared with is the one that blocks of windows refer to.
    assert np.shares_memory(mixture._watch._solution, mixture._equations.reference)


@pytest.mark.parametrize(("before", "after"), [(0, 40), (40, 0)])
def test_after_a_jump_of_the_sensor_its_timing_is_found_again_and_rates_stay_right(before: int, after: int) -> None:
    world = World(seconds=100, lag_ns=before * MS, jump_s=50, later_lag_ns=after * MS)
    worst = []

    def check(pool: Pool) -> None:
        if pool.frontier_ns > T0 + 20 * NS_PER_S:
            worst.append(max(abs(busy(pool, name) / true - 1) for name, true in zip(NAMES, BUSY, strict=True)))

    pool = world.run(50, check)
    sensor = pool.sensor(GRAPHICS)
    assert sensor is not None
    assert mixture_of(pool).drifts == 1
    last = T0 + world.seconds * NS_PER_S
    assert abs(int(last - sensor.moments(np.array([last]))[0]) - after * MS) < 2 * MS
    assert max(worst) < 0.05
    assert worst[-1] < 0.03


@pytest.mark.parametrize(
    ("every", "long_ms"), [(1, 10.0), (6, 30.0), (40, 10.0), (400, 500.0)], ids=["alone", "often", "seldom", "rarely"]
)
def test_a_region_that_comes_once_the_timing_is_locked_is_no_drift_and_costs_nobody_a_rate(
    every: int, long_ms: float
) -> None:
    world = World(seconds=90, late_s=50, late_every=every, late_ms=long_ms)

    def check(pool: Pool) -> None:
        if pool.frontier_ns > T0 + 20 * NS_PER_S:
            for name, true in zip(NAMES, BUSY, strict=True):
                assert busy(pool, name) == pytest.approx(true, rel=0.03)

    pool = world.run(50, check)
    assert mixture_of(pool).drifts == 0
    assert busy(pool, LATE) == pytest.approx(LATE_BUSY, rel=0.03)


def test_readings_that_are_far_off_once_in_a_while_do_no_harm() -> None:
    world = World(seconds=80)
    for i in range(350, len(world.samples), 97):
        window, energy = world.samples[i]
        world.samples[i] = (window._replace(value=10_000 - window.value), energy)
    pool = world.run(50)
    assert mixture_of(pool).drifts == 0
    for name, true in zip(NAMES, BUSY, strict=True):
        assert busy(pool, name) == pytest.approx(true, rel=0.03)


def test_a_device_that_idled_all_the_while_is_looked_at_anew_when_it_starts_to_work() -> None:
    # Of readings that are all 0 any timing is as good, and one is locked in the end.
    world = World(seconds=200, lag_ns=40 * MS)
    idle = 1100
    world.samples[:idle] = [(window._replace(value=0), energy) for window, energy in world.samples[:idle]]
    world.activities = [
        a if a.start_ns > T0 + idle * 100 * MS else a._replace(region="loader") for a in world.activities
    ]
    pool = world.run(100)
    sensor = pool.sensor(GRAPHICS)
    assert sensor is not None
    last = T0 + world.seconds * NS_PER_S
    assert abs(int(last - sensor.moments(np.array([last]))[0]) - 40 * MS) < 2 * MS
    for name, true in zip(NAMES, BUSY, strict=True):
        assert busy(pool, name) == pytest.approx(true, rel=0.03)


def test_counters_that_are_read_at_the_call_have_no_timing_to_look_for() -> None:
    timeline = Timeline(DEVICE, [PCIE_RX], capacity=1000)
    pool = Pool(timeline, start_ns=T0)
    quanta = 0
    for i in range(40):
        quanta += (i % 2) * 5000
        timeline.append([Sample(PCIE_RX, T0 + (i + 1) * 100 * MS, T0 + (i + 1) * 100 * MS, quanta)])
    active = [
        DeviceExecution(i, None, "copy" if i % 2 else "wait", T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS)
        for i in range(40)
    ]
    pool.advance(active, T0 + 4 * NS_PER_S, final=True)
    rates = [pool.pooled(name).rates[PCIE_RX] for name in ("copy", "wait")]
    assert [rate.reason for rate in rates] == ["", ""]
    assert rates[0].value == pytest.approx(50_000 * PCIE_RX.quantum, rel=1e-6)
    assert rates[1].value == pytest.approx(0, abs=1e-3)


def test_before_its_timing_was_looked_for_a_counter_has_no_rate_and_time_shares_it_out() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS], capacity=100)
    pool = Pool(timeline, start_ns=T0)
    active = []
    for i in range(14):
        a = T0 + i * 100 * MS
        timeline.append([Sample(GRAPHICS, a, a + 100 * MS, 10_000 * (i % 2))])
        active.append(DeviceExecution(i, None, "work", a, a + (20 + 60 * (i % 2)) * MS))
    pool.advance(active, T0 + 2000 * MS)
    pooled = pool.pooled("work")
    assert pooled.rates[GRAPHICS].reason == "too few samples (14)"
    assert pooled.busy is not None
    assert pooled.busy.half_width is None
    # The windows cover 1.4 s.
    assert pooled.busy_s == pytest.approx(0.7 * pooled.active_s / 1.4)


def test_time_without_samples_has_no_part_of_the_total_wherever_it_is() -> None:
    """A sampler stops in a long pause, or two runs are in one recording."""
    timeline, active = Timeline(DEVICE, [GRAPHICS], capacity=100), []
    pool = Pool(timeline, start_ns=T0)
    for i, at in enumerate((*range(20), *range(1000, 1020))):
        a = T0 + at * 100 * MS
        timeline.append([Sample(GRAPHICS, a, a + 100 * MS, 10_000)])
        active.append(DeviceExecution(i, None, ("first", "second")[i // 20], a, a + 100 * MS))
    pool.advance(active, T0 + 103_000 * MS)
    assert [pool.pooled(name).busy_s for name in ("first", "second")] == pytest.approx([2.0, 2.0], rel=1e-3)
    assert pool.rest(GRAPHICS) == pytest.approx(CountedShare(0.0, 0.0), abs=1e-3)


# ---------------------------------------------------------------------- what is fetched


def test_a_window_that_corrections_moved_beyond_those_of_all_boards_gives_no_rate() -> None:
    mixture = mixture_of(World(seconds=12).run(120))
    some = np.array([0.0, 1.0])
    for window_ms, reason in ((0, ""), (8, TIMING), (25, ""), (1000, ""), (1600, TIMING)):
        mixture.sensor = mixture.sensor._replace(window_ns=window_ms * MS)
        assert mixture.rate(mixture.lead, some).reason == reason


def single(signals: list[Signal], start_ns: int = T0) -> tuple[Timeline, Mixture, RegionColumns]:
    timeline, attribution = Timeline(DEVICE, signals, capacity=1000), RegionColumns()
    mixture = Mixture(
        timeline,
        tuple(signals),
        start_ns=start_ns,
        active_s=lambda: attribution.active(mixture.family.seen_ns - start_ns),
        regions=attribution.regions,
        joint=attribution.joint,
        shared=attribution.is_shared,
        centres=attribution.centres,
        stamps=attribution.stamps,
        prior=DevicePrior(),
    )
    return timeline, mixture, attribution


def test_windows_without_all_signals_of_the_family_are_left_out_for_all() -> None:
    timeline, mixture, _ = single([GRAPHICS, SM])
    for i in range(10):
        a = T0 + i * 100 * MS
        timeline.append([Sample(GRAPHICS, a, a + 100 * MS, 5000)])
        if i != 4:
            timeline.append([Sample(SM, a, a + 100 * MS, 1000)])
    mixture.fetch(T0, T0 + NS_PER_S, final=True)
    assert mixture.family.covered_s == pytest.approx(0.9)
    assert mixture.family.measured == pytest.approx([0.45, 0.09])
    assert mixture.family.mean(SM) == pytest.approx(0.1)


def test_no_window_is_fetched_twice_and_none_is_lost_between_slices() -> None:
    timeline, mixture, _ = single([GRAPHICS])
    for i in range(100):
        a = T0 + i * 100 * MS
        timeline.append([Sample(GRAPHICS, a, a + 100 * MS, 100 * i)])
        if i % 7 == 0:
            mixture.fetch(T0, a + 37 * MS)
    mixture.fetch(T0, T0 + 20 * NS_PER_S, final=True)
    assert mixture.family.covered_s == pytest.approx(10.0)
    assert mixture.family.measured[0] == pytest.approx(sum(0.01 * i * 0.1 for i in range(100)))


def test_readings_of_before_the_start_are_not_of_it() -> None:
    timeline, mixture, _ = single([ENERGY], T0 + NS_PER_S)
    timeline.append(Sample(ENERGY, at, at, i * 1000) for i, at in enumerate(range(T0, T0 + 3 * NS_PER_S, 500 * MS)))
    mixture.fetch(T0 + NS_PER_S, T0 + 3 * NS_PER_S, final=True)
    assert mixture.family.measured[0] == pytest.approx(3.0)
    assert mixture.family.covered_s == pytest.approx(1.5)


def test_active_time_is_asked_for_as_far_back_as_any_timing_that_is_tried_may_look() -> None:
    for signal in (GRAPHICS, POWER_AVERAGE):
        timeline, mixture, _ = single([signal])
        lags = lagging(shapes(signal))
        tried = [*lags, *renewing(lags[::50], signal), *stepping(lags, signal, T0 + np.arange(50) * 100 * MS)]
        tried += [near for sensor in tried[::-20] for near in sensor.around(FINE_STEPS_NS[0])]
        tried += [sensor._replace(jitter_ns=50 * MS) for sensor in tried]
        for i in range(200):
            a = T0 + i * 100 * MS
            timeline.append([Sample(signal, a, a + 100 * MS, 5000)])
        mixture.fetch(T0, T0 + 20 * NS_PER_S)
        first = mixture._waiting[0].starts[:1]
        for sensor in tried:
            offsets = sensor.kernel()[0] if sensor.window_ns else sensor.spread()
            assert mixture.needs_ns <= sensor.moments(first)[0] + offsets.min()
