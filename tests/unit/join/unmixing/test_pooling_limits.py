"""What a pool makes of a clock that jumps, of more regions than it has room for, and of streams side by side."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.worlds import BUSY, DEVICE, MS, NAMES, T0, World, known

from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, MEMORY_USED, PCIE_RX, POWER, POWER_AVERAGE, UTILIZATION
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.unmixing.pools.mixture import Mixture
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.solving.region_columns import MOST_REGIONS, OTHER
from gpu_profile.join.unmixing.solving.unmix import Fit
from gpu_profile.join.unmixing.timing.expected import DevicePrior, SensorPrior
from gpu_profile.join.unmixing.windows.activities import Activities, DeviceExecution
from gpu_profile.join.unmixing.windows.sensor import Sensor
from gpu_profile.units import NS_PER_S

# ---------------------------------------------------------------------- clocks


@pytest.mark.parametrize("back_s", [10, 3600])
def test_after_the_clock_was_set_back_totals_go_on_and_rates_stay_right(back_s: int) -> None:
    world = World(seconds=80)
    timeline = Timeline(DEVICE, [GRAPHICS, ENERGY], capacity=10_000)
    pool = Pool(timeline, start_ns=T0)
    total = 0.0
    for i in range(0, 800, 10):
        shift = back_s * NS_PER_S if i >= 400 else 0
        for window, energy in world.samples[i : i + 10]:
            timeline.append(
                sample._replace(t_start_ns=sample.t_start_ns - shift, t_end_ns=sample.t_end_ns - shift)
                for sample in (window, energy)
            )
        until = world.samples[i + 9][0].t_end_ns
        active = [
            a._replace(start_ns=a.start_ns - shift, end_ns=(a.end_ns or 0) - shift)
            for a in world.activities
            if a.start_ns < until and (a.end_ns or 0) > until - NS_PER_S
        ]
        pool.advance(active, until - shift, final=i == 790)
        shares = [known(pool.counted(name, pool.busy_source())) for name in NAMES]
        assert sum(shares) >= total - 1e-9
        total = sum(shares)
        assert 0 <= pool.coverage(GRAPHICS) <= 1
        assert pool.frontier_ns == until - shift
    assert pool.set_back == 1
    assert pool.coverage(GRAPHICS) > 0.9
    # The windows on either side of the jump are lost, and what ran in the second of it.
    active_s = sum(pool.pooled(name).active_s for name in NAMES)
    assert active_s == pytest.approx(sum((a.end_ns or 0) - a.start_ns for a in world.activities) / 1e9, abs=2.0)
    assert sum(world.true_busy_s.values()) == pytest.approx(total + known(pool.rest(GRAPHICS)), abs=2.0)
    for name, true in zip(NAMES, BUSY, strict=True):
        assert pool.pooled(name).rates[GRAPHICS].value == pytest.approx(true, rel=0.03)


@pytest.mark.parametrize(("ahead_s", "at"), [(0.35, 203), (7.0, 203), (3600.0, 603)])
def test_a_clock_that_is_set_ahead_costs_no_window_and_no_time(ahead_s: float, at: int) -> None:
    """Between readings, before and after the timing is kept: all times move."""
    world, step_ns = World(seconds=80, lag_ns=30 * MS), T0 + at * 100 * MS + 50 * MS

    def run(ahead_ns: int) -> Pool:
        def shown(t_ns: int) -> int:
            return t_ns + ahead_ns * (t_ns > step_ns)

        pool = Pool(Timeline(DEVICE, [GRAPHICS, ENERGY], capacity=10_000), start_ns=T0)
        for i, both in enumerate(world.samples):
            active = [a for a in world.activities if step_ns - NS_PER_S < (a.end_ns or 0)] if i == at else []
            if active and ahead_ns:
                pool.advance([a for a in active if a.start_ns < step_ns], step_ns, final=True)
                pool.timeline.skip(ahead_ns)
                pool.skip(ahead_ns)
            pool.timeline.append(s._replace(t_start_ns=shown(s.t_start_ns), t_end_ns=shown(s.t_end_ns)) for s in both)
            if i % 10 == 9:
                until = both[0].t_end_ns
                active = [a for a in world.activities if a.start_ns < until and (a.end_ns or 0) > until - 2 * NS_PER_S]
                moved = [a._replace(start_ns=shown(a.start_ns), end_ns=shown(a.end_ns or 0)) for a in active]
                pool.advance(moved, shown(until), final=i == 799)
        return pool

    found, expected = run(round(ahead_s * NS_PER_S)), run(0)
    assert found.frontier_ns - found.start_ns == expected.frontier_ns - expected.start_ns
    for mixture, other in zip(found._mixtures, expected._mixtures, strict=True):
        assert mixture.family.n == other.family.n, mixture.lead.key
        assert mixture.n == pytest.approx(other.n, abs=2)
        assert mixture.family.covered_s == pytest.approx(other.family.covered_s, abs=1e-6)
        assert mixture.family.measured == pytest.approx(other.family.measured)
        assert mixture.sensor.lag_ns == pytest.approx(other.sensor.lag_ns, abs=2 * MS)
        assert mixture.drifts == 0
    for name in NAMES:
        ours, theirs = found.pooled(name), expected.pooled(name)
        assert ours.active_s == pytest.approx(theirs.active_s, abs=1e-6)
        assert (ours.energy_j, ours.busy_s) == pytest.approx((theirs.energy_j, theirs.busy_s), rel=2e-3)


def test_a_slice_that_ends_a_little_before_the_frontier_sets_no_clock_back() -> None:
    pool = Pool(Timeline(DEVICE, [GRAPHICS]), start_ns=T0)
    pool.advance([], T0 + 10 * NS_PER_S)
    pool.advance([], T0 + 6 * NS_PER_S, final=True)
    assert (pool.set_back, pool.frontier_ns) == (0, T0 + 10 * NS_PER_S)


@pytest.mark.parametrize("years", [1, 50])
def test_a_stamp_that_is_far_in_the_future_costs_no_more_than_a_bounded_number_of_steps(years: int) -> None:
    pool = Pool(Timeline(DEVICE, [GRAPHICS, ENERGY], capacity=100), start_ns=T0)
    future = T0 + years * 365 * 86_400 * NS_PER_S
    pool.timeline.append([Sample(GRAPHICS, T0, T0 + 100 * MS, 5000), Sample(ENERGY, T0, T0, 0)])
    steps = 0
    take = pool.attribution.take

    def counted(activities: Activities, between: tuple[int, int] | None = None) -> None:
        nonlocal steps
        steps += 1
        take(activities, between)

    pool.attribution.take = counted  # type: ignore[method-assign]
    pool.advance([DeviceExecution(1, None, "r", T0, None)], future)
    assert pool.frontier_ns == future
    assert steps <= 5001
    # The clock comes back: nothing counts twice, and shares of time stay shares.
    pool.advance([DeviceExecution(1, None, "r", T0, None)], T0 + 10 * NS_PER_S)
    assert (pool.frontier_ns, pool.set_back) == (T0 + 10 * NS_PER_S, 1)
    assert 0 <= pool.coverage(GRAPHICS) <= 1


# ---------------------------------------------------------------------- the 64 busiest


def crowd(pool: Pool, seconds: range, late: str, carried: int = 0) -> Iterator[DeviceExecution]:
    """Each second 64 small regions of 5 ms each, and `late` for a third of the time, which is three times as busy."""
    for second in seconds:
        at = T0 + second * NS_PER_S
        active = [
            DeviceExecution((second, i), None, f"n{i}", at + i * 5 * MS, at + (i + 1) * 5 * MS)
            for i in range(MOST_REGIONS)
        ]
        if late:
            active.append(DeviceExecution((second, late), None, late, at + 400 * MS, at + 700 * MS))
        for i in range(10):
            a = at + i * 100 * MS
            busy = 0.3 + 0.6 * (late != "" and 4 <= i < 7)
            if pool.timeline.column(PCIE_RX) is not None:
                pool.timeline.append(
                    [Sample(PCIE_RX, a + 100 * MS, a + 100 * MS, carried := carried + int(1e6 * busy))]
                )
                continue
            pool.timeline.append([Sample(GRAPHICS, a, a + 100 * MS, round(10_000 * busy))])
            pool.timeline.append([Sample(MEMORY_USED, a, a, 100 if i < 4 or not late else 900)])
        pool.advance(active, at + NS_PER_S)
        for activity in active:
            pool.count(activity.region)
        yield from active


def all_executions(pool: Pool) -> list[str]:
    return [name for name in pool.regions if name != OTHER] + [OTHER]


def test_a_region_that_comes_late_and_is_the_busiest_gets_its_own_equations_and_rate() -> None:
    pool = Pool(Timeline(DEVICE, [PCIE_RX], capacity=10_000), start_ns=T0)
    list(crowd(pool, range(40), ""))
    assert pool.overflowed == 0
    activities = list(crowd(pool, range(40, 80), "late", carried=400 * 300_000))
    late = pool.pooled("late")
    assert late.region == "late"
    # What ran before it had a place of its own is in `other`.
    spent = sum((a.end_ns or 0) - a.start_ns for a in activities if a.region == "late") / NS_PER_S
    assert 0.7 * spent < late.active_s < spent
    rate = late.rates[PCIE_RX]
    assert rate.reason == ""
    assert rate.value == pytest.approx(9e6 * PCIE_RX.quantum, rel=0.02)
    assert len(all_executions(pool)) <= MOST_REGIONS + 1


@pytest.mark.parametrize("step_s", [1, 2])
def test_whoever_leaves_is_in_other_with_everything_it_had(step_s: int) -> None:
    pool = Pool(Timeline(DEVICE, [GRAPHICS, MEMORY_USED], capacity=10_000), start_ns=T0)
    before: dict[str, float] = {}
    activities: list[DeviceExecution] = []
    swapped = False
    # Too short for the search: with 64 regions that takes a while.
    for second in range(0, 16, step_s):
        activities += crowd(pool, range(second, second + step_s), "late" if second >= 6 else "")
        names = all_executions(pool)
        pooled = {name: pool.pooled(name) for name in names}
        spent = sum((a.end_ns or 0) - a.start_ns for a in activities) / NS_PER_S
        assert sum(p.active_s for p in pooled.values()) == pytest.approx(spent)
        assert sum(p.executions for p in pooled.values()) == len(activities)
        shares = {name: known(share) for name in names if (share := pool.counted(name, GRAPHICS)) is not None}
        measured = next(mixture.family.measured[0] for mixture in pool._mixtures if mixture.lead is GRAPHICS)
        assert sum(shares.values()) + known(pool.rest(GRAPHICS)) == pytest.approx(measured)
        gone = [name for name in before if name not in shares and name != OTHER]
        if gone:
            swapped = True
            assert shares[OTHER] >= before.get(OTHER, 0.0) + sum(before[name] for name in gone) - 1e-9
        for name, given in shares.items():
            assert given >= before.get(name, 0.0) - 1e-9
        before = shares
    assert swapped
    memory = pool.pooled(OTHER).memory_max
    assert memory is not None
    assert memory >= 100 << 20


def test_a_million_names_take_a_bounded_amount_of_memory() -> None:
    pool = Pool(Timeline(DEVICE, [GRAPHICS], capacity=100), start_ns=T0)
    each = 10_000
    for second in range(5):
        at = T0 + second * NS_PER_S
        names = [f"n{second}-{i}" for i in range(each)]
        step = NS_PER_S // each
        pool.advance(
            [DeviceExecution(name, None, name, at + i * step, at + (i + 1) * step) for i, name in enumerate(names)],
            at + NS_PER_S,
        )
        for name in names:
            pool.count(name)
        # Executions that did nothing on the device count too.
        for i in range(each):
            pool.count(f"idle{second}-{i}")
    assert len(pool.regions) <= MOST_REGIONS + 1
    assert pool.attribution.columns <= 2 * (MOST_REGIONS + 2)
    assert sum(pool.pooled(name).executions for name in pool.regions) == 10 * each


# ---------------------------------------------------------------------- streams side by side


def test_two_streams_have_rates_alone_that_are_not_those_of_the_device_shared() -> None:
    rng = np.random.default_rng(5)
    timeline = Timeline(DEVICE, [GRAPHICS], capacity=2000)
    pool = Pool(timeline, start_ns=T0)
    until = 80 * NS_PER_S
    grid = MS
    busy = np.zeros((2, until // grid))
    activities = []
    for stream, name in enumerate(("a", "b")):
        at = 0
        while at < until // grid:
            length, pause = int(rng.integers(5, 30)), int(rng.integers(5, 60))
            busy[stream, at : at + length] = 1
            end = min(at + length, until // grid)
            activities.append(DeviceExecution((name, at), None, name, T0 + at * grid, T0 + end * grid))
            at += length + pause
    # Alone they keep the device busy for 0.5 and 0.3; together it is full at 0.6.
    use = np.where(busy.all(axis=0), 0.6, busy[0] * 0.5 + busy[1] * 0.3)
    for i in range(800):
        value = round(10_000 * float(use[i * 100 : (i + 1) * 100].mean()))
        timeline.append([Sample(GRAPHICS, T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, value)])
        if i % 50 == 49:
            end = T0 + (i + 1) * 100 * MS
            active = [a for a in activities if a.start_ns < end and (a.end_ns or 0) > pool.frontier_ns]
            pool.advance(active, end, final=i == 799)
    for name, alone in (("a", 0.5), ("b", 0.3)):
        pooled = pool.pooled(name)
        assert pooled.alone[GRAPHICS].reason == ""
        assert pooled.alone[GRAPHICS].value == pytest.approx(alone, rel=0.05)
        mine = busy[0 if name == "a" else 1]
        both = busy.all(axis=0).sum()
        # Which of the two keeps the device busy while both run, nothing tells; how busy it is then, every window does.
        while_active = (alone * (mine.sum() - both) + 0.6 * both / 2) / (mine.sum() - both / 2)
        assert pooled.rates[GRAPHICS].reason == ""
        assert pooled.rates[GRAPHICS].value == pytest.approx(while_active, rel=0.02)
        assert pooled.rates[GRAPHICS].half_width < 0.1 * while_active
        assert pooled.active_s == pytest.approx((mine.sum() - both / 2) / 1000)
    assert sum(known(pool.pooled(name).busy_s) for name in ("a", "b")) == pytest.approx(use.sum() / 1000, rel=0.02)


def test_without_company_nothing_is_said_to_be_alone() -> None:
    assert dict(World(seconds=10).run(10).pooled("r0").alone) == {}


# ---------------------------------------------------------------------- memory, sources


def test_the_memory_of_a_region_that_leaves_goes_to_the_rest_and_not_to_who_comes() -> None:
    pool = Pool(Timeline(DEVICE, [MEMORY_USED], capacity=100), start_ns=T0)
    pool.timeline.append([Sample(MEMORY_USED, T0, T0, 5000)])
    first = [DeviceExecution(i, None, f"n{i}", T0 + i * MS, T0 + (i + 1 + (i > 0)) * MS) for i in range(MOST_REGIONS)]
    pool.advance(first, T0 + NS_PER_S)
    for second in range(1, 4):
        at = T0 + second * NS_PER_S
        pool.timeline.append([Sample(MEMORY_USED, at, at, 7)])
        pool.advance([DeviceExecution(f"x{second}", None, "late", at, at + 900 * MS)], at + NS_PER_S)
    late, other = pool.pooled("late"), pool.pooled(OTHER)
    assert late.region == "late"
    assert late.memory_max == 7 << 20
    assert other.memory_max == 5000 << 20


def test_a_better_source_that_never_reads_anything_silences_nobody() -> None:
    timeline = Timeline(DEVICE, [GRAPHICS, UTILIZATION], capacity=1000)
    pool = Pool(timeline, start_ns=T0)
    for i in range(50):
        timeline.append([Sample(UTILIZATION, T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS, 40)])
    pool.advance([DeviceExecution(1, None, "r", T0, None)], T0 + 5 * NS_PER_S, final=True)
    assert pool.busy_source() is UTILIZATION
    assert known(pool.pooled("r").busy_s) + known(pool.rest(UTILIZATION)) == pytest.approx(2.0, rel=0.15)


def test_a_pool_of_a_long_time_takes_as_long_for_the_last_minute_as_for_the_first() -> None:
    pool = Pool(Timeline(DEVICE, [GRAPHICS], capacity=1000), start_ns=T0)
    sizes = []
    for second in range(0, 1200, 10):
        at = T0 + second * NS_PER_S
        pool.advance(
            [
                DeviceExecution((second, i), None, f"r{i % 3}", at + i * 50 * MS, at + (i + 1) * 50 * MS)
                for i in range(200)
            ],
            at + 10 * NS_PER_S,
        )
        sizes.append(len(pool.attribution._recent.starts) + pool.attribution.fresh)
    assert max(sizes) <= 20_100


def test_active_time_that_no_window_needs_any_more_takes_no_memory() -> None:
    pool = Pool(Timeline(DEVICE, [PCIE_RX], capacity=1000), start_ns=T0)
    windows = [(T0 + i * 100 * MS, T0 + (i + 1) * 100 * MS) for i in range(51)]
    pool.timeline.append(
        [Sample(PCIE_RX, T0, T0, 0), *(Sample(PCIE_RX, end, end, i) for i, (_, end) in enumerate(windows))]
    )
    runs = [DeviceExecution(i, None, "r", T0 + i * 20 * MS, T0 + i * 20 * MS + 10 * MS) for i in range(250)]
    pool.advance(runs, T0 + 5 * NS_PER_S)
    assert pool._mixtures[0].n > 40
    assert len(pool.attribution._recent.starts) <= 5


# ---------------------------------------------------------------------- long executions by the counter alone


def metered(lengths_s: list[float], *, lost: range = range(0), running: bool = False) -> Pool:
    """Executions at 400 W with pauses of 1.3 s at 90 W between them; a counter that is read every 100 ms."""
    timeline = Timeline(DEVICE, [ENERGY], capacity=5000)
    pool = Pool(timeline, start_ns=T0)
    at, spans = 0.0, []
    for length in lengths_s:
        spans.append((at + 1.3, at + 1.3 + length))
        at = spans[-1][1]
    count = int((at + 1.3) * 10)
    edges = np.array([0.0, *(edge for span in spans for edge in span), at + 10])
    drawn = np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.where(np.arange(len(edges) - 1) % 2, 400.0, 90.0))))
    activities = [
        DeviceExecution(i, None, "work", T0 + round(a * NS_PER_S), T0 + round(b * NS_PER_S))
        for i, (a, b) in enumerate(spans)
    ]
    if running:
        activities[-1] = activities[-1]._replace(end_ns=None)
    for i in range(count):
        t = T0 + i * 100 * MS
        if i not in lost:
            timeline.append([Sample(ENERGY, t, t, round(1000 * float(np.interp(i / 10, edges, drawn))))])
        if i % 10 == 9:
            pool.advance([a for a in activities if a.start_ns < t and (a.end_ns or t) > pool.frontier_ns], t)
    pool.advance([a for a in activities if (a.end_ns or t) > pool.frontier_ns], t, final=True)
    return pool


def test_executions_of_two_seconds_are_metered_by_the_growth_of_the_counter() -> None:
    found = metered([2.4, 3.1, 1.9, 5.0]).pooled("work").metered
    assert found is not None
    assert found.executions == 3
    assert found.total_s == pytest.approx(10.5)
    assert abs(found.power_w - 400) <= found.power_half_width_w < 40
    assert found.power_w == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize(
    "pool", [metered([1.9, 1.0]), metered([3.0], running=True), metered([3.0], lost=range(20, 60))],
    ids=["short", "running", "unread"],
)  # fmt: skip
def test_what_is_short_still_runs_or_was_not_read_is_not_metered(pool: Pool) -> None:
    assert pool.pooled("work").metered is None


def test_what_was_metered_of_a_region_that_leaves_goes_to_the_rest() -> None:
    pool = metered([3.0])
    pool._replace_region("work", "busier", [(pool.attribution.column("work"), pool.attribution.column(OTHER))])
    assert pool.pooled(OTHER).metered == metered([3.0]).pooled("work").metered


def test_a_region_leaves_also_while_the_only_source_of_power_in_use_has_no_rate() -> None:
    """The counter has come in last, so that the power of the first seconds is not in use any more."""
    timeline = Timeline(DEVICE, [ENERGY, POWER, POWER_AVERAGE], capacity=1_000)
    pool = Pool(timeline, start_ns=T0, prior=DevicePrior({POWER: SensorPrior(Sensor(), MS, MS)}))
    for i in range(1, 61):
        end = T0 + i * 100 * MS
        timeline.append([Sample(POWER_AVERAGE, end - 100 * MS, end, 200_000)])
        timeline.append([Sample(ENERGY, end, end, 20_000 * i)] if i > 40 else [])
        work = DeviceExecution(i, None, f"r{i % 2}", end - 100 * MS, end - (20 + 5 * (i % 7)) * MS)
        pool.count(work.region)
        pool.advance([work], end)
    assert ENERGY in pool.joined
    assert POWER_AVERAGE not in pool.joined
    assert pool.pooled("r0").rates[ENERGY].reason
    pool._replace_region("r0", "busier", [(pool.attribution.column("r0"), pool.attribution.column(OTHER))])
    assert (known(pool.counted("r1", ENERGY)) + known(pool.rest(ENERGY))) > 0


def test_the_totals_are_shared_out_once_before_the_columns_of_a_region_that_leaves_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = World(1).run(10)
    total = sum(known(pool.counted(name, ENERGY)) for name in NAMES) + known(pool.rest(ENERGY))
    solved: list[Mixture] = []
    solve = Mixture._solved

    def solving(mixture: Mixture, *arguments: Any, **options: Any) -> Fit:
        solved.append(mixture)
        return solve(mixture, *arguments, **options)

    monkeypatch.setattr(Mixture, "_solved", solving)
    other = pool.attribution.column(OTHER)
    pool._replace_region(NAMES[0], "busier", [(pool.attribution.column(name), other) for name in NAMES[:2]])
    assert len(solved) == len({*map(id, solved)})
    left = sum(known(pool.counted(name, ENERGY)) for name in (*NAMES[2:], OTHER)) + known(pool.rest(ENERGY))
    assert left == pytest.approx(total)


# ---------------------------------------------------------------------- what was known before


def test_a_device_that_is_not_trusted_gives_no_pooled_rate() -> None:
    world = World(1)
    trusted, doubted = (
        world.run(10),
        world.run(10, prior=DevicePrior(untrusted="pooled numbers of this GPU are not trusted")),
    )
    assert trusted.pooled("r0").rates[GRAPHICS].reason == ""
    rate = doubted.pooled("r0").rates[GRAPHICS]
    assert (rate.reason, rate.half_width) == ("pooled numbers of this GPU are not trusted", np.inf)
    counted = doubted.counted("r0", GRAPHICS)
    assert counted is not None
    assert counted.certain == 0.0
    assert counted.uncertain > 0.0


def test_readings_that_contradict_a_calibration_are_told_of() -> None:
    world = World(1)
    wrong = SensorPrior(Sensor(lag_ns=700 * MS), MS, MS)
    right = SensorPrior(Sensor(), MS, MS)
    assert world.run(10, prior=DevicePrior({GRAPHICS: wrong})).unexpected == [GRAPHICS]
    assert world.run(10, prior=DevicePrior({GRAPHICS: right})).unexpected == []
