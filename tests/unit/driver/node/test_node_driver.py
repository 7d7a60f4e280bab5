"""The driver `node`: what it serves, when it says that a device or its writer is gone, and who gets it by `auto`."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.driver.node.rings import GPU, MIG, OTHER, listed, put, table, writer

from gpu_profile import catalogue
from gpu_profile.catalogue import Signal, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, ProcessUse, Sample
from gpu_profile.driver import Capability, grammar, live_driver
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.node.driver import BATCH_S, STALE_S, NodeDriver
from gpu_profile.driver.node.table import TimelineTable, parse, pid_namespace
from gpu_profile.driver.node.writer import RingWriter
from gpu_profile.driver.null import SilentDriver
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.history.timeline import Column
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile.units import NS_PER_S

SIGNALS = (rows.ENERGY, rows.TEMPERATURE, rows.SM)


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> "Node":
    return Node(tmp_path, clock)


class Node:
    """A writer of one GPU's samples, on a clock that is moved by hand."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.directory, self.clock = directory, clock
        self.value = 0
        self.ring = self.begin()
        self.list(listed(GPU, self.ring.name))

    def begin(self) -> RingWriter:
        return writer(self.directory, SIGNALS, now_ns=self.clock.now_ns())

    def list(self, *devices: object, **about: object) -> None:
        put(self.directory, table(*devices, **about), self.clock.now_ns())  # type: ignore[arg-type]

    def touch(self) -> None:
        os.utime(self.directory / "table.json", ns=(self.clock.now_ns(), self.clock.now_ns()))

    def write(self, ring: RingWriter | None = None) -> Sample:
        self.clock.advance(0.1)
        self.value += 1
        sample = Sample(rows.ENERGY, self.clock.now_ns(), self.clock.now_ns(), self.value)
        (ring or self.ring).append([sample])
        self.touch()
        return sample

    def open(self, **options: object) -> NodeDriver:
        return NodeDriver(self.directory, clock=self.clock, files=self.directory / "dev", **options)  # type: ignore[arg-type]


def test_it_serves_what_is_written_from_its_start_on_and_the_newest_before(node: Node) -> None:
    node.write()
    newest = node.write()
    driver = node.open()
    assert driver.name == f"node:{node.directory}"
    assert (driver.recorded_driver, driver.version, driver.interval_s) == ("nvml", "580.1", 0.1)
    assert driver.devices() == [GPU]
    assert driver.read(GPU, Tier.FAST) == [newest]
    later = [node.write(), node.write()]
    assert driver.read(GPU, Tier.FAST) == later
    assert driver.read(GPU, Tier.FAST) == []
    assert [driver.read(GPU, tier) for tier in (Tier.SLOW, Tier.RARE, Tier.GPM)] == [(), (), ()]


def test_rows_that_were_overwritten_unread_are_counted_also_when_their_file_is_gone(node: Node) -> None:
    node.write()
    driver = node.open()
    driver.read(GPU, Tier.FAST)
    assert driver.lost_rows == 0
    for _ in range(10_000):
        node.write()
    driver.read(GPU, Tier.FAST)
    lost = driver.lost_rows
    assert lost > 1_000
    newer = node.begin()
    node.write(newer)
    node.list(listed(GPU, newer.name))
    driver.read(GPU, Tier.FAST)
    assert driver.lost_rows == lost
    driver.close()
    assert driver.lost_rows == lost


def test_it_serves_the_past_too_for_one_who_asks(node: Node) -> None:
    written = [node.write() for _ in range(100)]
    driver = node.open(history_s=2.0)
    past = driver.read(GPU, Tier.FAST)
    assert past == written[-21:]
    later = node.write()
    assert driver.read(GPU, Tier.FAST) == [later]


