"""Who asks a sampler for more than it does by itself."""

from collections import Counter

import pytest
from support.concurrency import in_threads
from support.drivers import A, B, Sampling, World, wait_for

from gpu_profile.catalogue import Tier
from gpu_profile.sampling.periods import ASKED_SLOW_S, DRAIN_S
from gpu_profile.units import nanoseconds


def times(world: World, what: str, since_s: float = 0.0) -> list[float]:
    return [round(at / 1e9, 6) for at in world.driver.times(what, A.uuid) if at >= nanoseconds(since_s)]


def test_shortest_interval_that_anyone_asks_for_is_kept_while_it_is_asked_for() -> None:
    world = World(A, interval_s=0.1)
    sampler = world.sampler
    sampler.ask(0.5)
    assert sampler.interval_s == 0.1
    sampler.ask(0.02)
    sampler.ask(0.05)
    sampler.ask(0.02)
    assert sampler.interval_s == 0.02
    sampler.release(0.02)
    assert sampler.interval_s == 0.02
    sampler.release(0.02)
    assert sampler.interval_s == 0.05
    sampler.release(0.05)
    sampler.release(0.5)
    assert sampler.interval_s == 0.1


def test_shorter_interval_keeps_the_phase_of_the_grid_and_so_does_the_way_back() -> None:
    world = World(A, interval_s=0.2)
    world.pass_(0.5)
    world.sampler.ask(0.05)
    world.pass_(0.25)
    assert times(world, Tier.FAST) == [0, 0.2, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75]
    world.sampler.release(0.05)
    world.pass_(0.7)
    assert times(world, Tier.FAST, 0.76) == [0.8, 1.0, 1.2, 1.4]
    drained = times(world, "drain")
    assert len(drained) == 7
    assert all(-1e-9 <= i * DRAIN_S - at <= 0.1 + 1e-9 for i, at in enumerate(drained))


def test_what_changes_slowly_is_read_more_often_while_anyone_asks() -> None:
    world = World(A, interval_s=0.1)
    world.pass_(2.0)
    assert times(world, Tier.SLOW) == [0, 1, 2]
    world.sampler.ask(0.1)
    world.pass_(1.0)
    assert times(world, Tier.SLOW, 2.1) == pytest.approx([2.2, 2.4, 2.6, 2.8, 3.0])
    world.sampler.release(0.1)
    world.sampler.ask(0.5)
    world.pass_(1.0)
    assert ASKED_SLOW_S < 0.5
    assert times(world, Tier.SLOW, 3.1)[0] == pytest.approx(3.2)


def test_history_of_a_device_is_as_long_as_promised_at_the_interval_that_is_asked_for() -> None:
    world = World(A, interval_s=1.0, retention_s=100)
    world.sampler.ask(0.01)
    world.sampler.step()
    assert world.sampler.timelines[0].capacity == 10_000


def test_all_devices_are_listed_whether_read_or_not() -> None:
    world = World(A, B, choose=lambda *_: [B.uuid])
    assert list(world.sampler.listed) == []
    world.sampler.step()
    assert list(world.sampler.listed) == [A, B]
    assert list(world.sampler.states) == [B.uuid]


def test_waking_without_a_thread_reads_everything_here_and_nothing_once_it_is_closed(world: World) -> None:
    target = world.sampler.next_round()
    assert target == 1
    world.sampler.wake()
    assert world.sampler.stats.rounds == target
    world.sampler.stop()
    assert world.sampler.stopped
    world.sampler.wake()
    assert world.sampler.stats.rounds == 1


def test_waking_the_thread_reads_everything_or_quickly_what_changes_fast(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open)
    sampler.start()
    assert not sampler.stopped
    wait_for(lambda: sampler.stats.rounds)
    for quick in (False, True):
        # What is drained and listed has periods of its own, and may come due at any time.
        before, target = Counter(called for called, _, _ in world.driver.calls), sampler.next_round()
        sampler.wake(quick=quick)
        wait_for(lambda: sampler.stats.rounds >= target)  # noqa: B023 - called at once
        done = Counter(called for called, _, _ in world.driver.calls) - before
        assert done[Tier.FAST] == done["gpm"] == 1
        assert done["drain"] >= 1
        assert done[Tier.SLOW] == (0 if quick else 1)


def test_round_that_is_under_way_is_not_the_next_one(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open)
    sampler.open()
    world.driver.free.clear()
    sampler.start()
    try:
        assert world.driver.stuck.wait(10)
        assert sampler.next_round() == 2
    finally:
        world.driver.free.set()
    wait_for(lambda: sampler.stats.rounds == 1)
    assert sampler.next_round() == 2


def test_defect_in_a_round_leaves_the_next_one_to_be_waited_for(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open)
    sampler.open()
    world.driver.broken.add("events")
    sampler.start()
    wait_for(lambda: sampler.stats.errors["internal"])
    assert sampler.next_round() == sampler.stats.rounds + 1


def test_sink_may_leave_while_samples_are_handed_out() -> None:
    world, seen = World(A, B), Counter[str]()

    def once(device: object, samples: object) -> None:
        seen["once"] += 1
        world.sampler.sinks.remove(once)

    def always(device: object, samples: object) -> None:
        seen["always"] += 1

    world.sampler.sinks += [once, always]
    world.sampler.step()
    assert seen == {"once": 1, "always": 2}


def test_asking_from_many_threads_leaves_nothing_behind() -> None:
    sampler = World(A, interval_s=0.1).sampler

    def ask() -> None:
        for i in range(200):
            sampler.ask(0.01 + i % 3)
            sampler.release(0.01 + i % 3)

    in_threads(*[ask] * 8)
    assert sampler.interval_s == 0.1
