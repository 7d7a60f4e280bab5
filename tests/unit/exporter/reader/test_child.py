"""The reader's side: what it tells its supervisor, when, and how it ends."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.exporter import FakeDriver
from support.programs import until

from gpu_profile.catalogue import SIGNALS
from gpu_profile.catalogue.samples import Device, Event
from gpu_profile.catalogue.signals import ENERGY, PCIE_RX, POWER, TEMPERATURE
from gpu_profile.driver import Driver
from gpu_profile.driver.node.reader import RingReader
from gpu_profile.errors import GpuBackendError, StaleLibraryError
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.reader import child
from gpu_profile_exporter.reader.child import SEND_S, Outbox, ReaderLoop, run
from gpu_profile_exporter.reader.heartbeat import Heartbeat
from gpu_profile_exporter.reader.observed_driver import OPEN_S, READ_S
from gpu_profile_exporter.reader.settings import LISTENER, ReaderSettings
from gpu_profile_exporter.reader.wire import Incoming, Message, send

GPUS = [Device("GPU-a", index=0), Device("GPU-b", index=1)]


class Scripted(FakeDriver):
    """Asks before it lists a GPU, as NVML's driver does, and tells events once."""

    enter: Callable[[int], bool] = staticmethod(lambda _: True)
    happened: Sequence[Event] = ()

    def devices(self) -> Sequence[Device]:
        return [device for device in super().devices() if device.index is None or self.enter(device.index)]

    def events(self) -> Sequence[Event]:
        happened, self.happened = self.happened, ()
        return happened


class Child:
    """A reading over a scripted driver, on a fake clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
        self.clock = FakeClock()
        self.driver = Scripted(self.clock, GPUS, {ENERGY: lambda s: int(s * 1000), TEMPERATURE: 40})
        self.error: Exception | None = None
        self.where = Heartbeat.create()
        monkeypatch.setattr(child, "open_driver", self._open)
        made = ReaderSettings("nvml", 0.1, ("core",), False, -1, -1, -1, **settings)  # type: ignore[arg-type]
        self.reading = ReaderLoop(made, self.where, self.clock)

    def _open(self, _: str, *, enter: Callable[[int], bool], **__: object) -> Driver:
        if self.error is not None:
            raise self.error
        self.driver.enter = enter
        return self.driver

    def turn(self) -> list[Message]:
        delay = self.reading.step()
        found = self.reading.news(self.clock.now_ns())
        self.clock.advance(max(delay, 0.001))
        return found

    def run(self, seconds: float) -> list[Message]:
        end, found = self.clock.now_ns() + nanoseconds(seconds), []
        while self.clock.now_ns() < end:
            found += self.turn()
        return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    found = Child(monkeypatch)
    yield found
    found.where.close()


def kinds(messages: list[Message]) -> list[str]:
    return [message[0] for message in messages]


def values(messages: list[Message], uuid: str) -> list[int]:
    """How many samples each round brought of a device."""
    return [len(message[7].get(uuid, ())) // 4 for message in messages if message[0] == "round"]


def test_devices_are_told_before_that_there_is_a_driver_and_before_their_samples(made: Child) -> None:
    first = made.turn()
    assert kinds(first) == ["device", "state", "device", "state", "open", "round"]
    _, fields, capabilities = first[0]
    assert (fields["uuid"], fields["kind"]) == ("GPU-a", "gpu")
    assert {key for key, can, _ in capabilities if can} == {"energy", "temperature"}
    assert len(capabilities) == len(SIGNALS)
    assert first[4][1:3] == ("fake", "1.2.3")
    assert values(first, "GPU-a") == [2]


def test_what_has_not_changed_is_not_told_again(made: Child) -> None:
    made.turn()
    assert set(kinds(made.run(3))) == {"round"}


def test_samples_wait_until_it_is_worth_waking_the_supervisor_and_none_is_lost(made: Child) -> None:
    found = made.run(5)
    rounds = values(found, "GPU-a")
    assert len(rounds) <= 5 / SEND_S + 2
    state = made.reading.states["GPU-a"]
    assert isinstance(state.timeline, Outbox)
    assert sum(rounds) + len(state.timeline.values) // 4 == state.samples
    assert sum(message[2] for message in found if message[0] == "round") >= made.reading.stats.rounds - SEND_S / 0.1


def test_samples_that_wait_are_sent_at_once_when_the_supervisor_orders_it(made: Child) -> None:
    made.run(2)
    while made.turn():
        pass
    delay_s = made.reading.step()
    assert made.reading.news(made.clock.now_ns()) == []
    box, rounds = made.reading.states["GPU-a"].timeline, made.reading.stats.rounds
    assert isinstance(box, Outbox)
    waiting = len(box.values) // 4
    assert waiting
    made.clock.advance(delay_s / 2)
    made.reading.follow(("send",))
    assert made.reading.step() == pytest.approx(delay_s / 2)
    assert values(made.reading.news(made.clock.now_ns()), "GPU-a") == [waiting]
    assert made.reading.news(made.clock.now_ns()) == []
    assert made.reading.stats.rounds == rounds  # nothing was due


def test_the_timeline_gets_what_waits_when_a_gpu_is_lost_moves_or_the_reader_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Child(monkeypatch, timeline=str(tmp_path))
    made.driver.values = {PCIE_RX: lambda s: int(s * 1000)}

    def missing(uuid: str) -> int:
        """How many of a GPU's samples are in none of its files."""
        readers = [RingReader(path) for path in tmp_path.glob("*.ring")]
        return made.reading.states[uuid].samples - sum(len(r.read()) for r in readers if r.uuid == uuid)

    made.run(0.55)
    made.driver.lost.add("GPU-b")
    made.turn()
    assert missing("GPU-b") == 0
    assert missing("GPU-a") > 0
    moved, kept = (made.reading.states[uuid].samples for uuid in ("GPU-a", "GPU-b"))
    made.reading.leave({0})
    assert sum(len(RingReader(path).read()) for path in tmp_path.glob("*.ring")) == moved + kept
    made.driver.lost.clear()
    made.run(1.15)
    made.reading.close()
    assert missing("GPU-b") == 0
    made.where.close()


