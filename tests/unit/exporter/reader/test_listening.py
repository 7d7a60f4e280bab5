"""The process that hears what happens to GPUs, over a simulated node."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pynvml
import pytest

from gpu_profile.catalogue.samples import Event
from gpu_profile.driver import simulated
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.reader.heartbeat import Heartbeat
from gpu_profile_exporter.reader.listening import LISTEN_S, Listening
from gpu_profile_exporter.reader.settings import LISTENER, ReaderSettings
from gpu_profile_exporter.reader.wire import Message

NODE = """
[[device]]
model = "L4"
uuid = "GPU-a"
[[device]]
model = "L4"
uuid = "GPU-b"
"""
BOTH = ("watch", {0: "GPU-a", 1: "GPU-b"})


def xid(at_s: float, code: int, device: int = 0) -> str:
    return f'[[fault]]\nkind = "xid"\ndevice = {device}\nfrom_s = {at_s}\nxid = {code}\n'


class Listener:
    """One over a node with these faults, driven by hand."""

    def __init__(self, directory: Path, clock: FakeClock, *faults: str) -> None:
        self.clock = clock
        self.node = simulated.create(directory / "node", NODE + "".join(faults), clock=clock)
        self.where = Heartbeat.create()
        settings = ReaderSettings(f"simulated:{self.node}", 0.1, (), False, -1, -1, -1, other=LISTENER)
        self.listening = Listening(settings, self.where, clock)

    def run(self, seconds: float) -> list[Message]:
        end, found = self.clock.now_ns() + nanoseconds(seconds), []
        while self.clock.now_ns() < end:
            delay = self.listening.step()
            found += self.listening.news(self.clock.now_ns())
            assert self.where.now() is None
            self.clock.advance(delay)
        return found

    def end(self) -> None:
        self.listening.close()
        self.where.close()


@pytest.fixture
def listeners(tmp_path: Path, clock: FakeClock) -> Iterator[list[Listener]]:
    made: list[Listener] = []
    yield made
    for one in made:
        one.end()


def codes(messages: list[Message]) -> list[tuple[str, int]]:
    return [(row[0], row[3]) for message in messages if message[0] == "events" for row in message[1]]


def test_events_of_the_gpus_that_it_watches_are_told_once_each(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    listeners.append(one := Listener(tmp_path, clock, xid(5, 31), xid(5, 48, 1), xid(20, 79, 1)))
    one.listening.follow(("watch", {1: "GPU-b"}))
    found = one.run(10)
    assert found[0] == ("open",)
    assert codes(found) == [("GPU-b", 48)]
    one.listening.follow(("dance",))
    one.listening.follow(BOTH)
    assert codes(one.run(20)) == [("GPU-b", 79)]


def test_an_event_is_told_as_soon_as_it_is_seen(tmp_path: Path, clock: FakeClock, listeners: list[Listener]) -> None:
    listeners.append(one := Listener(tmp_path, clock, xid(5, 31)))
    one.listening.follow(BOTH)
    assert codes(one.run(5 - LISTEN_S)) == []
    assert codes(one.run(2 * LISTEN_S)) == [("GPU-a", 31)]


def test_events_are_told_before_a_registration_that_may_hang(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners.append(one := Listener(tmp_path, clock, xid(5, 31)))
    one.listening.follow(("watch", {0: "GPU-a"}))
    one.run(4)
    clock.advance(2)
    listed = Mock(wraps=one.listening._driver.devices)  # type: ignore[union-attr]
    monkeypatch.setattr(one.listening._driver, "devices", listed)
    one.listening.follow(BOTH)
    assert one.listening.step() == 0.0
    assert (codes(one.listening.news(0)), listed.called) == ([("GPU-a", 31)], False)
    # More events do not put it off.
    monkeypatch.setattr(one.listening._driver, "events", lambda: [Event("GPU-a", 0, "xid", 31)])
    one.listening.step()
    assert listed.called


def test_many_events_are_told_soon_although_a_poll_returns_few(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    listeners.append(one := Listener(tmp_path, clock, *(xid(5, code) for code in range(1, 1001))))
    one.listening.follow(BOTH)
    one.run(5 - LISTEN_S)
    assert len(codes(one.run(3 + LISTEN_S))) == 1000


def test_a_driver_that_is_to_be_opened_anew_is_and_its_gpus_are_registered_again(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    listeners.append(one := Listener(tmp_path, clock, xid(5, 31), xid(15, 31)))
    one.listening.follow(BOTH)
    one.run(10)
    one.listening.follow(("reopen",))
    assert one.where.now() is None
    assert codes(one.run(10)) == [("GPU-a", 31)]


def test_gpus_whose_registration_failed_are_registered_later(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    listeners.append(one := Listener(tmp_path, clock, xid(30, 31), xid(30, 48, 1)))
    one.run(1)
    original = pynvml.nvmlLib.nvmlDeviceRegisterEvents
    pynvml.nvmlLib.nvmlDeviceRegisterEvents = lambda *_: pynvml.NVML_ERROR_UNKNOWN
    pynvml._nvmlGetFunctionPointer_cache.clear()
    one.listening.follow(BOTH)
    one.run(3)
    pynvml.nvmlLib.nvmlDeviceRegisterEvents = original
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert sorted(codes(one.run(30))) == [("GPU-a", 31), ("GPU-b", 48)]


def test_a_gpu_that_is_watched_is_never_talked_to_again(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    hang = '[[fault]]\nkind = "hang"\ndevice = 0\nfrom_s = 2\nhang_s = 60\n'
    listeners.append(one := Listener(tmp_path, clock, hang, xid(10, 79)))
    one.listening.follow(BOTH)
    began = clock.now_ns()
    assert codes(one.run(12)) == [("GPU-a", 79)]
    assert clock.now_ns() - began < nanoseconds(13)  # a call to it would have taken 60 s


def test_after_a_reload_of_the_driver_gpus_are_registered_anew_and_nothing_is_told_twice(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    reload = '[[fault]]\nkind = "driver_reload"\nfrom_s = 5\nto_s = 8\n'
    listeners.append(one := Listener(tmp_path, clock, reload, xid(2, 31), xid(12, 31)))
    one.listening.follow(BOTH)
    found = one.run(20)
    assert codes(found) == [("GPU-a", 31), ("GPU-a", 31)]
    assert [message[0] for message in found if message[0] in ("open", "problem")] == ["open", "problem", "open"]


def test_that_the_library_is_of_another_version_is_told(
    tmp_path: Path, clock: FakeClock, listeners: list[Listener]
) -> None:
    reload = '[[fault]]\nkind = "driver_reload"\nfrom_s = 5\nto_s = 8\nmismatch = true\n'
    listeners.append(one := Listener(tmp_path, clock, reload))
    one.listening.follow(BOTH)
    problems = [message for message in one.run(20) if message[0] == "problem"]
    assert problems[-1][2] is True
