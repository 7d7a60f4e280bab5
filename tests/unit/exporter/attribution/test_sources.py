import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.exporter import GIB, GPU0, IN_POD, Host, allocations, attribution_of, left_out, rows, states_of, status

from gpu_profile.catalogue.allocation import ALLOCATION_METRICS, HELD_ENERGY, UNHELD_ENERGY
from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.clock import Waitable
from gpu_profile.errors import UsageError
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.attribution import kubelet
from gpu_profile_exporter.reader.intake import DeviceReports

JOB = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"


# ---------------------------------------------------------------------- what a source says of itself


def test_without_the_hosts_pids_nothing_is_said_of_processes_and_the_reason_is(tmp_path: Path) -> None:
    host = Host(tmp_path, host=False, containers=True, processes=True)
    host.proc.add(7, cgroup=IN_POD)
    host.runs(gpu0=[ProcessUse(7, GIB)])
    found = host.refreshed()
    assert status(found) == {"containers": "pid_namespace", "processes": "pid_namespace"}
    assert not allocations(found)
    assert not rows(found, "gpu_profile.process.memory")


def test_a_driver_that_lists_no_processes_is_a_reason_and_no_zero(tmp_path: Path) -> None:
    host = Host(tmp_path, processes=True)
    host.states = states_of(host.clock.now_ns(), None)
    found = host.refreshed()
    assert status(found) == {"processes": "no_processes"}
    assert not rows(found, "gpu_profile.process.count")


@pytest.mark.parametrize("seconds", [-1.0, 11.0])
def test_a_list_of_processes_that_is_old_or_from_the_future_is_not_used(tmp_path: Path, seconds: float) -> None:
    host = Host(tmp_path, processes=True)
    host.proc.add(7)
    host.runs(gpu0=[ProcessUse(7, GIB)])
    host.clock.advance(seconds) if seconds > 0 else host.clock.set_back(-seconds)
    assert status(host.refreshed()) == {"processes": "no_processes"}


def test_sources_that_were_not_looked_for_yet_say_so(tmp_path: Path) -> None:
    host = Host(tmp_path, pods="auto", job_mapping_dir=tmp_path / "jobs")
    assert status(host.read()) == {"kubelet": "starting", "dra": "starting", "slurm": "starting"}


def test_a_socket_and_a_directory_that_are_missing_are_reasons(tmp_path: Path) -> None:
    host = Host(tmp_path, pods="auto", job_mapping_dir=tmp_path / "none")
    assert status(host.refreshed()) == {"kubelet": "not_found", "dra": "not_found", "slurm": "not_found"}


