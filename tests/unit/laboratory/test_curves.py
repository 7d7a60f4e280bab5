"""The laboratory's own physics, held against closed forms."""

import numpy as np
import pytest
from laboratory.curves import World, make
from laboratory.programs import LEAD_S, PER_MS, PER_S, Outer, Physics, Program, Region, Stamps, Unmarked
from laboratory.recordings import Case

STEADY = Program((Region("a", 10.0, 300.0, spread=0.0), Region("b", 5.0, 150.0, spread=0.0)), fixed=True)


def world(program: Program = STEADY, seconds: float = 5.0) -> World:
    return make(program, seconds, np.random.default_rng(1))


def mean(found: World, region: str, quantity: str) -> float:
    weight = found.shares.inclusive[found.program.names.index(region)]
    return float((weight * getattr(found, quantity)).sum() / weight.sum())


def test_steady_regions_draw_what_they_say_and_the_rest_is_idle() -> None:
    found = world()
    assert mean(found, "a", "power") == 300.0
    assert mean(found, "b", "power") == 150.0
    nobody = found.shares.own.sum(axis=0) == 0
    assert set(found.power[nobody].tolist()) == {90.0}
    assert not found.busy[nobody].any()


@pytest.mark.parametrize(
    ("change", "power", "busy"),
    [
        ({"profile": "middle"}, 90 + 210 / 3, 1 / 3),
        ({"profile": "rise"}, 90 + 210 * 0.6, 1.0),
        ({"duty": 0.4}, 90 + 210 * 0.4, 0.4),
        ({"duty": 0.0}, 90.0, 0.0),
    ],
)
def test_work_within_an_execution(change: dict[str, str | float], power: float, busy: float) -> None:
    found = world(Program((Region("a", 12.0, 300.0, spread=0.0, **change),), fixed=True))  # type: ignore[arg-type]
    assert mean(found, "a", "power") == pytest.approx(power, rel=1e-3)
    assert mean(found, "a", "busy") == pytest.approx(busy, abs=1e-3)


def test_longer_executions_draw_more() -> None:
    found = world(Program((Region("a", 10.0, 290.0, spread=0.5, by_length=1.0),)))
    lengths = found.executions.ends - found.executions.starts
    assert found.executions.power_w == pytest.approx(90 + 200 * lengths / PER_MS / 10, rel=0.02)


def test_concurrent_work_adds_up_below_the_limit_and_its_time_is_shared() -> None:
    regions = Region("a", 50.0, 300.0, spread=0.0), Region("b", 50.0, 500.0, spread=0.0, thread=1)
    found = world(Program(regions, fixed=True, gap_ms=(1.0, 1.0), physics=Physics(limit_w=600.0)))
    both = found.shares.own.min(axis=0) > 0
    assert both.any()
    assert np.all(found.shares.own[:, both] == 0.5)
    assert set(found.power[both].tolist()) == {600.0}


def test_an_outer_region_has_what_is_inside_it_and_its_own_share_only_once() -> None:
    found = world(Program(STEADY.regions, fixed=True, outer=Outer(power_w=200.0)))
    own, inclusive = found.shares.own, found.shares.inclusive
    assert own.sum(axis=0).max() == 1.0
    inside = own[:2].sum(axis=0) > 0
    assert np.all(inclusive[2][inside] == 1.0)
    assert set(found.power[own[2] > 0].tolist()) == {200.0}


def test_unmarked_work_is_drawn_and_nobodys() -> None:
    found = world(Program(STEADY.regions, fixed=True, unmarked=Unmarked(share=0.3)))
    alone = found.unmarked.sum(axis=0) > 0
    assert 0.1 < 1 - found.executions.marked.mean() < 0.5
    assert not found.shares.own[:, alone].any()
    assert np.all(found.power[alone] > 90.0)


