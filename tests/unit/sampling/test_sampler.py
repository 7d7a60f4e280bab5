from collections import Counter

import pytest
from support.drivers import SLICE, A, B, World

from gpu_profile.catalogue import Tier
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.catalogue.signals import ENERGY, MEMORY_USED, POWER, SM
from gpu_profile.history.timeline import Timeline
from gpu_profile.sampling.periods import DEVICES_S, DRAIN_S, GPM_S, SLOW_S
from gpu_profile.sampling.rounds import MOST_EVENTS, Rounds
from gpu_profile.sampling.tracked import TrackedDevice
from gpu_profile.units import nanoseconds


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_an_interval_that_is_not_positive_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        World(interval_s=interval_s)


def test_a_node_without_gpm_is_not_asked_for_it_nor_woken_for_it() -> None:
    world = World(A, interval_s=0.1)
    world.sampler.open()
    plain = frozenset(signal for signal in world.driver.available if signal.tier is not Tier.GPM)
    world.driver.available = plain
    world.sampler.states[A.uuid].renew(world.driver)
    steps = 0
    while world.clock.now_ns() < world.driver.start_ns + nanoseconds(10):
        world.clock.advance(world.sampler.step())
        steps += 1
    assert world.driver.times("gpm", A.uuid) == []
    # What falls due between two rounds of the counters comes along with the first of them.
    assert steps == 100
    world.driver.available = plain | {SM}
    world.sampler.states[A.uuid].renew(world.driver)
    world.pass_(0.2)
    assert len(world.driver.times("gpm", A.uuid)) >= 2


def test_nothing_is_opened_before_the_first_step() -> None:
    world = World()
    assert world.drivers == []
    assert world.sampler.problem == "not started"
    world.sampler.step()
    assert len(world.drivers) == 1
    assert world.sampler.problem == ""


@pytest.mark.parametrize("interval_s", [0.02, 0.1, 0.3])
def test_each_tier_is_read_at_its_period_and_keeps_its_phase(interval_s: float) -> None:
    world = World(A, interval_s=interval_s)
    world.pass_(12)
    periods = {Tier.FAST: interval_s, "gpm": max(interval_s, GPM_S), "drain": DRAIN_S, Tier.SLOW: SLOW_S}
    rounds = set(world.driver.times(Tier.FAST, A.uuid))
    for tier, period_s in periods.items():
        period, slack = nanoseconds(period_s), nanoseconds(min(interval_s, period_s) / 2)
        due, found = range(0, nanoseconds(12) + 1, period), world.driver.times(tier, A.uuid)
        assert len(found) - len(due) in (0, 1), tier
        for at, wanted in zip(found, due, strict=False):
            # Never late, and early only to come along with the counters.
            assert at == wanted or (tier in ("drain", Tier.SLOW) and at in rounds and 0 < wanted - at <= slack), tier
    assert set(world.driver.times("events")) == set(world.driver.times(Tier.SLOW, A.uuid))
    # The driver is asked once when it is opened and once in the round that follows.
    opened, *listed = world.driver.times("devices")
    assert opened == 0
    assert [round(at / nanoseconds(DEVICES_S)) * nanoseconds(DEVICES_S) for at in listed] == [
        *range(0, nanoseconds(12) + 1, nanoseconds(DEVICES_S))
    ]


def test_a_long_interval_slows_counters_down_and_leaves_what_the_driver_buffers_alone() -> None:
    world = World(A, interval_s=5.0)
    world.pass_(10)
    assert world.driver.times(Tier.FAST, A.uuid) == world.driver.times(Tier.SLOW, A.uuid)
    assert len(world.driver.times(Tier.FAST, A.uuid)) == 3
    assert len(world.driver.times("drain", A.uuid)) == 41


def test_step_says_when_it_wants_to_be_called_again() -> None:
    world = World(A, interval_s=0.3)
    assert world.sampler.step() == DRAIN_S
    world.clock.advance(DRAIN_S)
    assert world.sampler.step() == pytest.approx(0.3 - DRAIN_S)


def test_a_round_that_was_missed_is_not_made_up_for_and_the_phase_stays(world: World) -> None:
    world.sampler.step()
    world.clock.advance(1.234)
    assert world.sampler.step() == pytest.approx(12 * GPM_S - 1.234)
    world.pass_(0.2)
    assert world.driver.times(Tier.FAST, A.uuid) == [0, *map(nanoseconds, (1.234, 1.3, 1.4))]


