from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue import Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.driver import Driver
from gpu_profile.driver.replay import ReplayDriver
from gpu_profile.errors import RecordingError, UsageError
from gpu_profile.recording import RecordingWriter
from gpu_profile.testing import START_NS, FakeClock

T = 1_700_000_000_000_000_000
MS = 1_000_000
GPU = Device("GPU-1", index=0, name="A100")
MIG = Device("MIG-1", parent="GPU-1", kind=DeviceKind.MIG)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Power every 100 ms for 0.5 s, energy every 200 ms, one event at 250 ms, memory of a MIG instance at 50 ms."""
    with RecordingWriter(tmp_path, now_ns=lambda: T, driver="nvml", driver_version="580.1") as writer:
        writer.device(MIG)
        writer.device(GPU)
        writer.samples("GPU-1", (Sample(rows.POWER, *window(n, 100), 100 + n) for n in range(6)))
        writer.samples("GPU-1", (Sample(rows.ENERGY, *instant(n, 200), 50 + 10 * n) for n in range(3)))
        writer.sample("MIG-1", Sample(rows.MEMORY_USED, *instant(1, 50), 7))
        writer.event(Event("GPU-1", T + 250 * MS, "xid", 48))
    return tmp_path


def window(n: int, every: int, base: int = T) -> tuple[int, int]:
    return base + (n * every - 25) * MS, base + n * every * MS


def instant(n: int, every: int, base: int = T) -> tuple[int, int]:
    return base + n * every * MS, base + n * every * MS


def brief(samples: object) -> list[tuple[str, int, int]]:
    assert isinstance(samples, list)
    return [(sample.signal.key, (sample.t_end_ns - START_NS) // MS, sample.value) for sample in samples]


def test_samples_fall_due_as_they_were_recorded_counted_from_the_start(directory: Path, clock: FakeClock) -> None:
    driver: Driver = ReplayDriver(directory, clock=clock)
    assert list(driver.drain(GPU)) == [
        Sample(rows.POWER, START_NS - 25 * MS, START_NS, 100),
        Sample(rows.ENERGY, START_NS, START_NS, 50),
    ]
    assert list(driver.drain(GPU)) == []
    clock.advance(0.2)
    assert brief(driver.drain(GPU)) == [("power", 100, 101), ("power", 200, 102), ("energy", 200, 60)]
    assert brief(driver.drain(MIG)) == [("memory_used", 50, 7)]
    clock.advance(100)
    assert brief(driver.drain(GPU)) == [
        ("power", 300, 103),
        ("power", 400, 104),
        ("energy", 400, 70),
        ("power", 500, 105),
    ]
    assert list(driver.drain(GPU)) == list(driver.drain(MIG)) == []


def test_events_fall_due_like_samples(directory: Path, clock: FakeClock) -> None:
    driver = ReplayDriver(directory, clock=clock)
    clock.advance(0.249)
    assert list(driver.events()) == []
    clock.advance(0.001)
    assert list(driver.events()) == [Event("GPU-1", START_NS + 250 * MS, "xid", 48)]
    assert list(driver.events()) == []


def test_a_higher_speed_squeezes_time_and_leaves_values(directory: Path, clock: FakeClock) -> None:
    driver = ReplayDriver(directory, clock=clock, speed=10)
    clock.advance(0.02)
    assert brief(driver.drain(GPU)) == [
        ("power", 0, 100),
        ("energy", 0, 50),
        ("power", 10, 101),
        ("power", 20, 102),
        ("energy", 20, 60),
    ]


def test_without_shift_the_time_stamps_stay_as_recorded(directory: Path, clock: FakeClock) -> None:
    driver = ReplayDriver(directory, clock=clock, shift=False)
    clock.advance(0.1)
    assert list(driver.drain(GPU)) == [
        Sample(rows.POWER, *window(0, 100), 100),
        Sample(rows.ENERGY, *instant(0, 200), 50),
        Sample(rows.POWER, *window(1, 100), 101),
    ]


def test_a_loop_starts_again_after_the_usual_step_and_counters_go_on(directory: Path, clock: FakeClock) -> None:
    driver = ReplayDriver(directory, clock=clock, loop=True)
    clock.advance(0.5)
    driver.drain(GPU)
    driver.events()
    clock.advance(0.3)
    # The recording's moments lie 50, 50, 100, 50, 50, 100, 100 ms apart: a lap takes 500 ms and their median, 50 ms.
    assert brief(driver.drain(GPU)) == [
        ("power", 550, 100),
        ("energy", 550, 70),
        ("power", 650, 101),
        ("power", 750, 102),
        ("energy", 750, 80),
    ]
    clock.advance(2)
    samples = driver.drain(GPU)
    ends = [sample.t_end_ns for sample in samples]
    energy = [sample.value for sample in samples if sample.signal is rows.ENERGY]
    assert ends == sorted(ends)
    assert energy == sorted(energy)
    assert energy[0] >= 80
    assert energy[-1] >= 120
    assert len(driver.events()) == 4


def test_devices_come_as_recorded_with_parents_first(directory: Path) -> None:
    driver = ReplayDriver(directory)
    assert list(driver.devices()) == [GPU, MIG]
    assert driver.version == "580.1"
    assert driver.name == f"replay:{directory}"


def test_a_device_whose_description_was_lost_is_known_by_its_uuid(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path) as writer:
        writer.sample("MIG-9", Sample(rows.MEMORY_USED, T, T, 1))
    assert list(ReplayDriver(tmp_path).devices()) == [Device("MIG-9", kind=DeviceKind.MIG)]


def test_only_what_was_recorded_is_available(directory: Path) -> None:
    driver = ReplayDriver(directory)
    capabilities = driver.capabilities(GPU)
    assert {row.key for row, can in capabilities.items() if can.available} == {"power", "energy"}
    assert capabilities[rows.SM].reason == "not in the recording"
    assert not any(can.available for can in driver.capabilities(Device("GPU-other")).values())


def test_everything_comes_from_drain(directory: Path) -> None:
    driver = ReplayDriver(directory)
    assert [*driver.read(GPU, Tier.FAST), *driver.boundary(GPU), *driver.processes(GPU)] == []
    assert list(driver.drain(Device("GPU-other"))) == []


def test_a_clock_that_is_set_back_repeats_nothing(directory: Path) -> None:
    clock = FakeClock(START_NS)
    driver = ReplayDriver(directory, clock=clock)
    clock.advance(0.5)
    assert len(driver.drain(GPU)) == 9
    clock._now_ns = START_NS - 1
    assert list(driver.drain(GPU)) == []
    clock._now_ns = START_NS + 500 * MS
    assert list(driver.drain(GPU)) == []


@pytest.mark.parametrize("ahead_s", [3600.0, 0.3, -0.3, -3600.0])
def test_a_clock_that_is_set_moves_the_samples_and_neither_delays_nor_hurries_the_replay(
    directory: Path, clock: FakeClock, ahead_s: float
) -> None:
    driver = ReplayDriver(directory, clock=clock)
    clock.advance(0.2)
    before = len(driver.drain(GPU)) + len(driver.drain(MIG))
    clock.set_forward(ahead_s)
    assert [driver.drain(GPU), driver.events()] == [[], []]
    clock.advance(0.1)
    ahead_ms = round(ahead_s * 1000)
    assert brief(driver.drain(GPU)) == [("power", 300 + ahead_ms, 103)]
    assert [event.t_ns for event in driver.events()] == [START_NS + (250 + ahead_ms) * MS]
    clock.advance(10)
    assert before + 1 + len(driver.drain(GPU)) == 10


def test_a_recording_without_samples_can_be_replayed(tmp_path: Path) -> None:
    RecordingWriter(tmp_path).close()
    driver = ReplayDriver(tmp_path, loop=True)
    assert (list(driver.devices()), list(driver.events()), driver.problems) == ([], [], ())


def test_what_the_recording_lost_is_told(directory: Path) -> None:
    (path,) = directory.glob("*.gpr")
    with path.open("ab") as file:
        file.write(b"torn")
    assert "4 bytes lost" in ReplayDriver(directory).problems[0]


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_a_speed_that_is_not_positive_is_refused(directory: Path, speed: float) -> None:
    with pytest.raises(UsageError, match="not a positive number"):
        ReplayDriver(directory, speed=speed)


def test_a_loop_with_the_recorded_time_stamps_is_refused(directory: Path) -> None:
    with pytest.raises(UsageError, match="time would run backwards"):
        ReplayDriver(directory, loop=True, shift=False)


def test_a_directory_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="not a recording"):
        ReplayDriver(tmp_path)


@given(
    ends=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
    steps=st.lists(st.integers(1, 700), max_size=10),
    loop=st.booleans(),
)
def test_however_often_it_is_drained_each_sample_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, ends: list[int], steps: list[int], loop: bool
) -> None:
    directory = tmp_path_factory.mktemp("recording")
    with RecordingWriter(directory) as writer:
        writer.samples("GPU-1", (Sample(rows.TEMPERATURE, T + end, T + end, n) for n, end in enumerate(ends)))
    often_clock, once_clock = FakeClock(), FakeClock()
    often = ReplayDriver(directory, clock=often_clock, loop=loop)
    once = ReplayDriver(directory, clock=once_clock, loop=loop)
    drained = list(often.drain(GPU))
    for step in steps:
        for clock in (often_clock, once_clock):
            clock.advance(step / 1e9)
        drained += often.drain(GPU)
    assert drained == list(once.drain(GPU))
    assert [sample.t_end_ns for sample in drained] == sorted(sample.t_end_ns for sample in drained)
    if not loop:
        due = sum(end - min(ends) <= sum(steps) for end in ends)
        assert len(drained) == due
