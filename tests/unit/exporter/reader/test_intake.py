"""What the supervisor makes of what readers say."""

import threading
from collections.abc import Callable

import pytest
from unit.exporter.reader.pipes import FakeProcess, Time, a_round, about, state

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Event
from gpu_profile.catalogue.signals import CLOCK_SM, ENERGY, MEMORY_CONTROLLER, POWER, POWER_LIMIT, UTILIZATION
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.reader import intake
from gpu_profile_exporter.reader.intake import Intake
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.readings.node_readings import NodeReadings

A, B = Device("GPU-a", index=0, name="A"), Device("GPU-b", index=1)
SLICE = Device("MIG-b", parent="GPU-b", kind=DeviceKind.MIG, index=1)


def reader(only: int | None = None, leave: tuple[int, ...] = ()) -> FakeProcess:
    return FakeProcess(ReaderSettings("nvml", 0.1, (), False, -1, -1, -1, only, leave), Time())


class Kept(Intake):
    """An intake that knows two GPUs and one slice, and keeps what happens."""

    def __init__(self) -> None:
        self.time = FakeClock()
        super().__init__(interval_s=0.1, clock=self.time)
        self.home = reader()
        self.told: list[Event] = []
        self.event_sinks.append(self.told.append)
        for device in (A, B, SLICE):
            self.say(about(device, ENERGY, POWER))
            self.say(state(device.uuid))
        self.say(("open", "nvml", "570", "nvml", {}, False))

    def say(self, message: tuple[object, ...], process: FakeProcess | None = None) -> None:
        self.take(process or self.home, message)  # type: ignore[arg-type]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def energy(value: int, t_ns: int) -> list[tuple[Signal, int, int, int]]:
    return [(ENERGY, t_ns, t_ns, value)]


def test_devices_are_there_in_the_order_in_which_they_were_told_with_what_they_can_do(kept: Kept) -> None:
    assert list(kept.states) == ["GPU-a", "GPU-b", "MIG-b"]
    found = kept.states["GPU-a"]
    assert (found.device, found.up) == (A, True)
    assert found.capabilities[ENERGY].available
    assert {c.reason for c in found.capabilities.values() if not c.available} == {"not there"}
    assert kept.home.uuids == {"GPU-a", "GPU-b", "MIG-b"}


def test_a_device_that_is_told_again_keeps_what_was_counted(kept: Kept) -> None:
    kept.say(a_round({"GPU-a": energy(5, START_NS)}))
    kept.say(about(Device("GPU-a", index=3), ENERGY))
    found = kept.states["GPU-a"]
    assert (found.device.index, found.samples) == (3, 1)
    assert not found.capabilities[POWER].available


def test_a_round_s_samples_and_costs_are_added_up(kept: Kept) -> None:
    kept.say(a_round({"GPU-a": energy(5, START_NS), "GPU-b": energy(7, START_NS)}, t_ns=77))
    kept.say(a_round({"GPU-a": energy(6, START_NS + 10**8)}, t_ns=88))
    assert kept.states["GPU-a"].samples == 2
    column = kept.states["GPU-a"].timeline.columns[ENERGY]
    assert column.last is not None
    assert column.last.value == 6
    assert (kept.stats.rounds, kept.stats.turned_ns, kept.stats.samples) == (2, 88, 3)
    assert (kept.stats.busy_ns["fast"], kept.stats.errors["device lost"]) == (20, 2)


@pytest.mark.parametrize("step_s", [0, -3600], ids=["the clock goes on", "the clock was set back meanwhile"])
def test_what_a_new_reader_finds_in_the_drivers_buffer_is_not_counted_twice(kept: Kept, step_s: int) -> None:
    kept.say(about(A, UTILIZATION))

    def buffered(since_s: int, until_s: int) -> list[tuple[Signal, int, int, int]]:
        ends = range(START_NS + (since_s + 1) * NS_PER_S, START_NS + (until_s + 1) * NS_PER_S, NS_PER_S)
        return [(UTILIZATION, end - NS_PER_S, end, 50) for end in ends]

    for s in range(20):
        kept.say(a_round({"GPU-a": buffered(s, s + 1)}, t_ns=START_NS + (s + 1) * NS_PER_S))
    # The driver keeps the stamps that it gave by the clock of then; what is ahead of the clock, no reader reports.
    late = buffered(4, 22) if step_s == 0 else []
    kept.say(a_round({"GPU-a": late + buffered(22 + step_s, 23 + step_s)}, t_ns=START_NS + (23 + step_s) * NS_PER_S))
    for s in range(23, 30):
        kept.say(a_round({"GPU-a": buffered(s + step_s, s + 1 + step_s)}, t_ns=START_NS + (s + 1 + step_s) * NS_PER_S))
    busy = kept.states["GPU-a"].timeline.busy
    assert busy.covered_ns == (30 if step_s == 0 else 20 + 8 - 2) * NS_PER_S
    assert busy.masses == {UTILIZATION: busy.covered_ns * 50}


