from collections.abc import Sequence

import numpy as np
import pytest
from support.worlds import BUSY, DEVICE, MS, NAMES, T0, WATTS, World, known

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS, OTHER
from gpu_profile.join.unmixing.windows.activities import DeviceExecution
from gpu_profile.units import NS_PER_S


def counted(pool: Pool, signal: Signal) -> dict[str, float | None]:
    shares = {"": pool.rest(signal), **{name: pool.counted(name, signal) for name in NAMES}}
    return {name: share and known(share) for name, share in shares.items()}


# ---------------------------------------------------------------------- rates


@pytest.mark.parametrize("seed", [1, 2])
def test_rates_of_regions_shorter_than_a_window_are_found_within_a_few_percent(seed: int) -> None:
    pool = World(seed).run(10)
    for name, busy, watts in zip(NAMES, BUSY, WATTS, strict=True):
        rates = pool.pooled(name).rates
        assert (rates[rows.GRAPHICS].reason, rates[rows.ENERGY].reason) == ("", "")
        assert rates[rows.GRAPHICS].value == pytest.approx(busy, rel=0.05)
        assert rates[rows.ENERGY].value == pytest.approx(watts, rel=0.05)
        assert abs(rates[rows.GRAPHICS].value - busy) < 2 * rates[rows.GRAPHICS].half_width


@pytest.fixture(scope="module")
def whole() -> Pool:
    """Of a world in slices of ten windows."""
    return World().run(10)


@pytest.mark.parametrize("windows_per_slice", [1, 7, 50, 400])
def test_slices_of_any_size_give_about_the_same_rates(whole: Pool, windows_per_slice: int) -> None:
    sliced = World().run(windows_per_slice)
    for name in NAMES:
        a, b = whole.pooled(name), sliced.pooled(name)
        assert b.active_s == pytest.approx(a.active_s)
        assert b.rates[rows.GRAPHICS].n == a.rates[rows.GRAPHICS].n
        assert b.rates[rows.GRAPHICS].value == pytest.approx(a.rates[rows.GRAPHICS].value, rel=0.02)
        assert b.busy_s == pytest.approx(known(a.busy_s), rel=0.02)


def test_readings_that_lag_by_40_ms_are_set_beside_what_ran_40_ms_earlier() -> None:
    world = World(lag_ns=40 * MS)
    pool = world.run(10)
    for signal in (rows.GRAPHICS, rows.ENERGY):
        sensor = pool.sensor(signal)
        assert sensor is not None
        stamps = np.array([sample[0].t_end_ns for sample in world.samples])
        lags = stamps - sensor.moments(stamps)
        assert abs(lags - 40 * MS).max() <= 2 * MS
    for name, busy in zip(NAMES, BUSY, strict=True):
        assert pool.pooled(name).rates[rows.GRAPHICS].value == pytest.approx(busy, rel=0.05)


def test_busy_time_of_each_region_is_near_the_truth(whole: Pool) -> None:
    world = World()
    for name in NAMES:
        assert whole.pooled(name).busy_s == pytest.approx(world.true_busy_s[name], rel=0.06)


def test_executions_and_active_time_are_those_that_were_fed() -> None:
    world = World(seconds=5)
    pool = world.run(10)
    for name in NAMES:
        mine = [a for a in world.activities if a.region == name]
        assert pool.pooled(name).executions == len(mine)
        assert pool.pooled(name).active_s == pytest.approx(
            sum((a.end_ns or 0) - a.start_ns for a in mine) / NS_PER_S, rel=1e-9
        )


def test_a_region_around_others_is_rated_with_them_and_charged_without_them() -> None:
    world = World()
    end = T0 + world.seconds * NS_PER_S
    world.activities = [a._replace(parent="all") for a in world.activities] + [
        DeviceExecution("all", None, "all", T0, end)
    ]
    pool = world.run(10)
    around, inside = pool.pooled("all"), [pool.pooled(name) for name in NAMES]
    assert around.inclusive_s == pytest.approx(world.seconds)
    assert around.active_s == pytest.approx(world.seconds - sum(part.active_s for part in inside))
    assert around.rates[rows.GRAPHICS].value == pytest.approx(known(pool.mean(rows.GRAPHICS)), rel=0.01)
    # Between the others nothing runs: what it is charged with is next to nothing.
    assert known(around.busy_s) < 0.02 * sum(known(part.busy_s) for part in inside)
    for part, busy in zip(inside, BUSY, strict=True):
        assert part.rates[rows.GRAPHICS].value == pytest.approx(busy, rel=0.05)
        assert part.inclusive_s == pytest.approx(part.active_s)