def test_the_samples_come_out_as_the_driver_gave_them(made: Child) -> None:
    (message,) = [message for message in made.turn() if message[0] == "round"]
    rows = list(zip(*[iter(message[7]["GPU-a"])] * 4, strict=True))
    assert {(SIGNALS[number], value) for number, _, _, value in rows} == {(ENERGY, 0), (TEMPERATURE, 40)}


def test_a_lost_gpu_is_told_at_once_with_why_and_again_when_it_is_back(made: Child) -> None:
    made.run(1)
    made.driver.lost.add("GPU-b")
    states = [message for message in made.run(0.3) if message[0] in ("state", "events")]
    assert states[0][:4] == ("state", "GPU-b", False, "GPU-b fell off the bus")
    assert [event[2] for event in states[1][1]] == ["lost"]
    made.driver.lost.clear()
    back = [message for message in made.run(2) if message[0] == "state"]
    assert [message[1:3] for message in back] == [("GPU-b", True)]


def test_events_are_told_with_the_round_in_which_they_came(made: Child) -> None:
    made.run(1)
    made.driver.happened = [Event("GPU-a", 7, "xid", 79, "XID 79")]
    found = [message for message in made.run(2) if message[0] == "events"]
    assert found == [("events", [("GPU-a", 7, "xid", 79, "XID 79")])]


