from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exporter import (
    CONTAINER,
    DEVICES,
    GIB,
    GPU0,
    GPU1,
    IN_POD,
    MIG0,
    POD_UID,
    FakeDriver,
    FakeProc,
    Host,
    allocations,
    attribution_of,
    left_out,
    rows,
    states_of,
    status,
    step_for,
)

from gpu_profile.catalogue.allocation import HOLDER_LABELS
from gpu_profile.catalogue.samples import Device, ProcessUse
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.attribution.allocation import DeviceHolder, labels, within
from gpu_profile_exporter.attribution.snapshot import LEFT_OUT_OF
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionCounts, OmissionReason

JOB = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"


class Busy(FakeDriver):
    def processes(self, device: Device) -> Sequence[ProcessUse]:
        return [ProcessUse(7, GIB, 0.5)] if device.uuid == GPU0 else []


def test_it_reads_what_the_sampler_found(tmp_path: Path, clock: FakeClock) -> None:
    sampler = Sampler(lambda: Busy(clock, DEVICES[:2], {}), processes=True, clock=clock)
    step_for(sampler, clock, 3)
    proc = FakeProc(tmp_path / "proc")
    proc.add(7, cgroup=JOB)
    attribution = attribution_of(
        lambda: sampler.states, pods="off", containers=True, processes=True, clock=clock, proc=proc.root
    )
    attribution.refresh()
    found = list(attribution.readings(clock.now_ns()))
    assert status(found) == {"containers": "", "processes": ""}
    assert [(a["hw.id"], a["slurm.job.id"]) for a in allocations(found)] == [(GPU0, "42")]
    assert rows(found, "gpu_profile.process.count") == [({"hw.id": GPU0}, 1), ({"hw.id": GPU1}, 0)]


def test_a_device_is_held_by_the_containers_jobs_and_units_of_its_processes(tmp_path: Path) -> None:
    host = Host(tmp_path, containers=True)
    host.proc.add(7, cgroup=IN_POD)
    host.proc.add(8, cgroup=JOB)
    host.proc.add(9, cgroup="0::/system.slice/triton.service")
    host.runs(gpu0=[ProcessUse(7, GIB)], gpu1=[ProcessUse(8, GIB), ProcessUse(9, GIB)])
    assert allocations(host.refreshed()) == [
        {
            "hw.id": GPU0,
            "source": "containers",
            "container.id": CONTAINER,
            "container.runtime.name": "containerd",
            "k8s.pod.uid": POD_UID,
        },
        {"hw.id": GPU1, "source": "containers", "slurm.job.id": "42", "slurm.step.id": "0"},
        {"hw.id": GPU1, "source": "containers", "systemd.unit.name": "triton.service"},
    ]


def test_many_processes_of_one_container_are_one_holder(tmp_path: Path) -> None:
    host = Host(tmp_path, containers=True)
    for pid in range(2, 10):
        host.proc.add(pid, cgroup=IN_POD)
    host.runs(gpu0=[ProcessUse(pid) for pid in range(2, 10)])
    assert len(allocations(host.refreshed())) == 1