def test_before_any_device_is_known_nothing_is_asked_and_nothing_is_counted(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs", containers=True)
    (host.jobs / "0").write_text("5")
    host.states = {}
    found = host.refreshed()
    assert status(found) == {"slurm": "no_devices", "containers": "no_devices"}
    assert left_out(found) == {}


def test_at_the_start_it_asks_again_soon_and_then_every_period(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    waits: list[float] = []

    class Clock(FakeClock):
        def wait(self, event: Waitable, timeout_s: float) -> bool:
            waits.append(timeout_s)
            if len(waits) == 9:
                event.set()  # type: ignore[attr-defined]
            known.update(states_of(self.now_ns()) if len(waits) == 7 else {})
            return super().wait(event, timeout_s)

    known: dict[str, DeviceReports] = {}
    attribution = attribution_of(
        lambda: known, pods="off", containers=False, job_mapping_dir=tmp_path / "jobs", clock=Clock()
    )
    attribution.start()
    attribution.stop(timeout_s=20)
    assert waits[:7] == [1.0] * 7
    assert set(waits[7:]) <= {10.0}


def test_a_source_that_is_off_has_no_series(tmp_path: Path) -> None:
    assert Host(tmp_path, dra=True).refreshed() == []


def test_one_source_that_breaks_does_not_touch_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, pods="auto", job_mapping_dir=tmp_path / "jobs")
    (host.jobs / "0").write_text("5")
    monkeypatch.setattr(kubelet, "list_pods", lambda _: 1 / 0)
    found = host.refreshed()
    assert status(found) == {"kubelet": "failed", "dra": "failed", "slurm": ""}
    assert len(allocations(found)) == 1


def test_what_was_found_is_not_repeated_when_the_thread_no_longer_turns(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs", labels=["job"])
    (host.jobs / "0").write_text("5")
    host.attribution.refresh()
    host.clock.advance(24)
    assert len(allocations(host.read())) == 1
    assert host.attribution.labels_for(GPU0) == {"slurm.job.id": "5"}
    host.clock.advance(2)
    assert status(host.read()) == {"slurm": "stale"}
    assert not allocations(host.read())
    assert host.attribution.labels_for(GPU0) == {}


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_step_of_the_clock_neither_takes_the_holders_away_nor_keeps_them(tmp_path: Path, ahead_s: float) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs", labels=["job"])
    (host.jobs / "0").write_text("5")
    host.attribution.refresh()
    host.clock.set_forward(ahead_s)
    assert status(host.read()) == {"slurm": ""}
    assert host.attribution.labels_for(GPU0) == {"slurm.job.id": "5"}
    assert list(host.attribution.holders()) == [GPU0]
    host.clock.advance(26)
    assert status(host.read()) == {"slurm": "stale"}
    assert host.attribution.labels_for(GPU0) == {}


def test_pods_need_grpc_and_say_which_extra_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'gpu-profile\[pods\]'"):
        Host(tmp_path, pods="on")


def test_what_is_left_out_is_published_from_zero_on(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs")
    values = [value for _, value in rows(host.read(), "gpu_profile.attribution.left_out")]
    assert values
    assert set(values) == {0}


def test_every_series_has_only_the_labels_that_its_row_of_the_catalogue_names(tmp_path: Path) -> None:
    host = Host(
        tmp_path, containers=True, processes=True, process_names=True, job_mapping_dir=tmp_path / "jobs", pods="auto"
    )
    host.proc.add(7, cgroup=IN_POD)
    host.proc.add(8, cgroup=JOB)
    host.runs(gpu0=[ProcessUse(7, GIB, 0.5), ProcessUse(8, GIB, 0.1)])
    (host.jobs / "0").write_text("5")
    found = host.refreshed()
    # The devices of this host have no energy.
    assert {reading.metric for reading in found} == set(ALLOCATION_METRICS) - {HELD_ENERGY, UNHELD_ENERGY}
    for reading in found:
        assert set(reading.attributes) <= set(reading.metric.labels)
        assert all(reading.attributes.values())
    keys = [(reading.metric.otel, tuple(sorted(reading.attributes.items()))) for reading in found]
    assert len(keys) == len(set(keys))


def test_no_metric_has_more_than_twelve_labels() -> None:
    assert max(len(metric.labels) for metric in ALLOCATION_METRICS) <= 12
    assert all(metric.otel.startswith("gpu_profile.") for metric in ALLOCATION_METRICS)


# ---------------------------------------------------------------------- running


def test_it_runs_in_a_thread_of_its_own_until_it_is_stopped(tmp_path: Path) -> None:
    turned = threading.Event()

    def states() -> Mapping[str, DeviceReports]:
        turned.set()
        return {}

    attribution = attribution_of(states, pods="off", containers=True, proc=tmp_path, period_s=3600)
    attribution.start()
    try:
        assert turned.wait(10)
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "gpu-profile-attribution")
        assert thread.daemon
    finally:
        attribution.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_scrape_does_not_wait_for_a_source_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, let_go = threading.Event(), threading.Event()

    def hang(_: Path) -> bytes:
        hung.set()
        let_go.wait(30)
        return b""

    monkeypatch.setattr(kubelet, "list_pods", hang)
    host = Host(tmp_path, pods="auto", job_mapping_dir=tmp_path / "jobs")
    host.attribution.start()
    try:
        assert hung.wait(10)
        assert status(host.read()) == {"kubelet": "starting", "dra": "starting", "slurm": "starting"}
        host.attribution.stop(timeout_s=0.01)
    finally:
        let_go.set()


def test_a_source_that_falls_silent_and_one_that_comes_back_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="gpu_profile_exporter")
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs", pods="auto")
    for act in (list, host.jobs.rmdir, host.jobs.mkdir):
        act()
        for _ in range(3):
            host.attribution.refresh()
    assert [record.message for record in caplog.records] == [
        "attribution from slurm: not_found",
        "attribution from slurm: answers again",
    ]


def test_what_was_asked_for_and_is_not_there_is_logged_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="gpu_profile_exporter")
    Host(tmp_path, job_mapping_dir=tmp_path / "none", pods="on", dra=False).attribution.refresh()
    assert [record.message for record in caplog.records] == [
        "attribution from kubelet: not_found",
        "attribution from slurm: not_found",
    ]