def test_a_loop_in_lock_step_gives_no_rate_but_still_counts_what_was_used() -> None:
    pool = Pool(Timeline(DEVICE, [rows.GRAPHICS], capacity=1000), start_ns=T0)
    for i in range(200):
        a = T0 + i * 100 * MS
        pool.timeline.append([Sample(rows.GRAPHICS, a, a + 100 * MS, 5000)])
    loop = [
        DeviceExecution((i, part), None, part, T0 + i * 50 * MS + offset * MS, T0 + i * 50 * MS + (offset + 20) * MS)
        for i in range(400)
        for part, offset in (("forward", 0), ("backward", 25))
    ]
    pool.advance(loop, T0 + 200 * 100 * MS)
    for part in ("forward", "backward"):
        assert "not identifiable" in pool.pooled(part).rates[rows.GRAPHICS].reason
        assert known(pool.pooled(part).busy_s) > 0


# ---------------------------------------------------------------------- counters


@pytest.mark.parametrize("windows_per_slice", [3, 25])
def test_counted_shares_only_grow_and_add_up_to_what_was_measured_at_every_step(windows_per_slice: int) -> None:
    world = World(seconds=20, noise=0.05)
    before: dict[Signal, dict[str, float]] = {rows.GRAPHICS: {}, rows.ENERGY: {}}
    steps = 0

    def check(pool: Pool) -> None:
        nonlocal steps
        for signal in (rows.GRAPHICS, rows.ENERGY):
            shares = {name: share for name, share in counted(pool, signal).items() if share is not None}
            assert all(shares[name] >= before[signal].get(name, 0.0) - 1e-9 for name in shares)
            assert min(shares.values(), default=0.0) >= 0
            before[signal] = shares
            column = pool.timeline.column(signal)
            assert column is not None
            if not any(shares.values()):
                continue
            # Of the first windows nobody knows who ran while they were taken, so they may be left out.
            unit = 1 if signal is rows.ENERGY else NS_PER_S
            least, most = (signal.base(column.integral(T0 + a * MS, pool.frontier_ns).mass) / unit for a in (200, 0))
            assert least - 1e-6 <= sum(shares.values()) <= most + 1e-6
            seen_s = pool.coverage(signal) * (pool.frontier_ns - T0) / NS_PER_S
            assert sum(shares.values()) == pytest.approx(known(pool.mean(signal)) * seen_s, rel=1e-9)
            steps += 1

    world.run(windows_per_slice, check)
    assert steps > 10


def test_estimates_add_up_to_what_was_measured_too() -> None:
    pool = World(seconds=20).run(10)
    nobodys = known(pool.rest(rows.GRAPHICS))
    estimates = sum(known(pool.pooled(name).busy_s) for name in NAMES)
    counters = sum(known(pool.counted(name, pool.busy_source())) for name in NAMES)
    assert estimates == pytest.approx(counters + nobodys, rel=0.02)


# ---------------------------------------------------------------------- absent is not zero


def test_a_device_that_tells_nothing_has_no_rates_and_no_shares() -> None:
    pool = Pool(Timeline(DEVICE), start_ns=T0)
    pool.advance([DeviceExecution(1, None, "r", T0, T0 + NS_PER_S)], T0 + NS_PER_S)
    pool.count("r")
    pooled = pool.pooled("r")
    assert (dict(pooled.rates), pooled.busy_s, pooled.energy_j, pooled.memory_max) == ({}, None, None, None)
    assert (pool.busy_source(), pool.energy_source()) == (None, None)
    assert (pool.counted("r", None), pool.counted("r", rows.GRAPHICS)) == (None, None)
    assert (pool.mean(rows.GRAPHICS), pool.sensor(rows.GRAPHICS), pool.rest(rows.GRAPHICS)) == (None, None, None)
    assert pool.coverage(rows.GRAPHICS) == 0.0
    assert (pooled.executions, pooled.active_s) == (1, 1.0)


