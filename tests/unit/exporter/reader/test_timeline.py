"""The exporter's part of the node's timeline: files that its readers write, and the table that it keeps."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import printed
from unit.driver.node.rings import GPU, OTHER, making, writer
from unit.exporter.reader.pipes import FakeProcess, Time, a_round, about, state

from gpu_profile.catalogue.samples import Event, Sample
from gpu_profile.catalogue.signals import ENERGY, PCIE_RX, TEMPERATURE
from gpu_profile.driver.node.reader import RingReader
from gpu_profile.driver.node.table import TableFile, TimelineTable
from gpu_profile.errors import UsageError
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.reader.intake import Intake
from gpu_profile_exporter.reader.ring import RETRY_NS, DeviceRing
from gpu_profile_exporter.reader.settings import ReaderSettings
from gpu_profile_exporter.reader.timeline import NodeTimeline, TimelineOptions
from gpu_profile_exporter.reader.wire import Message

# ---------------------------------------------------------------------- without a timeline


def test_an_exporter_and_readers_load_the_timelines_format_only_for_one() -> None:
    rooms = "gpu_profile.driver.node", "gpu_profile_exporter.reader.timeline"
    code = f"""import sys, gpu_profile_exporter.node, gpu_profile_exporter.reader.child
print([name for name in sys.modules if name.startswith({rooms})])"""
    assert printed("-c", code) == "[]\n"


# ---------------------------------------------------------------------- a reader's files


def energy(at: int) -> list[Sample]:
    return [Sample(ENERGY, at, at, at)]


def test_a_file_is_made_with_the_first_sample_and_a_new_one_where_there_are_more_signals(tmp_path: Path) -> None:
    ring = DeviceRing(making(tmp_path), "GPU-a", [ENERGY])
    assert ring.name == ""
    ring.append(energy(1), 1)
    first = ring.name
    ring.add([ENERGY])
    assert ring.name == first
    ring.add([PCIE_RX])
    ring.append([*energy(2), Sample(PCIE_RX, 2, 2, 9)], 2)
    assert ring.name != first
    assert RingReader(tmp_path / first).read() == energy(1)
    assert set(RingReader(tmp_path / ring.name).read()) == {*energy(2), Sample(PCIE_RX, 2, 2, 9)}


def test_a_folder_that_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    ring = DeviceRing(making(folder), "GPU-a", [ENERGY])
    for at in range(1, 20):
        ring.append(energy(at), at)
    assert len(caplog.records) == 1
    assert caplog.messages[0] == f"the timeline in {folder} has no samples of GPU-a: No such file or directory"
    folder.mkdir()
    ring.append(energy(21), 21)
    assert ring.name == ""
    ring.append(energy(22), 19 + RETRY_NS)
    assert RingReader(folder / ring.name).read() == energy(22)


def test_a_file_that_was_removed_meanwhile_is_made_anew(tmp_path: Path) -> None:
    ring = DeviceRing(making(tmp_path), "GPU-a", [ENERGY])
    ring.append(energy(1), 1)
    first = ring.name
    (tmp_path / first).unlink()
    ring.append(energy(2), 2)
    assert ring.name == first
    ring.append(energy(3), 100 * 10**9)
    assert RingReader(tmp_path / ring.name).read() == energy(3)


def test_a_full_disk_costs_samples_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ring = DeviceRing(making(tmp_path), "GPU-a", [ENERGY])
    ring.append(energy(1), 1)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        ring.append(energy(2), 2)
        ring.append(energy(3), 3)
    ring.append(energy(4), 4)
    assert RingReader(tmp_path / ring.name).read() == energy(1) + energy(4)
    assert caplog.messages == [f"the timeline in {tmp_path} has no samples of GPU-a: No space left on device"]


# ---------------------------------------------------------------------- the table


class Kept:
    """A timeline that is kept for what readers say, on a clock that is moved by hand."""

    def __init__(self, folder: Path, clock: FakeClock, **place: object) -> None:
        self.clock, self.folder = clock, folder
        self.timeline = NodeTimeline(TimelineOptions(folder, **place), interval_s=0.1, clock=clock)  # type: ignore[arg-type]
        self.intake = Intake(interval_s=0.1, clock=clock, timeline=self.timeline)
        self.reader = FakeProcess(ReaderSettings("nvml", 0.1, (), False, -1, -1, -1), Time())

    def say(self, *messages: object) -> None:
        for message in messages:
            self.intake.take(self.reader, message)  # type: ignore[arg-type]

    def table(self) -> TimelineTable:
        self.timeline._touch_due = 0.0
        self.intake.keep_timeline()
        return TableFile(self.folder).read()


OPEN: Message = ("open", "nvml", "580.1", "nvml", {}, False)


@pytest.fixture
def kept(tmp_path: Path, clock: FakeClock) -> Iterator[Kept]:
    found = Kept(tmp_path / "timeline", clock)
    yield found
    found.intake.keep_timeline(ended=True)


def test_it_lists_devices_with_their_files_the_newest_first(kept: Kept) -> None:
    assert kept.table().problem == "not started"
    kept.say(OPEN, about(GPU, ENERGY), ("file", GPU.uuid, "a.ring"), about(OTHER, ENERGY))
    kept.say(("file", GPU.uuid, "b.ring"), ("file", GPU.uuid, "b.ring"), ("file", OTHER.uuid, ""))
    found = kept.table()
    assert (found.driver, found.driver_version, found.problem, found.interval_s) == ("nvml", "580.1", "", 0.1)
    assert [(one.device, one.up, one.files) for one in found.devices] == [
        (GPU, True, ("b.ring", "a.ring")),
        (OTHER, True, ()),
    ]
    assert found.devices[0].absent["power"]
    assert "energy" not in found.devices[0].absent


def test_what_becomes_of_a_device_and_of_the_driver_is_in_it(kept: Kept) -> None:
    kept.say(OPEN, about(GPU, ENERGY), state(GPU.uuid, up=False, reason="fell off the bus"))
    kept.say(("events", [("GPU-a", 5, "xid", 79, "")]))
    found = kept.table()
    assert (found.devices[0].up, found.devices[0].reason) == (False, "fell off the bus")
    assert found.events == (Event("GPU-a", 5, "xid", 79, ""),)
    kept.say(("problem", "NVML: not found", False))
    assert kept.table().problem == "NVML: not found"


def test_it_is_touched_while_nothing_changes_and_replaced_only_when_something_does(kept: Kept) -> None:
    kept.say(OPEN, about(GPU, ENERGY))
    kept.table()
    file = kept.folder / "table.json"
    before = file.stat()
    kept.clock.advance(7)
    kept.table()
    after = file.stat()
    assert after.st_ino == before.st_ino
    assert after.st_mtime_ns == kept.clock.now_ns() == before.st_mtime_ns + 7 * 10**9
    kept.say(state(GPU.uuid, up=False, reason="lost"))
    kept.table()
    assert file.stat().st_ino != before.st_ino


def test_a_table_that_was_taken_away_is_written_again(kept: Kept) -> None:
    kept.say(OPEN)
    kept.table()
    (kept.folder / "table.json").unlink()
    kept.timeline._touch_due = 0.0
    kept.intake.keep_timeline()
    assert kept.table().driver == "nvml"


def test_who_may_read_it_is_as_was_asked(tmp_path: Path, clock: FakeClock) -> None:
    kept = Kept(tmp_path / "t", clock, mode=0o640, group=os.getgid())
    kept.say(OPEN)
    kept.table()
    assert oct((tmp_path / "t").stat().st_mode & 0o777) == "0o750"
    assert oct((tmp_path / "t/table.json").stat().st_mode & 0o777) == "0o640"
    kept.intake.keep_timeline(ended=True)


def test_two_exporters_do_not_keep_one_folder_and_the_next_one_takes_over_its_history(
    tmp_path: Path, clock: FakeClock
) -> None:
    first = Kept(tmp_path, clock)
    older, newer = (writer(tmp_path, [ENERGY], now_ns=at) for at in (5, 9))
    (tmp_path / ("0" * 16 + ".ring")).write_bytes(b"junk")
    (tmp_path / ".table.json.12345").write_text("half")
    with pytest.raises(UsageError, match=f"--timeline: another exporter keeps {tmp_path}"):
        Kept(tmp_path, clock)
    first.say(OPEN)
    first.intake.keep_timeline(ended=True)
    assert TableFile(tmp_path).read().ended
    second = Kept(tmp_path, clock)
    second.say(OPEN, about(GPU, ENERGY))
    found = second.table()
    assert not found.ended
    assert found.devices[0].files == (newer.name, older.name)
    assert not (tmp_path / ".table.json.12345").exists()
    second.intake.keep_timeline(ended=True)


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--timeline: .*/file/x: Not a directory"):
        Kept(tmp_path / "file" / "x", clock)


def test_files_that_nobody_writes_to_go_after_the_time_for_which_samples_are_kept(
    tmp_path: Path, clock: FakeClock
) -> None:
    old, live, foreign = writer(tmp_path, [ENERGY]), writer(tmp_path, [ENERGY]), tmp_path / "notes.ring"
    foreign.write_text("mine")
    long_ago = time.time() - 11
    for path in (tmp_path / old.name, foreign):
        os.utime(path, (long_ago, long_ago))
    kept = Kept(tmp_path, clock, retention_s=10.0)
    kept.say(OPEN, about(GPU, ENERGY))
    kept.timeline._sweep()
    assert (tmp_path / old.name).exists()  # the clock may have been set
    kept.timeline._sweep()
    assert not (tmp_path / old.name).exists()
    assert foreign.exists()
    assert kept.table().devices[0].files == (live.name,)
    kept.intake.keep_timeline(ended=True)


def test_after_a_step_of_the_clock_files_that_are_written_to_stay(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = writer(tmp_path, [ENERGY])
    kept = Kept(tmp_path, clock, retention_s=10.0)
    monkeypatch.setattr("gpu_profile_exporter.reader.timeline.time.time_ns", lambda: int(9e18))
    for at in range(3):
        kept.timeline._sweep()
        live.append([Sample(ENERGY, at, at, at)])
        os.utime(tmp_path / live.name, ns=(at, at))
    assert (tmp_path / live.name).exists()
    kept.intake.keep_timeline(ended=True)


def test_samples_that_arrive_by_pipe_need_no_timeline(clock: FakeClock) -> None:
    intake = Intake(interval_s=0.1, clock=clock)
    reader = FakeProcess(ReaderSettings("nvml", 0.1, (), False, -1, -1, -1), Time())
    for message in (OPEN, about(GPU, TEMPERATURE), ("file", GPU.uuid, "a.ring"), a_round()):
        intake.take(reader, message)  # type: ignore[arg-type]
    intake.keep_timeline()
    assert intake.timeline_settings == {}


def test_a_folder_that_was_there_keeps_its_rights_unless_it_is_this_user_s_alone(
    tmp_path: Path, clock: FakeClock
) -> None:
    for before, after in ((0o1777, 0o1777), (0o711, 0o711), (0o700, 0o755)):
        folder = tmp_path / oct(before)
        folder.mkdir()
        folder.chmod(before)
        Kept(folder, clock).intake.keep_timeline(ended=True)
        assert oct(folder.stat().st_mode & 0o7777) == oct(after)


def test_a_table_that_somebody_replaced_and_a_folder_that_is_gone_are_made_anew(kept: Kept) -> None:
    kept.say(OPEN, about(GPU, ENERGY))
    kept.table()
    (kept.folder / "junk").write_text("{}")
    (kept.folder / "junk").replace(kept.folder / "table.json")
    assert kept.table().driver == "nvml"
    kept.folder.rename(kept.folder.with_name("moved"))
    for _ in range(2):
        kept.timeline._touch_due = 0.0
        kept.intake.keep_timeline()
    assert TableFile(kept.folder).read().driver == "nvml"


def test_a_file_that_is_deleted_while_it_is_written_is_made_anew(tmp_path: Path) -> None:
    ring = DeviceRing(making(tmp_path), "GPU-a", [ENERGY])
    ring.append(energy(1), 10**9)
    (tmp_path / ring.name).unlink()
    for at in range(2, 80):
        ring.append(energy(at), at * 10**8 + 10**9)
    (path,) = tmp_path.glob("*.ring")
    assert path.name == ring.name
    assert RingReader(path).read()[-1].value == 79