def test_a_mapping_directory_says_which_job_holds_a_gpu_or_an_instance(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs")
    (host.jobs / "0").write_text("11\n12\n")
    (host.jobs / "1.3").write_text("13\n")
    (host.jobs / "1").touch()
    (host.jobs / "9").write_text("14\n")
    (host.jobs / "notes.txt").write_text("15\n")
    found = host.refreshed()
    assert allocations(found) == [
        {"hw.id": GPU0, "source": "slurm", "slurm.job.id": "11"},
        {"hw.id": GPU0, "source": "slurm", "slurm.job.id": "12"},
        {"hw.id": MIG0, "source": "slurm", "slurm.job.id": "13"},
    ]
    assert status(found) == {"slurm": ""}
    assert left_out(found) == {("slurm", "unknown_device"): 1, ("slurm", "garbage"): 1}


def test_processes_are_published_with_what_they_hold_and_where_they_run(tmp_path: Path) -> None:
    host = Host(tmp_path, containers=True, processes=True)
    host.proc.add(7, cgroup=JOB, comm="train")
    host.runs(gpu0=[ProcessUse(7, 3 * GIB, 0.25)])
    found = host.refreshed()
    about = {"hw.id": GPU0, "process.pid": "7", "slurm.job.id": "42", "slurm.step.id": "0"}
    assert rows(found, "gpu_profile.process.memory") == [(about, 3 * GIB)]
    assert rows(found, "gpu_profile.process.utilization") == [(about, 0.25)]
    assert ({"hw.id": GPU0}, 1) in rows(found, "gpu_profile.process.count")


@pytest.mark.parametrize(("asked", "name"), [(False, None), (True, "train")])
def test_names_of_processes_are_published_only_when_asked_for_and_arguments_never(
    tmp_path: Path, asked: bool, name: str | None
) -> None:
    host = Host(tmp_path, processes=True, process_names=asked)
    host.proc.add(7, comm="train")
    host.runs(gpu0=[ProcessUse(7, GIB)])
    found = host.refreshed()
    ((about, _),) = rows(found, "gpu_profile.process.memory")
    assert about.get("process.executable.name") == name
    assert "SECRET" not in str(found)


def test_a_job_is_what_the_cgroup_says_and_never_what_a_process_says_of_itself(tmp_path: Path) -> None:
    host = Host(tmp_path, containers=True, processes=True, process_names=True)
    host.proc.add(7, cgroup="0::/user.slice/user-1000.slice/session-3.scope")
    host.runs(gpu0=[ProcessUse(7, GIB)])
    found = host.refreshed()
    assert allocations(found) == [{"hw.id": GPU0, "source": "containers", "systemd.unit.name": "session-3.scope"}]
    assert "666" not in str(found)


def test_nothing_is_kept_of_jobs_and_processes_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old = Host(
        tmp_path / "old", containers=True, processes=True, job_mapping_dir=tmp_path / "jobs", labels=list(HOLDER_LABELS)
    )
    new = Host(
        tmp_path / "new", containers=True, processes=True, job_mapping_dir=tmp_path / "jobs", labels=list(HOLDER_LABELS)
    )
    (tmp_path / "jobs").mkdir()
    for turn in range(50):
        (tmp_path / "jobs" / "0").write_text(f"{turn}")
        old.proc.add(100 + turn, cgroup=JOB.replace("42", str(turn)))
        old.runs(gpu0=[ProcessUse(100 + turn, GIB)])
        old.attribution.refresh()
        if turn < 49:
            old.proc.end(100 + turn)
    new.proc.add(149, cgroup=JOB.replace("42", "49"))
    new.runs(gpu0=[ProcessUse(149, GIB)])
    new.attribution.refresh()
    assert old.attribution._snapshot == new.attribution._snapshot


def test_a_quantity_that_the_driver_does_not_tell_is_absent(tmp_path: Path) -> None:
    host = Host(tmp_path, processes=True)
    host.proc.add(7)
    host.runs(gpu0=[ProcessUse(7)])
    found = host.refreshed()
    assert not rows(found, "gpu_profile.process.memory")
    assert not rows(found, "gpu_profile.process.utilization")


def test_a_process_that_ended_is_gone_at_the_next_scrape_not_the_next_refresh(tmp_path: Path) -> None:
    host = Host(tmp_path, processes=True)
    host.proc.add(7)
    host.proc.add(8)
    host.runs(gpu0=[ProcessUse(7, GIB), ProcessUse(8, GIB)])
    host.attribution.refresh()
    host.runs(gpu0=[ProcessUse(8, GIB)])
    assert [a["process.pid"] for a, _ in rows(host.read(), "gpu_profile.process.memory")] == ["8"]


def test_a_pid_that_came_back_as_another_process_does_not_inherit_its_place(tmp_path: Path) -> None:
    host = Host(tmp_path, containers=True, processes=True)
    host.proc.add(7, cgroup=JOB, started_s=100)
    host.runs(gpu0=[ProcessUse(7, GIB)])
    host.attribution.refresh()
    # The driver's list is from before the new process began.
    host.clock.advance(2)
    host.proc.up(10_002)
    host.proc.add(7, cgroup=IN_POD, started_s=10_001)
    found = host.refreshed()
    assert allocations(found) == []
    assert not rows(found, "gpu_profile.process.memory")
    assert left_out(found) == {("processes", "pid_reused"): 1}
    host.runs(gpu0=[ProcessUse(7, GIB)])
    (held,) = allocations(host.refreshed())
    assert held["container.id"] == CONTAINER


def test_the_processes_of_a_lost_device_are_gone_and_those_of_others_stay(tmp_path: Path) -> None:
    host = Host(tmp_path, processes=True)
    host.proc.add(7)
    host.proc.add(8)
    host.runs(gpu0=[ProcessUse(7, GIB)], gpu1=[ProcessUse(8, GIB)])
    host.attribution.refresh()
    host.states[GPU0].up = False
    for found in (host.read(), host.refreshed()):
        assert [a["hw.id"] for a, _ in rows(found, "gpu_profile.process.memory")] == [GPU1]


def test_the_processes_of_a_device_that_hangs_are_gone_when_their_list_is_old(tmp_path: Path) -> None:
    host = Host(tmp_path, processes=True)
    host.proc.add(7)
    host.runs(gpu0=[ProcessUse(7, GIB)])
    host.attribution.refresh()
    host.clock.advance(9)
    assert rows(host.read(), "gpu_profile.process.memory")
    host.clock.advance(2)
    assert not rows(host.read(), "gpu_profile.process.memory")
    assert not rows(host.read(), "gpu_profile.process.count")


def test_a_device_that_is_taken_away_has_no_holder(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs")
    (host.jobs / "1.3").write_text("5")
    host.attribution.refresh()
    host.states = {uuid: state for uuid, state in host.states.items() if uuid != MIG0}
    assert allocations(host.read()) == []


def test_processes_beyond_the_budget_are_one_series_called_other(tmp_path: Path) -> None:
    host = Host(tmp_path, processes=True, most_rows=2)
    for pid in range(1, 6):
        host.proc.add(pid)
    host.runs(gpu0=[ProcessUse(pid, pid * GIB) for pid in range(1, 6)])
    found = host.refreshed()
    memory = {a["process.pid"]: value for a, value in rows(found, "gpu_profile.process.memory")}
    assert memory == {"5": 5 * GIB, "4": 4 * GIB, "other": 6 * GIB}
    assert left_out(found) == {("processes", "budget"): 3}


def test_holders_beyond_the_budget_are_left_out_and_counted_at_once(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs", most_rows=3)
    (host.jobs / "0").write_text("\n".join(str(job) for job in range(10, 20)))
    found = host.refreshed()
    assert [a["slurm.job.id"] for a in allocations(found)] == ["10", "11", "12"]
    assert left_out(found) == {("slurm", "budget"): 7}


# ---------------------------------------------------------------------- labels on a device's own series


def held(uuid: str, source: HolderSource, **attributes: str) -> DeviceHolder:
    return DeviceHolder.of(uuid, source, {key.replace("_", "."): value for key, value in attributes.items()})


def test_labels_are_off_by_default(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs")
    (host.jobs / "0").write_text("5")
    host.attribution.refresh()
    assert host.attribution.labels_for(GPU0) == {}


def test_a_label_is_what_all_holders_of_a_device_agree_on(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs", labels=["job"])
    (host.jobs / "0").write_text("5")
    (host.jobs / "1").write_text("5\n6\n")
    host.attribution.refresh()
    assert host.attribution.labels_for(GPU0) == {"slurm.job.id": "5"}
    assert host.attribution.labels_for(GPU1) == {}
    assert host.attribution.labels_for("GPU-unheard-of") == {}


def test_a_holder_of_whom_nothing_is_known_takes_the_label_away() -> None:
    known = held("g", HolderSource.KUBELET, a="1")
    assert labels([known], ["a"]) == {"g": {"a": "1"}}
    assert labels([known, DeviceHolder("g", HolderSource.KUBELET, ())], ["a"]) == {"g": {}}


def test_sources_that_contradict_each_other_take_the_label_away_and_silent_ones_do_not() -> None:
    told, silent = held("g", HolderSource.SLURM, a="1"), held("g", HolderSource.CONTAINERS, b="x")
    assert labels([told, silent], ["a", "b"]) == {"g": {"a": "1", "b": "x"}}
    assert labels([told, held("g", HolderSource.CONTAINERS, a="2")], ["a"]) == {"g": {}}


holders = st.lists(
    st.builds(
        DeviceHolder.of,
        st.sampled_from(["g0", "g1"]),
        st.sampled_from(HolderSource),
        st.dictionaries(st.sampled_from(sorted(HOLDER_LABELS.values())), st.sampled_from(["", "x", "y"])),
    )
)


@given(holders, st.randoms(use_true_random=False))
def test_labels_do_not_depend_on_the_order_and_name_no_value_that_a_holder_denies(
    found: list[DeviceHolder], random: Any
) -> None:
    wanted = sorted(HOLDER_LABELS.values())
    told = labels(found, wanted)
    shuffled = list(found)
    random.shuffle(shuffled)
    assert labels(shuffled, wanted) == told
    for uuid, pairs in told.items():
        for key, value in pairs.items():
            assert value
            assert {dict(row.attributes).get(key, value) for row in found if row.uuid == uuid} == {value}


@given(holders, st.integers(1, 5))
def test_what_is_kept_and_what_is_counted_are_everything_that_was_said(found: list[DeviceHolder], most: int) -> None:
    tally = OmissionCounts()
    kept = within(found, most, tally)
    told = {row for row in found if row.attributes}
    assert set(kept) <= told
    assert len(kept) + sum(tally.values()) == len(told)
    assert {why for _, why in tally} <= {OmissionReason.BUDGET}
    assert within(reversed(found), most, OmissionCounts()) == kept


def test_the_counts_cover_every_reason_that_a_source_can_leave_out() -> None:
    assert set(LEFT_OUT_OF) == set(HolderSource)
    assert {device.uuid for device in DEVICES} == set(states_of(0))