@pytest.mark.parametrize("step", [FakeClock.set_forward, FakeClock.set_back, FakeClock.suspend])
def test_a_step_of_the_clock_makes_no_reading_old_and_no_driver_silent(
    kept: Kept, step: Callable[[FakeClock, float], None]
) -> None:
    clock = kept.time
    node = NodeReadings(kept, "nvml", "1", clock=clock)  # type: ignore[arg-type]
    node.reporters.clear()

    def read() -> dict[str, float]:
        return {r.metric.otel: r.value for r in node() if r.attributes.get("hw.id") in (None, "GPU-a")}

    now_ns = clock.now_ns()
    kept.say(a_round({"GPU-a": [*energy(5, now_ns), (POWER, now_ns, now_ns, 70_000)]}, t_ns=now_ns))
    before = read()
    assert (before["hw.power"], before["gpu_profile.device.up"], before["gpu_profile.driver.up"]) == (70, 1, 1)
    step(clock, 3600.0)
    clock.advance(0.1)
    during = read()
    assert during == before | {"gpu_profile.sample.age": pytest.approx(0.1)}
    kept.say(a_round({"GPU-a": energy(6, clock.now_ns())}, t_ns=clock.now_ns()))
    assert kept.now_ns() == clock.now_ns()
    clock.advance(6.0)
    later = read()
    assert (later["gpu_profile.device.up"], later["gpu_profile.driver.up"]) == (0, 0)
    assert "hw.power" not in later


