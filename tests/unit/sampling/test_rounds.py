"""The rounds on their own: without timelines, in whoever's loop."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from support.exporter import FakeDriver

from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.catalogue.signals import ENERGY, POWER
from gpu_profile.errors import GpuBackendError
from gpu_profile.sampling.periods import RARE_S
from gpu_profile.sampling.rounds import Rounds
from gpu_profile.sampling.tracked import TrackedDevice
from gpu_profile.testing import FakeClock


@dataclass
class Kept:
    """A keeper of samples that only counts them."""

    samples: list[Sample] = field(default_factory=list)
    signals: set[Signal] = field(default_factory=set)

    def add(self, signals: Iterable[Signal]) -> None:
        self.signals |= set(signals)

    def append(self, samples: Iterable[Sample], now_ns: int) -> int:
        before = len(self.samples)
        self.samples += samples
        return len(self.samples) - before

    def skip(self, ahead_ns: int) -> None:
        pass

    def set_back(self, now_ns: int, latest_ns: int) -> None:
        pass

    def count_dropped(self, totals: Counter[str]) -> None:
        totals["late"] += 1


class World:
    """Rounds over a scripted driver, on a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(self.clock, [Device("GPU-a", index=0), Device("GPU-b", index=1)], {ENERGY: 1})
        self.asked: list[tuple[str, int]] = []
        self.rounds: Rounds[TrackedDevice] = Rounds(lambda: self.driver, self._track, clock=self.clock, devices_s=2.0)

    def _track(self, device: Device, capabilities: object, capacity: int) -> TrackedDevice:
        self.asked.append((device.uuid, capacity))
        return TrackedDevice(device, Kept(), capabilities)  # type: ignore[arg-type]

    def run(self, seconds: float) -> None:
        end = self.clock.now_ns() + int(seconds * 1e9)
        while self.clock.now_ns() < end:
            self.clock.advance(max(self.rounds.step(), 0.001))


@pytest.fixture
def world() -> World:
    return World()


def test_each_device_is_tracked_once_with_room_for_what_is_retained(world: World) -> None:
    world.run(5)
    assert world.asked == [("GPU-a", 6000), ("GPU-b", 6000)]


def test_nothing_is_opened_before_the_first_step(world: World) -> None:
    assert (world.rounds.driver, world.rounds.problem, world.driver.calls) == (None, "not started", 0)


def test_counters_are_read_at_the_interval_whoever_keeps_them(world: World) -> None:
    world.run(3)
    for state in world.rounds.states.values():
        assert isinstance(state.timeline, Kept)
        assert state.samples == len(state.timeline.samples) == pytest.approx(30, abs=2)


def test_a_gpu_that_moved_to_another_index_is_known_by_its_new_one_and_by_no_other_change(world: World) -> None:
    world.run(1)
    before = world.rounds.states["GPU-b"].timeline
    world.driver.list = [Device("GPU-b", index=0)]
    world.run(3)
    state = world.rounds.states["GPU-b"]
    assert (state.device.index, state.timeline is before, state.up) == (0, True, True)


def test_a_gpu_that_was_added_is_met_and_one_that_is_not_listed_any_more_stays_known(world: World) -> None:
    world.run(1)
    world.driver.list = [Device("GPU-b", index=0), Device("GPU-c", index=1)]
    world.run(3)
    assert set(world.rounds.states) == {"GPU-a", "GPU-b", "GPU-c"}


def test_a_slice_that_is_not_listed_any_more_goes(world: World) -> None:
    gpus = list(world.driver.list)
    world.driver.list = [*gpus, Device("MIG-b", parent="GPU-b", kind=DeviceKind.MIG, index=1)]
    world.run(1)
    assert "MIG-b" in world.rounds.states
    world.driver.list = gpus
    world.run(3)
    assert "MIG-b" not in world.rounds.states
    assert world.rounds.stats.dropped == {"late": 1}


def test_what_hardly_ever_changes_is_read_rarely(world: World) -> None:
    world.run(3 * RARE_S)
    spent = world.rounds.stats.busy_ns
    assert "rare" in spent
    assert world.rounds._due["rare"] - world.clock.now_ns() <= RARE_S * 1e9


def test_a_driver_that_opens_but_cannot_be_listed_is_closed_and_tried_again(world: World) -> None:
    world.driver.gone = "the GPUs could not be counted"
    with pytest.raises(GpuBackendError):
        world.rounds.open()
    world.run(2)
    assert world.rounds.problem == "the GPUs could not be counted"
    world.driver.gone = ""
    world.run(2)
    assert (world.rounds.problem, len(world.rounds.states)) == ("", 2)


def test_one_device_s_loss_is_told_once_and_the_others_are_read_on(world: World) -> None:
    told: list[Event] = []
    world.rounds.event_sinks.append(told.append)
    world.run(1)
    world.driver.lost.add("GPU-a")
    before = world.rounds.states["GPU-b"].samples
    world.run(3)
    assert [(event.device, event.kind) for event in told] == [("GPU-a", "lost")]
    assert world.rounds.states["GPU-b"].samples >= before + 28
    world.driver.lost.clear()
    world.driver.values[POWER] = 7
    world.run(2)
    state = world.rounds.states["GPU-a"]
    assert [event.kind for event in told] == ["lost", "back"]
    assert isinstance(state.timeline, Kept)
    assert POWER in state.timeline.signals  # what it can do was asked for anew


def test_a_round_asks_a_driver_once_whether_a_counter_restarts_too_soon(world: World) -> None:
    asked: list[int] = []

    class Asked(FakeDriver):
        @property
        def catch_up_ns(self) -> int:  # type: ignore[override]
            asked.append(world.clock.now_ns())
            return 0

    world.driver = Asked(world.clock, [Device("GPU-a", index=0)], {ENERGY: 1})
    world.run(2)
    assert len(asked) <= world.rounds.stats.rounds


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_the_time_of_reads_contains_no_step_of_the_clock(world: World, ahead_s: float) -> None:
    class Stepped(FakeDriver):
        ahead_s = 0.0

        def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
            self.clock.advance(0.001)
            self.clock.set_forward(self.ahead_s)
            self.ahead_s = 0.0
            return super().read(device, tier)

    world.driver = driver = Stepped(world.clock, [Device("GPU-a", index=0)], {ENERGY: 1})
    world.rounds.step()
    driver.ahead_s = ahead_s
    world.clock.advance(1.0)
    world.rounds.step()
    assert world.rounds.stats.busy_ns[Tier.FAST] == 2_000_000
