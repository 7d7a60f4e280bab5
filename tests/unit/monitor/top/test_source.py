import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.drivers import A, B, FakeDriver, wait_for
from support.exporter import step_for
from unit.driver.node.rings import GPU, OTHER, listed, put, table, writer
from unit.monitor.top.scene import TopScene

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, ProcessUse, Sample
from gpu_profile.driver import Driver
from gpu_profile.driver.node.driver import NodeDriver
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.monitor.top import source as module
from gpu_profile.monitor.top.frame import NO_URL
from gpu_profile.monitor.top.snapshot import HolderLine, ProcessLine, TopSnapshot
from gpu_profile.monitor.top.source import TopSource
from gpu_profile.testing import FakeClock


def test_a_snapshot_has_devices_processes_and_regions(scene: TopScene) -> None:
    snapshot = scene.source.snapshot()
    assert [device.label for device in snapshot.devices] == ["0", "1", "2"]
    assert [device.up for device in snapshot.devices] == [True, True, False]
    assert snapshot.processes == (
        ProcessLine("0", 0, 4242, "python3", 60 << 30, 0.62),
        ProcessLine("0", 0, 977, "", 1 << 30, None),
    )
    assert [region.name for region in snapshot.regions] == ["forward", "train step"]
    assert (snapshot.problem, snapshot.process_note, snapshot.region_note) == ("", "", "")