def test_a_driver_that_goes_and_comes_is_told_once_each_time(made: Child) -> None:
    made.run(1)
    made.driver.gone = "not loaded"
    found = made.run(4)
    assert [message for message in found if message[0] == "problem"] == [("problem", "not loaded", False)]
    assert {message[2] for message in found if message[0] == "state"} == {False}
    made.driver.gone = ""
    found = made.run(3)
    assert kinds(found).count("open") == 1
    assert {message[2] for message in found if message[0] == "state"} == {True}


@pytest.mark.parametrize(("error", "stale"), [(GpuBackendError("no driver"), False), (StaleLibraryError("18"), True)])
def test_only_a_library_of_another_version_asks_for_a_new_process(made: Child, error: Exception, stale: bool) -> None:
    made.error = error
    first = made.turn()
    assert first[0] == ("problem", str(error), stale)
    assert made.run(3).count(first[0]) == 0


def test_that_the_library_is_of_another_version_is_told_though_the_driver_was_lost_for_that_very_reason(
    made: Child,
) -> None:
    made.run(1)
    made.driver.gone, made.error = "another version", StaleLibraryError("another version")
    found = [message for message in made.run(3) if message[0] == "problem"]
    assert found == [("problem", "another version", False), ("problem", "another version", True)]


def test_gpus_that_are_left_to_others_are_never_talked_to_and_told_as_gone(made: Child) -> None:
    made.run(1)
    made.reading.leave({1})
    found = made.run(3)
    assert ("gone", "GPU-b") in found
    assert sum(values(found[1:], "GPU-b")) == 0
    made.reading.leave(())
    assert "GPU-b" in [message[1]["uuid"] for message in made.run(3) if message[0] == "device"]


def test_a_driver_that_is_to_be_opened_anew_is_and_what_it_lists_is_told(made: Child) -> None:
    made.run(1)
    first, made.driver = made.driver, Scripted(made.clock, [*GPUS, Device("GPU-c", index=2)], {ENERGY: 7})
    made.reading.follow(("reopen",))
    assert made.where.now() is None
    found = made.turn()
    calls = first.calls
    assert [message[1]["uuid"] for message in found if message[0] == "device"] == ["GPU-a", "GPU-b", "GPU-c"]
    assert [message[0] for message in found][-2:] == ["open", "round"]
    made.run(1)
    assert first.calls == calls


@pytest.mark.parametrize(("settings", "talked"), [({"only": 1}, {1}), ({"leave": (1,)}, {0}), ({}, {0, 1})])
def test_a_reader_talks_only_to_its_gpus(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], talked: set[int]
) -> None:
    made = Child(monkeypatch, **settings)
    made.run(3)
    assert {state.device.index for state in made.reading.states.values()} == talked
    made.where.close()


def test_between_rounds_a_reader_is_nowhere_and_where_it_failed_stays_to_be_seen(made: Child) -> None:
    made.turn()
    assert made.where.now() is None

    def crash(*_: object) -> Sequence[object]:
        raise RuntimeError("a defect")

    made.driver.read = crash  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError):
        made.reading.step(force=True)
    found = made.where.now()
    assert found is not None
    assert found.gpu == 0


def test_listing_a_gpu_may_take_long_once(made: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, float]] = []
    monkeypatch.setattr(made.where, "enter", lambda index, limit: told.append((index, limit)))
    made.run(3)
    assert (1, OPEN_S) in told
    limits = [limit for index, limit in told if index == 1]
    assert limits[0] == OPEN_S
    assert set(limits[limits.index(READ_S) :]) == {READ_S}


def test_settings_survive_their_way_over_the_command_line() -> None:
    settings = ReaderSettings(
        "simulated:/a b", 0.5, ("core", "links"), True, 3, 4, 5, only=2, leave=(0, 7), other=LISTENER
    )
    assert ReaderSettings.of(settings.text()) == settings