def test_a_file_that_cannot_be_opened_is_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    last = node.write()
    driver = node.open()
    with monkeypatch.context() as patched:
        patched.setattr("gpu_profile.driver.node.driver.RingReader", too_many_files)
        with pytest.raises(DeviceLost, match="no sample of GPU-a yet"):
            driver.read(GPU, Tier.FAST)
        assert driver.capabilities(GPU)[rows.ENERGY].reason.endswith(".ring: Too many open files")
    assert driver.read(GPU, Tier.FAST) == [last]
    assert driver.capabilities(GPU)[rows.ENERGY].available


def too_many_files(*_: object, **__: object) -> None:
    raise OSError(24, "Too many open files")


def test_what_a_device_can_is_what_its_file_has_and_why_not_what_its_writer_says(node: Node) -> None:
    node.write()
    told = node.open().capabilities(GPU)
    assert {row for row, can in told.items() if can.available} == set(SIGNALS)
    assert told[rows.TENSOR].reason == "needs Hopper"
    assert told[rows.DRAM].reason == "not in the node's timeline"
    fewer = node.open(groups=()).capabilities(GPU)
    assert {row for row, can in fewer.items() if can.available} == {rows.ENERGY, rows.TEMPERATURE}


def test_a_new_writer_s_file_is_read_from_its_beginning_and_the_old_one_s_rest_with_it(node: Node) -> None:
    node.write()
    driver = node.open()
    driver.read(GPU, Tier.FAST)
    last = node.write()
    newer = node.begin()
    first = node.write(newer)
    node.list(listed(GPU, newer.name, node.ring.name))
    assert driver.read(GPU, Tier.FAST) == [last, first]
    # The old writer wakes, and both write.
    both = [node.write(newer), node.write(node.ring), node.write(newer)]
    assert driver.read(GPU, Tier.FAST) == both
    node.list(listed(GPU, newer.name))
    node.write(node.ring)
    assert driver.read(GPU, Tier.FAST) == []


def test_a_device_that_its_writer_has_lost_is_lost_and_back_when_it_says_so(node: Node) -> None:
    node.write()
    driver = node.open()
    node.list(listed(GPU, node.ring.name, up=False, reason="fell off the bus"), listed(OTHER))
    with pytest.raises(DeviceLost, match="fell off the bus"):
        driver.read(GPU, Tier.FAST)
    node.list(listed(GPU, node.ring.name))
    assert driver.read(GPU, Tier.FAST)


def test_a_device_whose_samples_stop_is_lost_though_the_table_is_kept(node: Node) -> None:
    node.write()
    driver = node.open()
    driver.read(GPU, Tier.FAST)
    node.clock.advance(STALE_S + 0.1)
    node.touch()
    with pytest.raises(DeviceLost, match="no sample of GPU-a for 4 s"):
        driver.read(GPU, Tier.FAST)
    node.write()
    assert driver.read(GPU, Tier.FAST)


def test_without_a_keeper_there_is_no_driver(node: Node) -> None:
    node.write()
    driver = node.open()
    node.clock.advance(STALE_S + 1)
    with pytest.raises(GpuBackendError, match="was last kept 5 s ago: its writer is gone"):
        driver.read(GPU, Tier.FAST)
    with pytest.raises(GpuBackendError, match="its writer is gone"):
        node.open()
    node.list(listed(GPU, node.ring.name), ended=True)
    with pytest.raises(GpuBackendError, match="has ended"):
        driver.read(GPU, Tier.FAST)
    node.list(problem="NVML: not found")
    with pytest.raises(GpuBackendError, match="NVML: not found"):
        driver.devices()


def test_a_folder_without_a_timeline_is_named(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(GpuBackendError, match=f"no timeline of this node in {tmp_path}: No such file"):
        NodeDriver(tmp_path, clock=clock)


def test_a_folder_that_anybody_may_write_to_is_not_trusted(node: Node) -> None:
    node.directory.chmod(0o777)
    with pytest.raises(GpuBackendError, match="anybody may write to its directory"):
        node.open()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 3}',
        '{"version": 2}',
        '{"version": 1}',
        '{"version":1,"devices":7}',
        "\x00" * 50,
        "1" * 5000,
    ],
)
def test_a_table_that_is_none_is_refused_with_the_reason(node: Node, text: str) -> None:
    (node.directory / "table.json").write_text(text)
    node.touch()
    with pytest.raises(GpuBackendError, match="not a table that can be read"):
        node.open()