def test_names_are_left_out_where_ids_may_be_of_another_namespace(
    scene: TopScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_simulated", lambda _: False)
    monkeypatch.setattr(module, "own_ids", lambda: type("Ids", (), {"on_host": False}))
    assert [process.name for process in scene.source.snapshot().processes] == ["", ""]
    monkeypatch.setattr(module, "own_ids", lambda: type("Ids", (), {"on_host": True}))
    assert [process.name for process in scene.source.snapshot().processes] == ["python3", ""]


class Loose:
    """A source over a fake driver with two devices, whose opening may fail."""

    def __init__(self, choose: module.Choose = lambda _, devices: devices) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver(self.clock, [A, B])
        self.refused: Exception | None = None
        self.source = TopSource("fake", interval_s=0.1, choose=choose, clock=self.clock, opener=self.open)

    def open(self) -> Driver:
        if self.refused is not None:
            raise self.refused
        return self.driver

    def pass_(self, seconds: float) -> TopSnapshot:
        step_for(self.source.sampler, self.clock, seconds)
        return self.source.snapshot()


def test_a_driver_that_fails_while_it_runs_and_returns() -> None:
    loose = Loose()
    assert loose.source.snapshot() == TopSnapshot(
        "fake", loose.source.snapshot().time, waiting=True, region_note=NO_URL
    )
    assert loose.pass_(3).devices[0].power_w == pytest.approx(300)
    loose.driver.gone, loose.refused = {"fast"}, GpuBackendError("it was unloaded")
    snapshot = loose.pass_(3)
    assert snapshot.problem == "it was unloaded"
    assert [(device.up, device.power_w) for device in snapshot.devices] == [(False, None)] * 2
    assert any(snapshot.devices[0].power.covered_ns)
    loose.driver.gone, loose.refused = set(), None
    snapshot = loose.pass_(3)
    assert (snapshot.problem, snapshot.devices[0].up) == ("", True)


def test_without_devices_there_is_nothing_to_show_and_no_error() -> None:
    loose = Loose()
    loose.driver.present = []
    assert loose.pass_(1).devices == ()
    assert loose.source.snapshot().problem == ""


def test_a_choice_of_missing_devices_is_the_users_error_only_at_the_start() -> None:
    def choose(_: object, devices: object) -> list[Device]:
        if not chosen:
            raise UsageError("device 'GPU-x': no device has this UUID")
        return chosen

    chosen: list[Device] = []
    loose = Loose(choose)
    loose.pass_(1)
    with pytest.raises(UsageError, match="GPU-x"):
        loose.source.checked_snapshot()
    chosen.append(B)
    assert [device.uuid for device in loose.pass_(2).devices] == [B.uuid]
    chosen.clear()
    loose.pass_(10)
    assert [device.uuid for device in loose.source.checked_snapshot().devices] == [B.uuid]


def test_a_wrong_driver_is_the_users_error_and_a_missing_one_is_waited_for() -> None:
    loose = Loose()
    loose.refused = GpuBackendError("not installed")
    loose.pass_(1)
    assert loose.source.checked_snapshot().problem == "not installed"
    with pytest.raises(GpuBackendError, match="not installed"):
        loose.source.wait()
    loose.refused = UsageError("no such directory")
    loose.pass_(2)
    with pytest.raises(UsageError, match="no such directory"):
        loose.source.checked_snapshot()


class NodeScene:
    """The timeline of a node with one GPU, and a source over it."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.directory, self.clock = directory, clock
        self.ring = writer(directory, (rows.UTILIZATION,), now_ns=clock.now_ns())
        self.row = listed(GPU, self.ring.name)
        self.put()
        self.source = TopSource(
            "node", interval_s=0.1, clock=clock, opener=lambda: NodeDriver(directory, clock=clock, files=directory)
        )

    def put(self, **changes: object) -> None:
        put(self.directory, table(replace(self.row, **changes)), self.clock.now_ns())  # type: ignore[arg-type]

    def pass_(self, seconds: float, **changes: object) -> TopSnapshot:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            now = self.clock.now_ns()
            self.ring.append([Sample(rows.UTILIZATION, now - 100_000_000, now, 40)])
            self.put(**changes)
            self.source.sampler.step()
        return self.source.snapshot()


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> NodeScene:
    return NodeScene(tmp_path, clock)


def test_the_nodes_timeline_needs_no_nvml(node: NodeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    snapshot = node.pass_(3)
    assert snapshot.source == f"node:{node.directory} (nvml)"
    assert snapshot.devices[0].utilisation == pytest.approx(0.4)


def test_holders_of_the_nodes_table(node: NodeScene) -> None:
    pod = {"k8s.namespace.name": "team", "k8s.pod.name": "train-0", "k8s.container.name": "main"}
    holders = (
        pod,
        pod,
        {"k8s.pod.uid": "0f1e"},
        {"slurm.job.id": "17", "container.id": "4f" * 32},
        {"systemd.unit.name": "x.service"},
        {"container.id": "ab" * 32},
        {"color": "red"},
    )
    assert node.pass_(2, holders=holders).holders == tuple(
        HolderLine("0", 0, kind, name)
        for kind, name in (
            ("pod", "team/train-0 (main)"),
            ("pod", "0f1e"),
            ("Slurm job", "17 (4f4f4f4f4f4f)"),
            ("unit", "x.service"),
            ("container", "ab" * 32),
            ("holder", "color=red"),
        )
    )


def test_a_table_without_processes_says_why(node: NodeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not list processes (--processes)" in node.pass_(1).process_note
    assert node.pass_(6, processes=()).process_note == "none that the driver lists"
    snapshot = node.pass_(6, processes=(ProcessUse(7, 1 << 20),))
    assert ([process.pid for process in snapshot.processes], snapshot.process_note) == ([7], "")
    monkeypatch.setattr(module, "pid_namespace", lambda: "pid:[1]")
    assert "another PID namespace" in node.pass_(6, processes=()).process_note


def test_a_timeline_whose_writer_has_ended_keeps_its_history(node: NodeScene) -> None:
    node.pass_(3)
    node.clock.advance(10)
    for _ in range(3):
        node.source.sampler.step()
    snapshot = node.source.snapshot()
    assert "its writer is gone" in snapshot.problem
    assert any(snapshot.devices[0].busy.covered_ns)
    assert OTHER.uuid not in {device.uuid for device in snapshot.devices}


def test_the_thread_samples_until_it_is_stopped() -> None:
    loose = Loose()
    loose.source.start()
    wait_for(lambda: loose.source.snapshot().devices)
    loose.source.stop()
    assert loose.driver.closed
