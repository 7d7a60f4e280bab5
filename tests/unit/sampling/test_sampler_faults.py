import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.drivers import SLICE, A, B, FakeDriver, World

from gpu_profile.catalogue import SIGNALS, Signal, Tier
from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import ENERGY
from gpu_profile.driver import Capability, Driver
from gpu_profile.errors import GpuBackendError
from gpu_profile.sampling.periods import DEVICES_S
from gpu_profile.sampling.rounds import RETRY_S
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.units import nanoseconds


def test_a_lost_device_leaves_the_others_alone_and_is_tried_again_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.pass_(1)
    timeline = world.sampler.timeline(A.uuid)
    assert timeline is not None
    world.driver.lost.add(A.uuid)
    tries, asked = len(world.driver.times(Tier.FAST, A.uuid)), len(world.driver.times(Tier.FAST, B.uuid))
    world.pass_(10)
    state = world.sampler.states[A.uuid]
    assert world.up() == {A.uuid: False, B.uuid: True}
    assert state.reason == "it fell off the bus"
    assert len(world.driver.times(Tier.FAST, B.uuid)) == asked + 100
    gaps = [b - a for a, b in zip(*(world.driver.times(Tier.FAST, A.uuid)[tries + i :] for i in (0, 1)), strict=False)]
    assert gaps
    assert all(nanoseconds(RETRY_S) <= gap <= nanoseconds(RETRY_S + 0.1) for gap in gaps)
    assert world.sampler.stats.errors["device lost"] == len(gaps) + 1

    rows = len(timeline.column(ENERGY) or ())
    known = len(world.driver.times("capabilities", A.uuid))
    world.driver.available |= {SIGNALS[0]}
    world.driver.lost.clear()
    world.pass_(RETRY_S + 0.1)
    assert world.up() == {A.uuid: True, B.uuid: True}
    assert state.reason == ""
    assert len(world.driver.times("capabilities", A.uuid)) == known + 1
    assert state.capabilities[SIGNALS[0]].available
    assert world.sampler.timeline(A.uuid) is timeline
    assert timeline.column(SIGNALS[0]) is not None
    assert len(timeline.column(ENERGY) or ()) > rows
    told = [record.message for record in caplog.records if A.uuid in record.message]
    assert told == [f"gpu-profile: {A.uuid}: it fell off the bus", f"gpu-profile: {A.uuid} is back"]


def test_a_lost_device_is_not_back_before_its_counters_answer() -> None:
    # The drain of a lost device may well answer with nothing.
    world = World(A, interval_s=0.7)
    world.sampler.step()
    world.driver.lost.add(A.uuid)
    ups = []
    for _ in range(40):
        world.clock.advance(world.sampler.step())
        ups.append(world.up()[A.uuid])
    assert ups == sorted(ups, reverse=True)
    assert ups[-1] is False


def test_one_that_is_lost_is_not_up_because_a_driver_that_was_opened_anew_lists_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.pass_(1)
    world.driver.lost.add(A.uuid)
    world.pass_(0.2)
    world.driver.gone.add("events")
    opened, ups, is_up = world.driver, [], world.sampler.states[A.uuid]
    monkeypatch.setattr(world.sampler, "_open_driver", lambda: replace(opened, gone=set(), closed=0))
    capabilities = FakeDriver.capabilities

    def looked_at(driver: FakeDriver, device: Device) -> Mapping[Signal, Capability]:
        ups.append(is_up.up)
        return capabilities(driver, device)

    monkeypatch.setattr(FakeDriver, "capabilities", looked_at)
    world.sampler.step(force=True)
    for _ in range(40):
        world.clock.advance(world.sampler.step())
        ups.append(is_up.up)
    assert world.sampler.driver is not opened
    assert world.up()[B.uuid]
    assert not any(ups)
    opened.lost.clear()
    world.pass_(RETRY_S + 0.1)
    assert world.up() == {A.uuid: True, B.uuid: True}
    told = [record.message for record in caplog.records if A.uuid in record.message]
    assert told == [f"gpu-profile: {A.uuid}: it fell off the bus", f"gpu-profile: {A.uuid} is back"]