def test_bursts_and_work_in_gaps_have_parts_of_their_own() -> None:
    unmarked = Unmarked(bursts_per_min=60, burst_s=0.1, gap_share=1.0, gap_w=40.0)
    found = world(Program(STEADY.regions, fixed=True, gap_ms=(2.0, 4.0), unmarked=unmarked))
    assert len(found.unmarked) == 2
    rest = found.power - found.unmarked.sum(axis=0)
    assert mean(found, "a", "power") > 300.0
    assert sorted(set(np.rint(rest).tolist())) == [90.0, 150.0, 300.0]


def test_idle_power_decays_exponentially_after_work() -> None:
    physics = Physics(awake_w=100.0, awake_s=0.5)
    found = world(Program(STEADY.regions, fixed=True, gap_ms=(0.0, 0.0), physics=physics), seconds=4.0)
    end = LEAD_S * PER_S + int(found.executions.ends.max())
    early, late = found.power[end + 500] - 90, found.power[end + 500 + PER_S // 5] - 90
    assert late / early == pytest.approx(np.exp(-0.4), rel=0.03)


def test_a_controller_keeps_the_power_at_the_cap() -> None:
    found = world(Program(STEADY.regions, fixed=True, gap_ms=(0.0, 0.0), physics=Physics(cap_w=200.0)))
    working = found.power[(LEAD_S + 2) * PER_S : (LEAD_S + 4) * PER_S]
    assert working.mean() == pytest.approx(200.0, rel=0.02)


def test_leakage_warms_up_to_its_share() -> None:
    physics = Physics(warming=0.2, warming_s=1.0, limit_w=300.0)
    found = world(Program((Region("a", 10.0, 300.0),), gap_ms=(0.0, 0.0), physics=physics), seconds=8.0)
    assert found.power[LEAD_S * PER_S + 7 * PER_S] == pytest.approx(300 * 1.2, rel=0.02)


def test_lower_clocks_make_work_longer_and_weaker() -> None:
    found = world(Program((Region("a", 10.0, 300.0, spread=0.0),), physics=Physics(clocks=((2.5, 0.5),))))
    lengths = (found.executions.ends - found.executions.starts) / PER_MS
    early = found.executions.ends < 2.5 * PER_S
    assert lengths[early].mean() == pytest.approx(10.0, abs=0.1)
    assert lengths[~early][1:].mean() == pytest.approx(20.0, abs=0.1)
    late = found.shares.own[0, -2 * PER_S :] > 0
    assert found.power[-2 * PER_S :][late][-PER_S // 2] == pytest.approx(90 + 210 * 0.5**2.4)


def test_a_locked_loop_takes_exactly_its_time() -> None:
    found = world(Program(STEADY.regions, fixed=True, loop_ms=50.0, gap_ms=(0.2, 0.2)))
    starts = found.executions.starts[found.executions.regions == 0]
    assert set(np.diff(starts).tolist()) == {50 * PER_MS}


def test_the_host_stamps_late_in_order_and_sometimes_much_later() -> None:
    program = Program(STEADY.regions, fixed=True, gap_ms=(3.0, 3.0), stamps=Stamps((0.2, 1.0), tail=0.1))
    run = Case(program, (), 20.0, 3).run()
    late_ms = (run.host[0] - run.world.executions.starts * 100_000) / 1e6
    assert late_ms.min() >= 0.2
    assert 0.05 < (late_ms > 1.0).mean() < 0.2
    assert np.all(run.host[1] >= run.host[0])
    assert np.all(run.host[0][1:] >= run.host[1][:-1])


def test_device_marks_err_by_microseconds() -> None:
    run = Case(Program(STEADY.regions, stamps=Stamps((0.0, 5.0), marks_us=10.0)), (), 20.0, 3).run()
    assert run.marks is not None
    error_us = (run.marks[0] - run.world.executions.starts * 100_000) / 1000
    assert error_us.std() == pytest.approx(10.0, rel=0.1)