def test_equal_gpus_share_the_reasons_for_signals_that_are_not_read() -> None:
    other = replace(listed(OTHER, "b.ring"), absent={"sm": "needs Hopper"})
    made = table(listed(GPU, "a.ring"), other, listed(MIG, "c.ring"))
    assert parse(made.text) == made
    assert made.text.count("needs Hopper") == 2


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_table_makes_it_fail_otherwise(data: st.DataObject) -> None:
    whole = json.loads(table(listed(GPU, "a.ring"), listed(MIG, "b.ring")).text)
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    )
    if data.draw(st.booleans()):
        whole[data.draw(st.sampled_from(sorted(whole)))] = data.draw(junk)
    else:
        row = whole["devices"][0]
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(junk)
    try:
        found = parse(json.dumps(whole))
    except ValueError:
        return
    assert isinstance(found, TimelineTable)


def test_a_table_comes_back_as_it_was_written() -> None:
    one = table(
        listed(GPU, "b.ring", "a.ring"),
        listed(MIG, up=False, reason="gone"),
        events=[Event("GPU-a", 5, "xid", 79, "fell off"), Event("GPU-a", 6, "lost")],
    )
    assert parse(one.text) == one


def test_a_file_s_name_leads_nowhere_else(node: Node) -> None:
    found = parse(table(listed(GPU, "../x.ring", "/etc/passwd", ".hidden", "good.ring")).text)
    assert found.devices[0].files == ("good.ring",)


def test_a_file_that_cannot_be_read_or_is_another_device_s_is_left_out_with_the_reason(node: Node) -> None:
    (node.directory / "bad.ring").write_bytes(b"x" * 500)
    other = writer(node.directory, SIGNALS, device=OTHER)
    node.list(listed(GPU, "bad.ring", other.name, "none.ring"))
    driver = node.open()
    assert driver.capabilities(GPU)[rows.ENERGY].reason.startswith("bad.ring: not a file of the node's timeline")
    with pytest.raises(DeviceLost, match="no sample of GPU-a yet"):
        driver.read(GPU, Tier.FAST)


def test_it_shows_the_devices_whose_files_this_process_sees_and_all_where_there_are_none(node: Node) -> None:
    dev = node.directory / "dev"
    slice_ = MIG.__class__("MIG-a", parent=GPU.uuid, kind=DeviceKind.MIG)
    node.list(listed(GPU, node.ring.name), listed(slice_), listed(OTHER))
    driver = node.open()
    assert [d.uuid for d in driver.devices()] == ["GPU-a", "MIG-a", "GPU-b"]
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia¹"):
        (dev / name).touch()
    assert [d.uuid for d in driver.devices()] == ["GPU-a", "MIG-a"]
    assert not driver.covers_all_gpus, "there are no samples yet"
    node.write()
    driver = node.open()
    assert driver.covers_all_gpus
    (dev / "nvidia7").touch()
    assert not driver.covers_all_gpus


def test_events_are_told_once_from_its_start_on(node: Node) -> None:
    old = Event("GPU-a", node.clock.now_ns(), "xid", 13)
    node.list(listed(GPU, node.ring.name), events=[old])
    driver = node.open()
    node.clock.advance(1)
    new = Event("GPU-a", node.clock.now_ns(), "xid", 79)
    node.list(listed(GPU, node.ring.name), events=[old, new])
    assert driver.events() == [new]
    assert driver.events() == []
    node.clock.set_back(3600)
    another = Event("GPU-a", node.clock.now_ns(), "xid", 48)
    node.list(listed(GPU, node.ring.name), events=[old, new, another])
    assert driver.events() == [another]
    assert driver.events() == []