def test_a_driver_that_is_slower_than_the_interval_is_asked_at_most_once_an_interval(world: World) -> None:
    world.sampler.step()
    world.driver.takes_s = 0.13
    for _ in range(20):
        world.clock.advance(world.sampler.step())
    turns = [at // nanoseconds(0.1) for at in world.driver.times(Tier.FAST, A.uuid)]
    assert len(turns) > 5
    assert len(set(turns)) == len(turns)


def test_force_reads_everything_now_and_moves_no_phase(world: World) -> None:
    world.pass_(0.05)
    before = Counter(called for called, _, _ in world.driver.calls)
    world.sampler.step(force=True)
    after = Counter(called for called, _, _ in world.driver.calls) - before
    assert after == Counter([*Tier, "drain", "events", "devices"])
    world.pass_(0.1)
    assert world.driver.times(Tier.FAST, A.uuid) == [0, nanoseconds(0.05), nanoseconds(0.1)]


def test_a_clock_that_is_set_back_does_not_stop_the_reading(world: World) -> None:
    world.pass_(1)
    world.clock._now_ns -= nanoseconds(3600)
    calls = len(world.driver.calls)
    assert world.sampler.step() <= 0.1
    assert len(world.driver.calls) > calls


def test_a_clock_that_is_set_back_does_not_put_off_the_next_try(world: World) -> None:
    world.refused = "no driver yet"
    world.sampler.step()
    world.clock._now_ns -= nanoseconds(3600)
    world.refused = ""
    world.sampler.step()
    assert world.up() == {A.uuid: True}


def test_samples_land_in_the_timeline_of_their_device() -> None:
    world = World(retention_s=60)
    world.pass_(2)
    assert [timeline.device for timeline in world.sampler.timelines] == [A, B]
    timeline = world.sampler.timeline(B.uuid)
    assert timeline is not None
    energy, memory = timeline.column(ENERGY), timeline.column(MEMORY_USED)
    assert energy is not None
    assert energy.last == Sample(ENERGY, world.clock.now_ns(), world.clock.now_ns(), 2000)
    assert memory is not None
    assert len(memory) == 3
    assert world.sampler.timeline("GPU-C") is None


def test_retention_bounds_the_history() -> None:
    world = World(A, interval_s=0.01, retention_s=1)
    world.pass_(4)
    energy = world.sampler.timelines[0].column(ENERGY)
    assert energy is not None
    assert 100 <= len(energy) < 200


def test_sinks_see_every_sample_of_every_device_once() -> None:
    seen: list[tuple[Device, Sample]] = []
    world = World(sinks=[lambda device, samples: seen.extend((device, sample) for sample in samples)])
    world.pass_(3)
    for device in (A, B):
        mine = Counter(sample.signal for found, sample in seen if found is device)
        assert mine == {
            ENERGY: len(world.driver.times(Tier.FAST, device.uuid)),
            MEMORY_USED: len(world.driver.times(Tier.SLOW, device.uuid)),
            POWER: len(world.driver.times("drain", device.uuid)),
        }
    assert len(set(seen)) == len(seen)


def test_wanted_narrows_the_devices_that_are_read() -> None:
    world = World(A, B, SLICE, choose=lambda *_: [B.uuid, "GPU-that-is-not-there"])
    world.pass_(6)
    assert list(world.sampler.states) == [B.uuid]
    assert {uuid for _, uuid, _ in world.driver.calls} == {"", B.uuid}


def test_wanting_no_device_reads_none() -> None:
    world = World(choose=lambda *_: [])
    world.pass_(1)
    assert world.sampler.states == {}


def test_only_the_newest_events_are_kept(world: World) -> None:
    world.sampler.step()
    world.driver.waiting = [Event(A.uuid, at, "xid", 79) for at in range(MOST_EVENTS + 5)]
    world.pass_(1)
    assert len(world.sampler.events) == MOST_EVENTS
    assert [event.t_ns for event in world.sampler.events][0 :: MOST_EVENTS - 1] == [5, MOST_EVENTS + 4]


def test_the_sampler_measures_itself(world: World) -> None:
    world.sampler.step()
    stats = world.sampler.stats
    assert (stats.rounds, stats.samples, stats.late_ns) == (1, 3, 0)
    assert (stats.turned_ns, stats.busy_ns.total()) == (world.clock.now_ns(), 0)
    world.driver.takes_s = 0.01
    world.clock.advance(0.125)
    world.sampler.step()
    assert (stats.rounds, stats.samples, stats.late_ns) == (2, 4, nanoseconds(0.025))
    assert stats.turned_ns == world.clock.now_ns()
    assert stats.busy_ns == {"fast": nanoseconds(0.01), "gpm": nanoseconds(0.01), "slow": 0, "rare": 0, "drain": 0}
    assert stats.errors == {}
    assert world.sampler.states[A.uuid].samples == 4


def test_an_event_reaches_every_event_sink_once() -> None:
    world = World()
    seen: list[Event] = []
    world.sampler.event_sinks.append(seen.append)
    world.sampler.step()
    world.drivers[0].waiting.append(Event(A.uuid, 5, "xid", 79))
    for _ in range(3):
        world.clock.advance(SLOW_S)
        world.sampler.step()
    assert seen == [Event(A.uuid, 5, "xid", 79)]


@pytest.mark.parametrize("gpm", [True, False])
def test_where_there_is_gpm_it_and_what_the_driver_buffers_may_be_read_more_seldom(gpm: bool) -> None:
    world = World(A)
    rounds = Rounds(
        world.open,
        lambda device, capabilities, _: TrackedDevice(device, Timeline(device), capabilities),
        clock=world.clock,
        gpm_s=0.5,
        drain_s=1.0,
    )
    rounds.open()
    world.driver.available -= set() if gpm else {SM}
    rounds.states[A.uuid].renew(world.driver)
    while world.clock.now_ns() < world.drivers[0].start_ns + nanoseconds(10):
        world.clock.advance(max(0.001, rounds.step()))
    fast = set(world.driver.times(Tier.FAST, A.uuid))
    assert len(fast) in (100, 101)
    for what, times in {"drain": 10 if gpm else 40, "gpm": 20 if gpm else 0}.items():
        at = world.driver.times(what, A.uuid)
        assert times <= len(at) <= times + 1, what
        # To wake up for them alone would cost as much as to read them.
        assert fast.issuperset(at), what