@pytest.mark.parametrize("ahead_s", [3.0, 60.0, 3600.0])
@pytest.mark.parametrize("queued", [1, 2, 8])
def test_messages_from_before_a_step_that_are_read_after_it_show_no_step_back(
    kept: Kept, queued: int, ahead_s: float
) -> None:
    clock = kept.time
    kept.say(about(A, ENERGY, UTILIZATION))

    def message() -> tuple[object, ...]:
        rows = []
        for _ in range(3):
            clock.advance(0.1)
            now_ns = clock.now_ns()
            rows += [*energy(clock.elapsed_ns() // 10_000_000, now_ns), (UTILIZATION, now_ns - 10**8, now_ns, 50)]
        return a_round({"GPU-a": rows}, t_ns=clock.now_ns())

    for _ in range(5):
        kept.say(message())
    waiting = [message() for _ in range(queued)]
    clock.set_forward(ahead_s)
    waiting += [message() for _ in range(5)]
    for one in waiting:
        kept.say(one)
    column = kept.states["GPU-a"].timeline.columns[ENERGY]
    assert column.dropped["clock set back"] == 0
    assert column.total_mass == column.total_covered_ns // 10_000_000 == 30 * (10 + queued) - 10
    assert kept.states["GPU-a"].timeline.busy.covered_ns == 30 * 10**8


@pytest.mark.parametrize("turned_first", [False, True])
@pytest.mark.parametrize("messages", [True, False])
def test_after_a_stop_of_the_exporter_the_waiting_samples_are_taken_before_their_age_is_read(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, messages: bool, turned_first: bool
) -> None:
    clock = kept.time

    class Stopped(Time):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            clock.advance(seconds)
            if messages:
                kept.say(a_round({"GPU-a": energy(6, clock.now_ns())}, t_ns=clock.now_ns()))

    def pass_time(seconds: float) -> float:
        clock.advance(seconds)
        time.now += seconds
        return time.now

    monkeypatch.setattr(intake, "time", time := Stopped())
    kept.keep_timeline()
    kept.say(a_round({"GPU-a": energy(5, clock.now_ns())}, t_ns=clock.now_ns()))
    for _ in range(4):
        pass_time(0.5)
        kept.keep_timeline()
    began = pass_time(12.0)
    if turned_first:  # with messages from before the pipe was full
        kept.keep_timeline()
    age_ns = kept.now_ns() - kept.stats.turned_ns
    if messages:
        assert age_ns == 0
        assert time.now < began + 0.01
    else:
        assert age_ns > 12 * NS_PER_S
        assert began + 0.04 <= time.now < began + 0.05  # a scrape takes at most 50 ms
    for _ in range(24):
        pass_time(0.5)
        kept.keep_timeline()
    # The thread runs, and the readers are silent: there is nothing to wait for.
    began = time.now
    assert kept.now_ns() - kept.stats.turned_ns > 11 * NS_PER_S
    assert time.now == began


@pytest.mark.parametrize("answers", [True, False])
def test_samples_that_wait_in_readers_are_received_for_a_scrape_unless_the_last_ones_are_new(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(intake, "time", time := Time())
    monkeypatch.setattr(intake, "_CATCH_UP_S", 30.0 if answers else 0.001)
    asked: list[threading.Thread] = []

    def request() -> bool:
        message = a_round({"GPU-a": energy(6, kept.time.now_ns())}, t_ns=88)
        asked.append(threading.Thread(target=kept.say, args=(message,) if answers else (state("GPU-a"),)))
        asked[-1].start()
        return True

    monkeypatch.setattr(kept, "_request_samples", request)
    kept.say(a_round({"GPU-a": energy(5, START_NS)}, t_ns=77))
    time.now += intake.FRESH_S
    kept.refresh()
    assert not asked
    time.now += 0.01
    next(NodeReadings(kept, "nvml", "1", clock=kept.time)())  # type: ignore[arg-type]
    asked[0].join()
    assert kept.stats.turned_ns == (88 if answers else 77)
    assert len(asked) == 1


def test_without_readers_nobody_waits_for_their_samples(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_CATCH_UP_S", 1e6)
    kept.refresh()


def test_a_gpu_s_own_reader_adds_samples_and_costs_but_is_no_round_of_all(kept: Kept) -> None:
    kept.say(a_round({"GPU-b": energy(7, START_NS)}, t_ns=99), reader(only=1))
    assert (kept.stats.rounds, kept.stats.turned_ns, kept.stats.samples) == (0, 99, 1)


def test_how_often_samples_come_is_known_where_that_is_seldom_and_forgotten_when_it_is_not(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "time", time := Time())
    found = kept.states["GPU-a"]

    def come(times: int, *, every_s: float) -> set[float]:
        periods = set()
        for _ in range(times):
            time.now += every_s
            kept.say(a_round({"GPU-a": energy(round(time.now * 10), START_NS + round(time.now * 1e9))}))
            periods.add(found.period_s)
        return periods

    assert come(20, every_s=0.6) == {0.0}
    assert come(20, every_s=0.9) == {1.0}
    assert come(20, every_s=0.25) == {1.0, 0.0}
    assert found.period_s == 0.0
    assert max(come(1, every_s=3600.0)) <= 4.0


def test_a_gpu_that_is_busy_at_idle_power_without_movement_is_counted_and_is_one_event_each_time(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.say(about(Device("GPU-c", clock_max_hz=1_410_000_000, pcie_bytes_per_s=31_500_000_000), ENERGY, UTILIZATION))
    now_s, joules = 0, 0

    def work(seconds: int, busy: int, controller: int, watts: int) -> None:
        nonlocal now_s, joules
        for _ in range(seconds):
            now_s, joules = now_s + 1, joules + watts
            before, now = START_NS + (now_s - 1) * NS_PER_S, START_NS + now_s * NS_PER_S
            means = [(UTILIZATION, before, now, busy), (MEMORY_CONTROLLER, before, now, controller)]
            limits = [(POWER_LIMIT, now, now, 400_000), (CLOCK_SM, now, now, 1410)]
            kept.say(a_round({"GPU-c": [*means, *limits, (ENERGY, now, now, joules * 1000)]}, t_ns=now))

    kept.say(a_round({"GPU-c": energy(0, START_NS)}, t_ns=START_NS))
    assert kept.states["GPU-c"].spinning_ns is None
    for _ in range(2):
        work(5, 0, 0, 68)
        work(60, 100, 0, 70)
        work(30, 100, 40, 300)
    assert kept.states["GPU-c"].spinning_ns == pytest.approx(120 * NS_PER_S, abs=5 * NS_PER_S)
    assert [event.kind for event in kept.told] == ["spinning", "moving", "spinning", "moving"]
    assert kept.told[0].t_ns == pytest.approx(START_NS + 5 * NS_PER_S, abs=2 * NS_PER_S)
    (first, _) = [record.getMessage() for record in caplog.records if "busy for" in record.getMessage()]
    assert first.startswith("GPU-c: busy for 1")
    assert len(first) <= 200


def test_samples_and_states_of_a_device_that_nobody_has_told_of_are_left(kept: Kept) -> None:
    kept.say(a_round({"GPU-x": energy(7, START_NS)}))
    kept.say(state("GPU-x"))
    kept.say(("gone", "GPU-x"))
    assert set(kept.states) == {"GPU-a", "GPU-b", "MIG-b"}


def test_who_uses_a_device_is_told_and_forgotten_when_it_is_down(kept: Kept) -> None:
    kept.say(state("GPU-a", processes=[(42, 1 << 20, None)]))
    assert [(use.pid, use.memory_bytes) for use in kept.states["GPU-a"].processes] == [(42, 1 << 20)]
    kept.say(state("GPU-a", up=False, reason="it fell off the bus"))
    found = kept.states["GPU-a"]
    assert (found.up, found.reason, found.processes, found.processes_ns) == (False, "it fell off the bus", (), None)


def test_a_slice_that_was_cut_away_goes_and_a_gpu_stays(kept: Kept) -> None:
    kept.say(a_round({"MIG-b": [*energy(1, START_NS), *energy(1, START_NS)]}))
    kept.say(("gone", "MIG-b"))
    assert kept.stats.dropped == {"duplicate": 1}
    kept.say(("gone", "GPU-a"))
    assert set(kept.states) == {"GPU-a", "GPU-b"}
    assert kept.home.uuids == {"GPU-b"}


def test_a_slice_whose_gpu_got_a_reader_of_its_own_stays(kept: Kept) -> None:
    kept.home.leave = frozenset({1})
    kept.say(("gone", "MIG-b"))
    assert "MIG-b" in kept.states


def test_without_a_driver_every_device_of_that_reader_is_down_until_it_is_told_otherwise(kept: Kept) -> None:
    kept.say(("problem", "not loaded", False))
    assert (kept.driver, kept.problem) == (None, "not loaded")
    assert {(found.up, found.reason) for found in kept.states.values()} == {(False, "not loaded")}
    kept.say(("open", "nvml", "575", "nvml", {}, False))
    kept.say(state("GPU-a"))
    assert (kept.driver and kept.driver.version, kept.problem) == ("575", "")
    assert [found.up for found in kept.states.values()] == [True, False, False]


def test_a_driver_that_a_gpu_s_own_reader_cannot_open_is_that_gpu_s_trouble_alone(kept: Kept) -> None:
    kept.say(("problem", "not loaded", True), apart := reader(only=1))
    assert kept.driver is not None
    assert [found.up for found in kept.states.values()] == [True, False, False]
    assert apart.stale_since is not None


def test_a_stale_library_is_remembered_from_its_first_mention_until_the_driver_opens(kept: Kept) -> None:
    kept.say(("problem", "another version", True))
    since = kept.home.stale_since
    kept.say(("problem", "another version", True))
    assert since is not None
    assert kept.home.stale_since == since
    kept.say(("open", "nvml", "575", "nvml", {}, False))
    assert kept.home.stale_since is None


def test_events_are_counted_kept_and_told_on(kept: Kept) -> None:
    kept.say(("events", [("GPU-a", 7, "xid", 79, "XID 79"), ("GPU-a", 8, "xid", 79, ""), ("", 9, "xid", 31, "")]))
    assert kept.states["GPU-a"].xids == {79: 2}
    assert kept.states["GPU-a"].last_xid == (79, 8)
    assert [event.t_ns for event in kept.told] == [event.t_ns for event in kept.events] == [7, 8, 9]


@pytest.mark.parametrize("news", [state("GPU-b"), a_round({"GPU-b": energy(1, START_NS)})])
def test_a_gpu_that_hung_is_lost_once_and_back_once_whatever_is_heard_of_it_first(
    kept: Kept, news: tuple[object, ...]
) -> None:
    kept.lose(kept.states["GPU-b"], "a call to it hangs")
    kept.lose(kept.states["GPU-b"], "a call to it hangs")
    assert (kept.states["GPU-b"].up, kept.states["GPU-b"].reason) == (False, "a call to it hangs")
    kept.say(news, reader(only=1))
    kept.say(a_round({"GPU-b": energy(2, START_NS + 10**8)}), reader(only=1))
    assert kept.states["GPU-b"].up
    assert [(event.device, event.kind) for event in kept.told] == [("GPU-b", "lost"), ("GPU-b", "back")]


@pytest.mark.parametrize("ahead_s", [0.5, 3.0, 3600.0])
def test_time_that_a_clock_was_set_ahead_by_is_not_measured(kept: Kept, ahead_s: float) -> None:
    clock = kept.time
    kept.say(about(A, ENERGY, UTILIZATION))
    for i in range(40):
        clock.advance(0.1)
        if i == 20:
            clock.set_forward(ahead_s)
        now = clock.now_ns()
        busy = [(UTILIZATION, now - NS_PER_S // 10, now, 50)]
        kept.say(a_round({"GPU-a": energy(100 * i, now) + busy}, t_ns=now))
    timeline = kept.states["GPU-a"].timeline
    # The row with the step begins at its earliest place.
    assert timeline.columns[ENERGY].total_covered_ns == 39 * NS_PER_S // 10
    assert timeline.columns[ENERGY].total_mass == 3900
    assert timeline.busy.covered_ns == 4 * NS_PER_S