def test_users_of_a_device_are_told_only_by_the_numbers_that_this_process_has_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = ProcessUse(4711, 5, 0.5)
    one = listed(GPU, node.ring.name)
    node.list(one.__class__(GPU, True, "", one.files, {}, (use,)))
    driver = node.open()
    assert driver.processes(GPU) == (use,)
    assert pid_namespace().startswith("pid:[")
    monkeypatch.setattr("gpu_profile.driver.node.driver.pid_namespace", lambda: "pid:[1]")
    assert driver.processes(GPU) == ()


@pytest.fixture
def auto(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], str]:
    """What `auto` chooses for who wants samples this often, on a machine without NVML."""
    monkeypatch.setenv("GPU_PROFILE_TIMELINE", str(node.directory))

    def choose(node_s: float | None) -> str:
        try:
            return open_driver("auto", clock=node.clock, node_s=node_s).name
        except GpuBackendError as error:
            return str(error).partition(":")[0]

    return choose


def test_auto_takes_the_timeline_if_it_is_kept_and_fine_enough(node: Node, auto: Callable[[float | None], str]) -> None:
    node.write()
    assert auto(0.1) == auto(1e9) == f"node:{node.directory}"
    assert auto(0.05) == auto(None) == "no GPU driver"
    node.list(listed(GPU, node.ring.name, up=False, reason="lost"))
    assert auto(0.1) == "no GPU driver"
    node.list(listed(GPU, node.ring.name), ended=True)
    assert auto(0.1) == "no GPU driver"


class Nvml(SilentDriver):
    """Stands for NVML: one GPU, whose energy counter says 1 J more each time."""

    name, version = "nvml", "580.1"
    superseded: Callable[[], bool] | None = None

    def __init__(self, clock: FakeClock) -> None:
        self._clock, self._value = clock, 0

    def devices(self) -> Sequence[Device]:
        return [GPU]

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        return {signal: Capability(signal is rows.ENERGY) for signal in catalogue.SIGNALS}

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        self._value += 1000
        now = self._clock.now_ns()
        return [Sample(rows.ENERGY, now, now, self._value)] if tier is Tier.FAST else ()


def test_who_fell_back_to_nvml_goes_on_with_the_timeline_once_it_is_kept_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PROFILE_TIMELINE", str(node.directory))
    monkeypatch.setattr(grammar, "_nvml", lambda clock, **_: Nvml(node.clock))
    node.list(listed(GPU, node.ring.name), ended=True)
    sampler = Sampler(lambda: open_driver("auto", clock=node.clock, node_s=0.1), clock=node.clock)
    for _ in range(30):
        sampler.step()
        node.clock.advance(0.1)
    assert sampler.driver is not None
    assert sampler.driver.name == "nvml"
    node.list(listed(GPU, node.ring.name))
    node.value = 40_000
    for _ in range(100):
        node.write()
        sampler.step()
    assert sampler.driver.name == f"node:{node.directory}"
    state = sampler.states[GPU.uuid]
    assert state.up
    assert not sampler.problem
    assert node.clock.now_ns() - (state.timeline.columns[rows.ENERGY].watermark_ns or 0) < 1_000_000_000
    assert [event.kind for event in sampler.events] == []
    # Who asked for samples more often than the timeline has them stays.
    finer = Sampler(lambda: open_driver("auto", clock=node.clock, node_s=0.05), interval_s=0.05, clock=node.clock)
    for _ in range(100):
        node.write()
        finer.step()
    assert finer.driver is not None
    assert finer.driver.name == "nvml"