def test_columns_without_samples_give_no_shares_either() -> None:
    pool = Pool(Timeline(DEVICE, [rows.GRAPHICS, rows.ENERGY, rows.MEMORY_USED]), start_ns=T0)
    pool.advance([DeviceExecution(1, None, "r", T0, T0 + NS_PER_S)], T0 + NS_PER_S)
    pooled = pool.pooled("r")
    assert (pooled.busy_s, pooled.energy_j, pooled.memory_max) == (None, None, None)
    assert pool.counted("r", rows.GRAPHICS) is None
    assert all(rate.reason for rate in pooled.rates.values())


def test_a_region_that_no_window_has_met_yet_has_no_estimate() -> None:
    world = World(seconds=5)
    pool = world.run(10)
    late = DeviceExecution("late", None, "late", pool.frontier_ns, pool.frontier_ns + NS_PER_S)
    pool.advance([late], pool.frontier_ns + NS_PER_S)
    assert pool.pooled("late").busy_s is None
    assert pool.pooled("late").energy_j is None
    assert known(pool.counted("late", pool.busy_source())) == 0.0


def test_a_region_that_nobody_knows_has_nothing() -> None:
    pool = World(seconds=2).run(10)
    pooled = pool.pooled("no such region")
    assert (pooled.executions, pooled.active_s, dict(pooled.rates)) == (0, 0.0, {})
    assert (pooled.busy_s, pool.counted("no such region", pool.busy_source())) == (None, None)


def test_only_totals_that_are_shared_out_have_a_rest() -> None:
    timeline = Timeline(DEVICE, [rows.GRAPHICS, rows.SM], capacity=100)
    pool = Pool(timeline, start_ns=T0)
    for i in range(50):
        a = T0 + i * 100 * MS
        timeline.append([Sample(rows.GRAPHICS, a, a + 100 * MS, 5000), Sample(rows.SM, a, a + 100 * MS, 1000)])
    pool.advance([], T0 + 5 * NS_PER_S)
    assert known(pool.rest(rows.GRAPHICS)) == pytest.approx(0.5 * 5, rel=0.05)
    assert pool.rest(rows.SM) is None
    assert pool.mean(rows.SM) == pytest.approx(0.1)


def test_coverage_says_how_much_of_the_time_the_windows_cover() -> None:
    timeline = Timeline(DEVICE, [rows.GRAPHICS], capacity=1000)
    pool = Pool(timeline, start_ns=T0)
    for i in range(100):
        if i < 20 or i >= 70:
            timeline.append([Sample(rows.GRAPHICS, T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 5000)])
    pool.advance([], T0 + 10 * NS_PER_S)
    assert pool.coverage(rows.GRAPHICS) == pytest.approx(0.5, abs=0.021)


# ---------------------------------------------------------------------- sources


@pytest.mark.parametrize(
    ("signals", "busy", "energy"),
    [
        ([rows.GRAPHICS, rows.UTILIZATION, rows.ENERGY, rows.POWER_AVERAGE], rows.GRAPHICS, rows.ENERGY),
        ([rows.UTILIZATION, rows.POWER_AVERAGE], rows.UTILIZATION, rows.POWER_AVERAGE),
        ([rows.DRAM, rows.POWER_LIMIT], None, None),
    ],
)
def test_the_best_source_that_a_device_has_is_used(
    signals: Sequence[Signal], busy: Signal | None, energy: Signal | None
) -> None:
    pool = Pool(Timeline(DEVICE, signals), start_ns=T0)
    assert (pool.busy_source(), pool.energy_source()) == (busy, energy)


