"""The word that a reader leaves for its supervisor, and the driver that writes it."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import pytest
from support.exporter import FakeDriver
from unit.exporter.reader.pipes import Time

from gpu_profile.catalogue import Tier
from gpu_profile.catalogue.samples import Device, Event, Sample
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.errors import DeviceLost
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.reader import heartbeat
from gpu_profile_exporter.reader.heartbeat import DRIVER, ELSEWHERE, Heartbeat
from gpu_profile_exporter.reader.observed_driver import (
    ALONE_S,
    LIST_S,
    OPEN_S,
    READ_S,
    REOPEN_S,
    START_S,
    ObservedDriver,
)

DEVICES = [Device("GPU-a", index=0), Device("GPU-b", index=1), Device("GPU-c")]


@pytest.fixture
def where() -> Iterator[Heartbeat]:
    made = Heartbeat.create()
    yield made
    made.close()


def test_nobody_is_anywhere_at_first_and_after_leaving(where: Heartbeat) -> None:
    assert where.now() is None
    where.enter(3, 1.0)
    where.leave()
    assert where.now() is None


def test_another_process_s_view_tells_the_same(where: Heartbeat) -> None:
    other = Heartbeat(os.dup(where.fd))
    where.enter(5, 100.0)
    found = other.now()
    assert found is not None
    assert (found.gpu, found.late) == (5, False)
    assert 0 <= found.seconds < 100
    other.close()


@pytest.mark.parametrize(
    ("share", "blocked", "slow"), [(0.15, True, False), (0.3, False, False), (0.3, True, True), (0.6, False, True)]
)
def test_a_call_is_slow_above_half_its_limit_and_above_a_fifth_if_its_process_does_not_wait_for_a_cpu(
    where: Heartbeat, monkeypatch: pytest.MonkeyPatch, share: float, blocked: bool, slow: bool
) -> None:
    moment = Time()
    monkeypatch.setattr(heartbeat, "time", moment)
    where.enter(1, READ_S)
    moment.sleep(share * READ_S)
    found = where.now(lambda: blocked)
    assert found is not None
    assert (found.slow, found.late) == (slow, False)


def test_what_takes_longer_than_it_may_is_late(where: Heartbeat) -> None:
    where.enter(DRIVER, -1.0)
    found = where.now()
    assert found is not None
    assert found.late


class Steps(list[int]):
    """Three words, and every state that they have been in."""

    def __init__(self) -> None:
        super().__init__((0, 0, 0))
        self.states = [tuple(self)]

    def __setitem__(self, place: object, value: object) -> None:
        super().__setitem__(place, value)  # type: ignore[call-overload]
        self.states.append(tuple(self))


class Passing:
    """The words as one sees them who looks at each a while later than at the one before."""

    def __init__(self, states: Sequence[tuple[int, ...]]) -> None:
        self.left = list(states)

    def __getitem__(self, place: int) -> int:
        return self.left.pop(0)[place]


def test_a_supervisor_never_pairs_one_gpu_with_anothers_moment_or_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1, 100))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(times))
    writer = object.__new__(Heartbeat)
    writer._words = steps = Steps()
    for gpu in (1, 2, 1):
        writer.enter(gpu, {1: -1000.0, 2: 1000.0}[gpu])
    monkeypatch.setattr(time, "monotonic_ns", lambda: 100)
    seen = set()
    for looks in combinations_with_replacement(range(len(steps.states)), 4):
        reader = object.__new__(Heartbeat)
        reader._words = Passing([steps.states[look] for look in looks])
        found = reader.now()
        if found is not None:
            seen.add((found.gpu, found.late))
    assert seen == {(1, True), (2, False)}


class Spy(Heartbeat):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.places: list[tuple[int, float]] = []

    def enter(self, index: int, limit_s: float) -> None:
        self.places.append((index, limit_s))

    def leave(self) -> None:
        self.places.append((-99, 0))


class Slow(FakeDriver):
    """Each read takes 0.2 s, in which the clock is set ahead by `ahead_s`."""

    ahead_s = 0.0

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        self.clock.advance(0.2)
        self.clock.set_forward(self.ahead_s)
        return super().read(device, tier)

    def events(self) -> Sequence[Event]:
        return [Event("GPU-a", 1, "xid", 31)]


@pytest.fixture
def spy() -> Spy:
    return Spy()


def marked(spy: Spy, *, alone: bool = False) -> tuple[ObservedDriver, Slow]:
    driver = Slow(FakeClock(), DEVICES, {ENERGY: 1})
    return ObservedDriver(driver, spy, driver.clock, alone=alone), driver


def test_each_call_is_told_with_its_gpu_and_afterwards_the_driver_is_meant_again(spy: Spy) -> None:
    driver, _ = marked(spy)
    driver.read(DEVICES[1], Tier.FAST)
    driver.drain(DEVICES[1])
    driver.read(DEVICES[2], Tier.FAST)
    assert spy.places == [
        (1, OPEN_S),
        (DRIVER, READ_S),
        (1, READ_S),
        (DRIVER, READ_S),
        (ELSEWHERE, REOPEN_S),
        (DRIVER, READ_S),
    ]


def test_after_a_call_that_failed_the_gpu_is_not_blamed_for_what_follows(spy: Spy) -> None:
    driver, fake = marked(spy)
    fake.lost.add("GPU-a")
    with pytest.raises(DeviceLost):
        driver.read(DEVICES[0], Tier.FAST)
    assert spy.places[-1] == (DRIVER, READ_S)


def test_to_open_a_gpu_again_may_not_hold_the_others_up(spy: Spy) -> None:
    driver, fake = marked(spy)
    driver.read(DEVICES[0], Tier.FAST)
    fake.lost.add("GPU-a")
    with pytest.raises(DeviceLost):
        driver.read(DEVICES[0], Tier.FAST)
    spy.places.clear()
    fake.lost.clear()
    driver.read(DEVICES[0], Tier.FAST)
    assert spy.places[0] == (0, REOPEN_S)


def test_a_gpu_that_is_read_alone_has_all_the_time_there_is_to_be_opened(spy: Spy) -> None:
    driver, _ = marked(spy, alone=True)
    driver.read(DEVICES[0], Tier.FAST)
    driver.capabilities(DEVICES[0])
    driver.read(DEVICES[0], Tier.FAST)
    assert [limit for place, limit in spy.places if place == 0] == [OPEN_S, OPEN_S, ALONE_S]


def test_the_first_list_may_take_long_and_later_ones_not(spy: Spy) -> None:
    driver, _ = marked(spy)
    driver.devices()
    driver.devices()
    assert [limit for place, limit in spy.places if place == DRIVER] == [START_S, READ_S, LIST_S, READ_S]


def test_the_longest_call_of_each_device_is_told_once_and_opening_does_not_count(spy: Spy) -> None:
    driver, _ = marked(spy)
    driver.read(DEVICES[0], Tier.FAST)
    assert driver.take() == {}
    driver.read(DEVICES[0], Tier.FAST)
    driver.drain(DEVICES[0])
    assert driver.take() == {"GPU-a": 200_000_000}
    assert driver.take() == {}


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_the_longest_call_contains_no_step_of_the_clock(spy: Spy, ahead_s: float) -> None:
    driver, fake = marked(spy)
    driver.read(DEVICES[0], Tier.FAST)
    fake.ahead_s = ahead_s
    driver.read(DEVICES[0], Tier.FAST)
    assert driver.take() == {"GPU-a": 200_000_000}


def test_all_else_is_the_drivers_own(spy: Spy) -> None:
    driver, fake = marked(spy)
    assert (driver.name, driver.version) == (fake.name, fake.version)
    assert driver.capabilities(DEVICES[0]) == fake.capabilities(DEVICES[0])
    assert [event.code for event in driver.events()] == [31]
    assert driver.processes(DEVICES[0]) == ()
    assert driver.boundary(DEVICES[0]) == []
    driver.close()
