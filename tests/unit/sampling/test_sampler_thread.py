import threading
from collections import Counter

import pytest
from support.drivers import A, Sampling, World, wait_for

from gpu_profile.catalogue import Tier
from gpu_profile.driver import Driver
from gpu_profile.sampling.sampler import Sampler


def test_flush_without_a_thread_reads_everything_here(world: World) -> None:
    assert world.sampler.flush()
    assert world.sampler.stats.rounds == 1
    assert world.sampler.flush()
    assert world.sampler.stats.rounds == 2


def test_flush_without_a_driver_says_so_at_once(world: World) -> None:
    world.refused = "no driver"
    assert not world.sampler.flush()


def test_flush_waits_for_a_round_that_began_after_it_was_called(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open)
    sampler.start()
    wait_for(lambda: sampler.stats.rounds)
    calls = len(world.driver.calls)
    assert sampler.flush(10)
    assert Counter(called for called, _, _ in world.driver.calls[calls:])[Tier.FAST] >= 1


def test_flush_waits_for_a_driver_that_is_still_being_opened(sampling: Sampling) -> None:
    world, opening, go_on = World(A), threading.Event(), threading.Event()

    def open_slowly() -> Driver:
        opening.set()
        assert go_on.wait(10)
        return world.open()

    sampler = sampling(open_slowly)
    sampler.start()
    assert opening.wait(10)
    threading.Timer(0.01, go_on.set).start()
    assert sampler.flush(10)
    assert sampler.stats.samples


def test_flush_does_not_wait_for_a_driver_that_there_is_none_of(sampling: Sampling, world: World) -> None:
    world.refused = "no driver"
    sampler = sampling(world.open, 0.1)
    sampler.start()
    assert not sampler.flush(600)


def test_flush_gives_up_on_a_driver_that_hangs(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open, 0.1)
    sampler.open()
    world.driver.free.clear()
    sampler.start()
    try:
        assert world.driver.stuck.wait(10)
        assert not sampler.flush(0.01)
    finally:
        world.driver.free.set()


def test_flush_after_stop_opens_nothing(world: World) -> None:
    world.sampler.step()
    world.sampler.stop()
    assert not world.sampler.flush()
    assert len(world.drivers) == 1


def test_the_thread_samples_until_it_is_stopped_and_can_be_started_again(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open, 0.001)
    for times in (1, 2):
        rounds = sampler.stats.rounds
        sampler.start()
        wait_for(lambda: sampler.stats.rounds > rounds + 3)  # noqa: B023 - called at once
        assert sampler.running
        sampler.stop()
        assert not sampler.running
        assert sampler.driver is None
        assert [driver.closed for driver in world.drivers] == [1] * times


def test_stop_without_start_closes_the_driver(world: World) -> None:
    world.sampler.step()
    world.sampler.stop()
    assert world.driver.closed == 1
    world.sampler.stop()
    assert world.driver.closed == 1


def started(sampler: Sampler) -> threading.Thread:
    """The thread of a sampler that starts now. Others may run: of a session that an earlier test began."""
    before = set(threading.enumerate())
    sampler.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "gpu-profile-sampler" and each not in before]
    return thread


def test_stop_leaves_a_thread_that_hangs_in_the_driver_behind(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open, 0.001)
    sampler.open()
    world.driver.free.clear()
    thread = started(sampler)
    assert world.driver.stuck.wait(10)
    sampler.stop(timeout_s=0.01)
    assert thread.is_alive()
    assert thread.daemon
    assert world.driver.closed == 0, "nobody may close a driver under a call"
    calls = len(world.driver.calls)

    # Its successor reads; it does not come back to life beside it.
    world.driver.free.set()
    thread.join(10)
    assert not thread.is_alive()
    sampler.start()
    wait_for(lambda: len(world.driver.calls) > calls + 20)


def test_a_thread_that_was_left_behind_ends_even_if_another_was_started(sampling: Sampling, world: World) -> None:
    sampler = sampling(world.open, 0.001)
    sampler.open()
    world.driver.free.clear()
    old = started(sampler)
    assert world.driver.stuck.wait(10)
    sampler.stop(timeout_s=0.01)
    sampler.start()
    world.driver.free.set()
    old.join(10)
    assert not old.is_alive()
    assert sampler.running


def test_a_defect_in_a_driver_is_counted_and_does_not_end_the_thread(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, world: World
) -> None:
    monkeypatch.setattr("gpu_profile.sampling.rounds.RETRY_S", 0.001)
    sampler = sampling(world.open, 0.001)
    sampler.open()
    world.driver.broken.add(Tier.FAST)
    sampler.start()
    wait_for(lambda: sampler.stats.errors["internal"] >= 2)
    world.driver.broken.clear()
    rounds = sampler.stats.rounds
    wait_for(lambda: sampler.stats.rounds > rounds + 3)
    assert "gpu-profile: the sampler failed; it goes on" in caplog.messages
    assert "fast: a defect" in caplog.text