def test_what_could_not_be_read_of_a_device_when_it_was_met_is_filled_in_and_not_forgotten() -> None:
    whole = replace(A, name="NVIDIA H200", memory_bytes=1 << 37, minor=3)
    world = World(replace(whole, memory_bytes=None, minor=None))
    world.pass_(1)
    world.present[:] = [whole]
    world.pass_(DEVICES_S)
    assert world.sampler.states[A.uuid].device == whole
    world.present[:] = [replace(whole, index=1, name="")]
    world.pass_(DEVICES_S)
    assert world.sampler.states[A.uuid].device == replace(whole, index=1)


def test_samples_stop_while_a_device_is_lost() -> None:
    seen: list[str] = []
    world = World(A, sinks=[lambda device, samples: seen.extend([device.uuid] * len(samples))])
    world.pass_(1)
    world.driver.lost.add(A.uuid)
    world.clock.advance(0.1)
    world.sampler.step()
    before = len(seen)
    world.pass_(5)
    assert len(seen) == before


def test_a_device_that_appears_later_is_taken_in(world: World) -> None:
    world.pass_(1)
    world.present.append(B)
    world.pass_(DEVICES_S)
    assert world.up() == {A.uuid: True, B.uuid: True}
    assert world.driver.times(Tier.FAST, B.uuid)


def test_a_mig_instance_that_vanishes_is_let_go_and_a_gpu_that_does_is_lost() -> None:
    world = World(A, B, SLICE)
    world.pass_(1)
    world.present.remove(SLICE)
    world.present.remove(B)
    world.driver.lost.add(B.uuid)
    world.pass_(DEVICES_S)
    assert world.up() == {A.uuid: True, B.uuid: False}
    asked = len(world.driver.times(Tier.FAST, SLICE.uuid))
    world.pass_(1)
    assert len(world.driver.times(Tier.FAST, SLICE.uuid)) == asked


@pytest.mark.parametrize("call", [Tier.FAST, Tier.SLOW, "gpm", "drain", "events", "devices"])
def test_a_driver_that_goes_in_any_call_is_closed_and_opened_again(call: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.pass_(2)
    first, timelines = world.driver, world.sampler.timelines
    rows = [len(timeline.column(ENERGY) or ()) for timeline in timelines]
    first.gone.add(call)
    world.refused = "the driver is being reloaded"
    world.sampler.step(force=True)
    assert first.closed == 1
    assert not world.is_open
    assert world.sampler.problem == f"{call}: the driver is gone"
    assert world.up() == {A.uuid: False, B.uuid: False}
    assert {state.reason for state in world.sampler.states.values()} == {f"{call}: the driver is gone"}

    world.pass_(3.5)
    assert world.sampler.problem == "the driver is being reloaded"
    assert world.sampler.stats.errors["driver"] == 1 + 3
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.message.rpartition(": ")[2] for record in warnings] == ["the driver is gone", world.refused]

    world.refused = ""
    world.pass_(RETRY_S + 0.1)
    assert world.driver is not first
    assert world.is_open
    assert world.sampler.problem == ""
    assert world.up() == {A.uuid: True, B.uuid: True}
    assert len(world.driver.times("capabilities", A.uuid)) == 1
    assert world.sampler.timelines == timelines
    assert all(len(timeline.column(ENERGY) or ()) > before for timeline, before in zip(timelines, rows, strict=True))


def test_a_driver_that_cannot_list_its_devices_is_closed_again() -> None:
    world = World()

    def open_driver() -> Driver:
        driver = FakeDriver(world.clock, [A], gone={"devices"})
        world.drivers.append(driver)
        return driver

    sampler = Sampler(open_driver, clock=world.clock)
    with pytest.raises(GpuBackendError, match="the driver is gone"):
        sampler.open()
    assert world.driver.closed == 1
    assert sampler.driver is None


def test_open_raises_what_step_only_notes() -> None:
    world = World()
    world.refused = "no GPU driver"
    with pytest.raises(GpuBackendError, match="no GPU driver"):
        world.sampler.open()
    assert world.sampler.step() == RETRY_S
    assert world.sampler.problem == "no GPU driver"
    assert world.sampler.stats.rounds == 0
    assert world.sampler.stats.turned_ns == world.clock.now_ns()


def test_a_device_that_is_described_anew_after_a_reload_has_its_new_description(world: World) -> None:
    world.sampler.step()
    world.driver.gone.add(Tier.FAST)
    renamed = replace(A, name="another")
    world.present[:] = [renamed]
    world.pass_(RETRY_S + 0.2)
    assert world.sampler.states[A.uuid].device == renamed