def test_a_source_that_a_better_one_makes_superfluous_is_not_taken_in_once_that_has_readings() -> None:
    timeline = Timeline(DEVICE, [rows.GRAPHICS, rows.UTILIZATION, rows.ENERGY, rows.POWER_AVERAGE])
    pool = Pool(timeline, start_ns=T0)
    assert pool.joined == [rows.GRAPHICS, rows.UTILIZATION, rows.ENERGY, rows.POWER_AVERAGE]
    timeline.append([Sample(rows.GRAPHICS, T0, T0 + 100 * MS, 5000)])
    timeline.append(Sample(rows.ENERGY, T0 + i * 100 * MS, T0 + i * 100 * MS, i * 1000) for i in range(2))
    pool.advance([], T0 + NS_PER_S)
    assert pool.joined == [rows.GRAPHICS, rows.ENERGY]


# ---------------------------------------------------------------------- bounds, slices


def test_beyond_the_most_regions_the_rest_are_other_and_counted() -> None:
    pool = Pool(Timeline(DEVICE, [rows.GRAPHICS], capacity=100), start_ns=T0)
    many = MOST_REGIONS + 36
    each = 10 * MS
    pool.advance(
        [DeviceExecution(i, None, f"n{i}", T0 + i * each, T0 + (i + 1) * each) for i in range(many)], T0 + many * each
    )
    for i in range(many):
        pool.count(f"n{i}")
    assert len(pool.regions) == MOST_REGIONS + 1
    assert pool.overflowed == 36
    other = pool.pooled(OTHER)
    assert other.executions == 36
    assert other.active_s == pytest.approx(0.36)
    assert pool.pooled(f"n{many - 1}").region == OTHER


def test_a_slice_of_less_than_half_a_second_waits_unless_it_is_the_last() -> None:
    pool = Pool(Timeline(DEVICE, [rows.GRAPHICS]), start_ns=T0)
    pool.advance([], T0 + 100 * MS)
    assert pool.frontier_ns == T0
    pool.advance([], T0 + 100 * MS, final=True)
    assert pool.frontier_ns == T0 + 100 * MS


def test_time_that_was_taken_in_is_not_taken_in_again() -> None:
    pool = Pool(Timeline(DEVICE, [rows.GRAPHICS]), start_ns=T0)
    still = [DeviceExecution(1, None, "r", T0 - NS_PER_S, None)]
    for until in (2, 1, 2, 3):
        pool.advance(still, T0 + until * NS_PER_S)
    assert pool.frontier_ns == T0 + 3 * NS_PER_S
    assert pool.pooled("r").active_s == 3.0


def test_an_execution_without_work_on_the_device_is_counted_without_time() -> None:
    pool = Pool(Timeline(DEVICE, [rows.GRAPHICS]), start_ns=T0)
    pool.advance([DeviceExecution(1, None, "r", T0 + MS, T0 + MS)], T0 + NS_PER_S)
    pool.count("r")
    assert (pool.pooled("r").executions, pool.pooled("r").active_s) == (1, 0.0)


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("slices", [1, 10])
def test_the_most_memory_during_a_region_is_found_in_slices_of_any_size(slices: int) -> None:
    pool = Pool(Timeline(DEVICE, [rows.MEMORY_USED], capacity=100), start_ns=T0)
    for i, mib in enumerate([100, 100, 900, 100, 100, 100, 100, 5000, 5000, 100, 100]):
        pool.timeline.append([Sample(rows.MEMORY_USED, T0 + i * NS_PER_S, T0 + i * NS_PER_S, mib)])
    spans = [
        DeviceExecution(1, None, "early", T0, T0 + 4 * NS_PER_S),
        DeviceExecution(2, None, "late", T0 + 6 * NS_PER_S, None),
    ]
    for i in range(slices):
        pool.advance(spans, T0 + 10 * NS_PER_S * (i + 1) // slices)
    assert pool.pooled("early").memory_max == 900 << 20
    assert pool.pooled("late").memory_max == 5000 << 20


def test_a_region_between_two_readings_has_the_memory_of_the_last_one() -> None:
    pool = Pool(Timeline(DEVICE, [rows.MEMORY_USED]), start_ns=T0)
    pool.timeline.append([Sample(rows.MEMORY_USED, T0, T0, 300)])
    pool.advance([DeviceExecution(1, None, "r", T0 + MS, T0 + 2 * MS)], T0 + NS_PER_S)
    assert pool.pooled("r").memory_max == 300 << 20