class Wires:
    """A reader in a thread, and its supervisor's ends."""

    def __init__(self, where: Heartbeat, other: int | None = None) -> None:
        self.fd, out = os.pipe()
        orders, self.orders = os.pipe()
        self.where = where
        settings = ReaderSettings("none", 0.1, ("core",), False, out, orders, os.dup(where.fd), other=other)
        self.thread = threading.Thread(target=run, args=(settings,), daemon=True)
        self.ends = [self.fd, self.orders, out, orders]
        self.thread.start()

    def first(self) -> Message:
        select.select([self.fd], [], [], 10)
        return next(Incoming().feed(os.read(self.fd, 1 << 16)))

    def close(self, fd: int) -> None:
        self.ends.remove(fd)
        os.close(fd)


@pytest.fixture(params=[None])
def wires(request: pytest.FixtureRequest) -> Iterator[Wires]:
    where = Heartbeat.create()
    made = Wires(where, request.param)
    yield made
    with suppress(ValueError):
        made.close(made.orders)
    made.thread.join(5)
    for fd in made.ends:
        os.close(fd)
    where.close()


def test_a_reader_ends_when_its_supervisor_has_gone(wires: Wires) -> None:
    assert wires.first()[0] == "open"
    wires.close(wires.orders)
    wires.thread.join(10)
    assert not wires.thread.is_alive()


def test_a_reader_ends_when_nobody_reads_what_it_says(wires: Wires) -> None:
    wires.first()
    wires.close(wires.fd)
    wires.thread.join(10)
    assert not wires.thread.is_alive()


def test_orders_are_followed_and_unknown_ones_left(wires: Wires) -> None:
    wires.first()
    send(wires.orders, ("dance",))
    send(wires.orders, ("leave", [0]))
    assert wires.first()[0] == "round"
    assert wires.thread.is_alive()


@pytest.mark.parametrize("wires", [LISTENER], indirect=True)
def test_a_process_without_news_shows_that_it_lives_and_wakes_nobody(wires: Wires) -> None:
    assert wires.first()[0] == "open"
    for _ in range(3):
        last = wires.where.turned
        until(lambda last=last: last < wires.where.turned <= time.monotonic(), "a turn ends")
    assert select.select([wires.fd], [], [], 0)[0] == []


@pytest.mark.parametrize("blocked_s", [0.0, 0.03, 8.0])
def test_after_a_full_pipe_a_reader_reads_at_once(
    made: Child, monkeypatch: pytest.MonkeyPatch, blocked_s: float
) -> None:
    waits: list[float] = []

    class Select:
        @staticmethod
        def select(*arguments: object) -> tuple[list[int], list[int], list[int]]:
            waits.append(arguments[3])  # type: ignore[arg-type]
            if len(waits) == 2:
                raise BrokenPipeError
            return [], [], []

    sent: list[Message] = []

    def slowly(_: int, message: Message) -> None:
        sent.append(message)
        if message[0] == "round":
            made.clock.advance(blocked_s)

    monkeypatch.setattr(child, "select", Select)
    monkeypatch.setattr(child, "send", slowly)
    run(replace(made.reading._settings, where_fd=os.dup(made.where.fd)), made.clock)
    assert kinds(sent).count("round") == (2 if blocked_s > SEND_S else 1)
    assert waits[0] == pytest.approx(max(0.0, 0.1 - blocked_s))


def test_power_is_not_told_where_the_driver_has_none(made: Child) -> None:
    capabilities = made.turn()[0][2]
    assert (POWER.key, False, "not supported") in capabilities


def test_it_stays_with_the_gpu_that_held_it_up_when_it_is_told_so(made: Child) -> None:
    made.run(1)
    made.reading.follow(("only", 1))
    found = made.run(3)
    assert ("gone", "GPU-a") in found
    assert sum(values(found[1:], "GPU-a")) == 0
    assert values(found[1:], "GPU-b")
    assert {state.device.uuid for state in made.reading.states.values()} == {"GPU-b"}
    made.reading.follow(("reopen",))
    made.run(1)
    assert {state.device.uuid for state in made.reading.states.values()} == {"GPU-b"}