@pytest.fixture
def fallback(node: Node, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    """A sampler that reads the timeline by `auto`, on a machine with NVML."""
    monkeypatch.setenv("GPU_PROFILE_TIMELINE", str(node.directory))
    monkeypatch.setattr(grammar, "_nvml", lambda clock, **_: Nvml(node.clock))
    node.write()
    sampler = Sampler(lambda: open_driver("auto", clock=node.clock, node_s=0.1), clock=node.clock)
    sampler.step()
    assert sampler.driver is not None
    assert sampler.driver.name.startswith("node:")
    return sampler


def test_auto_goes_on_with_nvml_where_the_timeline_is_kept_but_has_no_new_samples(
    node: Node, fallback: Sampler
) -> None:
    """Its exporter's reader is stopped, or its file system is full."""
    for _ in range(110):
        node.clock.advance(0.1)
        node.touch()
        fallback.step()
    assert fallback.driver is not None
    assert fallback.driver.name == "nvml"
    assert fallback.states[GPU.uuid].up
    node.write()
    for _ in range(60):
        node.write()
        fallback.step()
    assert fallback.driver.name.startswith("node:")


def test_where_no_other_driver_can_be_opened_no_file_of_the_timeline_stays_open(
    node: Node, fallback: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(clock: FakeClock, **_: object) -> Nvml:
        raise GpuBackendError("no NVML here")

    monkeypatch.setattr(grammar, "_nvml", gone)
    monkeypatch.setattr(grammar, "_smi", gone)

    def opened() -> int:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(link.readlink().suffix == ".ring" for link in links)

    before = opened()
    for _ in range(150):
        node.clock.advance(0.1)
        node.touch()
        fallback.step()
    assert fallback.driver is None
    assert "no NVML here" in fallback.problem
    assert opened() < before
    for _ in range(30):
        node.write()
        fallback.step()
    assert fallback.driver is not None
    assert fallback.states[GPU.uuid].up


def test_auto_waits_for_a_device_that_the_timeline_calls_lost(node: Node, fallback: Sampler) -> None:
    """A call of NVML could hang where the exporter's has."""
    node.list(listed(GPU, node.ring.name, up=False, reason="its reader hangs"))
    for _ in range(110):
        node.clock.advance(0.1)
        node.touch()
        fallback.step()
    assert fallback.driver is not None
    assert fallback.driver.name.startswith("node:")
    assert fallback.states[GPU.uuid].reason == "its reader hangs"


def test_when_the_timeline_ends_its_last_samples_are_read_and_nvml_follows_at_once(
    node: Node, fallback: Sampler
) -> None:
    fallback.step(force=True)
    last = [node.write(), node.write()]
    node.list(listed(GPU, node.ring.name), ended=True)
    column = fallback.states[GPU.uuid].timeline.columns[rows.ENERGY]
    fallback.step(force=True)
    assert column.watermark_ns == last[-1].t_end_ns
    fallback.step(force=True)
    fallback.step()
    assert fallback.driver is not None
    assert fallback.driver.name == "nvml"


@pytest.mark.parametrize("offset", [8, 200])
def test_auto_takes_no_timeline_whose_files_cannot_be_read(
    node: Node, auto: Callable[[float | None], str], offset: int
) -> None:
    """Of another version, or damaged."""
    node.write()
    path = node.directory / node.ring.name
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    assert auto(0.1) == "no GPU driver"
    with pytest.raises(DeviceLost, match=r"no sample of GPU-a yet \(.*(version|damaged)"):
        node.open().read(GPU, Tier.FAST)


def test_the_wait_for_the_last_samples_is_short_however_rarely_they_come(node: Node) -> None:
    put(node.directory, replace(table(listed(GPU, node.ring.name)), interval_s=20.0), node.clock.now_ns())
    assert node.open().lag_s <= 3.0


def test_it_can_be_named_with_and_without_its_folder(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PROFILE_TIMELINE", str(node.directory))
    assert open_driver("node", clock=node.clock).name == open_driver(f"node:{node.directory}", clock=node.clock).name
    with pytest.raises(GpuBackendError, match="no directory after 'node'"):
        open_driver("node:", clock=node.clock)


def test_a_sampler_reads_it_in_batches_and_has_all_samples(node: Node) -> None:
    node.write()
    sampler = Sampler(node.open, interval_s=0.05, clock=node.clock)
    due = node.clock.now_ns()
    for _ in range(60):
        node.write()
        if node.clock.now_ns() >= due:
            due = node.clock.now_ns() + round(sampler.step() * 1e9)
    sampler.step(force=True)
    (timeline,) = sampler.timelines
    assert len(timeline.columns[rows.ENERGY]) == node.value - 1  # but for the first, which was there before
    assert sampler.interval_s == 0.1
    # Devices and events are due with the rows: waking up for them alone costs as much as reading.
    assert sampler.stats.rounds <= 6.0 / BATCH_S + 2
    sampler.stop()


def test_a_sampler_goes_on_when_the_writer_was_away(node: Node) -> None:
    node.write()
    sampler = Sampler(node.open, interval_s=0.1, clock=node.clock)
    sampler.step()
    node.clock.advance(10)
    sampler.step()
    assert sampler.driver is None
    assert "its writer is gone" in sampler.problem
    newer = node.begin()
    node.list(listed(GPU, newer.name, node.ring.name))
    node.clock.advance(1)
    fresh = [node.write(newer), node.write(newer)]
    sampler.step(force=True)
    (timeline,) = sampler.timelines
    assert timeline.columns[rows.ENERGY].watermark_ns == fresh[-1].t_end_ns
    sampler.stop()


def test_its_samples_are_those_of_the_driver_that_read_them(node: Node) -> None:
    assert live_driver(node.open()) == "nvml"
    assert live_driver(open_driver("none", clock=node.clock)) == "none"


def test_a_table_that_is_replaced_twice_between_two_looks_is_read_again_on_any_file_system(node: Node) -> None:
    node.write()
    driver = node.open()
    for n in range(50):
        for name in ("NVIDIA A", "NVIDIA B"):
            node.clock.advance(0.01)
            node.list(listed(GPU.__class__(GPU.uuid, name=f"{name}{n:02}"), node.ring.name))
        assert driver.devices()[0].name == f"NVIDIA B{n:02}"


def test_a_table_that_is_a_folder_or_nested_without_end_is_refused_and_costs_no_descriptor(node: Node) -> None:
    table_file = node.directory / "table.json"
    table_file.write_text("[" * 100_000)
    node.touch()
    with pytest.raises(GpuBackendError, match="not a table that can be read"):
        node.open()
    table_file.unlink()
    table_file.mkdir()
    node.touch()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
    for _ in range(5):
        with pytest.raises(GpuBackendError, match="not a regular file"):
            node.open()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("ahead_s", [0.5, 3.0, 60.0, 3600.0])
def test_a_reader_covers_no_time_that_the_clock_of_the_node_was_set_ahead_by(
    node: Node, ahead_s: float, late: int
) -> None:
    """The writer's samples arrive late, so that some from before the step come after it."""
    column = sampled_over(node, ahead_s, late)
    # Around the step, at most some samples are lost. The rows have the rate of one quantum in 0.1 s.
    assert 10 * NS_PER_S <= column.total_covered_ns <= 12 * NS_PER_S
    assert column.total_mass * 10**8 == pytest.approx(column.total_covered_ns, abs=1e8)
    assert column.dropped["clock set back"] == 0


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("back_s", [0.5, 3.0, 60.0, 3600.0])
def test_a_reader_goes_on_when_the_clock_of_the_node_is_set_back(node: Node, back_s: float, late: int) -> None:
    column = sampled_over(node, -back_s, late)
    assert 11 * NS_PER_S <= column.total_covered_ns <= 12 * NS_PER_S
    assert column.total_mass == 119
    assert column.watermark_ns == node.clock.now_ns()
    assert column.dropped["clock set back"] == 1


def sampled_over(node: Node, ahead_s: float, late: int) -> Column:
    """The energy counter of a reader over 12 s, which grows by 1 in 0.1 s. In the middle, the clock is set ahead."""
    sampler = Sampler(node.open, clock=node.clock)
    for i in range(120):
        if i == 60:
            node.clock.set_forward(ahead_s)
            node.touch()
        node.write()
        if i not in range(60 - late, 60):
            sampler.step(force=True)
    assert sampler.driver is not None
    return sampler.timelines[0].columns[rows.ENERGY]
