from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from unit.monitor.scene import Scene, measured

from gpu_profile.errors import UsageError
from gpu_profile.monitor import GpuMonitor, gpu_profile
from gpu_profile.monitor import run as running
from gpu_profile.monitor.run import SETTLE_S
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.units import nanoseconds

# ---------------------------------------------------------------------- right numbers


def test_monitor_tells_what_the_gpu_did_during_its_block_and_not_around_it(scene: Scene) -> None:
    scene.work(1.0)
    with GpuMonitor() as monitor:
        start_ns = scene.clock.now_ns()
        scene.run(2.0)
        scene.work(3.0)
        scene.run(1.0)
        end_ns = scene.clock.now_ns()
    got = measured(monitor)
    scene.work(2.0)
    truth = scene.truth().device(scene.queue.device_uuid, start_ns, end_ns)
    assert got.duration_s == pytest.approx(6.0, abs=0.01)
    # A window of 105 ms may reach over each edge.
    assert got.busy_time_est_s == pytest.approx(truth.busy_s, abs=0.105)
    assert got.util_gpu_mean == pytest.approx(50, abs=2.5)
    assert got.util_gpu_max == pytest.approx(100, abs=0.1)
    assert got.coverage == 1.0
    assert got.energy_source == "energy"
    assert got.energy_j == pytest.approx(truth.energy_j, rel=0.03)
    assert got.sparkline[1:13] == "▁" * 12
    assert got.sparkline[14:33] == "█" * 19
    assert got.sparkline[34:] == "▁" * 6
    assert got.notes == ""


@pytest.mark.parametrize("model", ["H200 SXM", "L4"])
@pytest.mark.parametrize("length_s", [0.15, 0.5, 1.0])
def test_short_runs_are_right_to_5_percent_or_say_that_they_may_not_be(
    tmp_path: Path, model: str, length_s: float
) -> None:
    with Scene(tmp_path, scenario=f'[[device]]\nmodel = "{model}"\n') as scene:
        for i in range(6):
            phase_s = 0.5 + 0.137 * i
            if i % 2:
                scene.run(phase_s)
                scene.work(1.0)
            else:
                scene.run(1.0 + phase_s)
            with GpuMonitor() as monitor:
                if i % 2:
                    scene.run(length_s)
                else:
                    scene.work(length_s)
            got, truth_s = measured(monitor), 0.0 if i % 2 else length_s
            assert got.busy_time_est_s is not None
            right = abs(got.busy_time_est_s - truth_s) <= 0.05 * length_s
            assert right or "busy time may be" in got.notes
            assert right or length_s < 0.5


def test_identity_of_the_documents_holds_after_the_warmup(scene: Scene) -> None:
    with GpuMonitor(warmup_s=1.0) as monitor:
        scene.work(1.5)
        scene.run(2.5)
    got = measured(monitor)
    assert got.coverage == 1.0
    assert got.util_gpu_mean is not None
    assert got.busy_time_est_s == pytest.approx((got.duration_s - 1.0) * got.util_gpu_mean / 100)
    assert got.busy_time_est_s == pytest.approx(0.5, abs=0.11)
    assert got.notes == "warmup ignored: first 1.00s"


def test_wait_for_the_last_samples_is_short_and_no_part_of_the_duration(scene: Scene) -> None:
    for length_s in (0.0, 0.03, 0.5, 1.27):
        with GpuMonitor() as monitor:
            scene.run(length_s)
            end_ns = scene.clock.now_ns()
        assert scene.clock.now_ns() - end_ns <= nanoseconds(SETTLE_S)
        assert measured(monitor).duration_s == pytest.approx(length_s, abs=1e-6)
        assert measured(monitor).coverage == (1.0 if length_s else 0.0)


def test_call_whose_numbers_nobody_wants_waits_for_nothing_and_is_a_region(scene: Scene) -> None:
    @gpu_profile(report=False, strict=False)
    def step() -> int:
        scene.run(1.0)
        return 7

    begun_ns = scene.clock.now_ns()
    assert step() == 7
    assert scene.clock.now_ns() - begun_ns == nanoseconds(1.0)
    assert scene.regions() == [step.__qualname__]


def test_run_that_outlives_the_history_is_summed_up_whole(tmp_path: Path) -> None:
    with Scene(tmp_path, retention_s=10.0) as scene, GpuMonitor(warmup_s=5.0) as monitor:
        scene.run(5.0)
        for _ in range(60):
            scene.work(1.0, share=0.5)
    got = measured(monitor)
    assert got.coverage == 1.0
    assert got.duration_s == pytest.approx(65.0, abs=0.01)
    assert got.util_gpu_mean == pytest.approx(50, abs=1)
    assert got.busy_time_est_s == pytest.approx(30, abs=0.5)
    assert got.n_samples > 500
    assert got.util_gpu_max == pytest.approx(100, abs=0.1)
    assert scene.session.sampler.timelines[0].anchors == []


def test_trace_of_a_run_that_outlives_the_history_is_whole_too(tmp_path: Path) -> None:
    with Scene(tmp_path, retention_s=10.0) as scene, GpuMonitor() as monitor:
        scene.work(30.0)
        scene.run(30.0)
    trace = measured(monitor).sparkline
    assert len(trace) == 40
    assert trace[1:19] == "█" * 18
    assert trace[22:] == "▁" * 18


def test_samples_are_kept_if_asked_for(scene: Scene) -> None:
    with GpuMonitor(keep_samples=True) as monitor:
        assert monitor.samples == []
        scene.work(1.0)
        assert len(monitor.samples) >= 8
        scene.run(1.0)
    times = [sample.t_s for sample in monitor.samples]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= 2.0
    assert len(times) == pytest.approx(measured(monitor).n_samples, abs=1)
    assert {sample.util_gpu for sample in monitor.samples} >= {0.0, 100.0}
    assert all(sample.power_w and sample.mem_total_mb for sample in monitor.samples[1:])
    assert scene.session.sampler.sinks == []
    with GpuMonitor() as without:
        scene.run(1.0)
    assert without.samples == []


def test_memory_is_read_often_enough_to_see_a_short_peak(scene: Scene) -> None:
    with GpuMonitor() as monitor:
        scene.run(1.0)
        scene.queue.allocate(8 << 30)
        scene.run(0.25)
        scene.queue.free(8 << 30)
        scene.run(1.0)
    most = measured(monitor).mem_used_max_mb
    assert most is not None
    assert most >= 8192


# ---------------------------------------------------------------------- devices


def test_several_devices_have_a_summary_each_and_the_first_is_the_summary(scene: Scene) -> None:
    with GpuMonitor(device=[1, 0], keep_samples=True) as monitor:
        scene.work(2.0)
    assert [summary.device for summary in monitor.summaries] == [1, 0]
    assert monitor.summary is monitor.summaries[0]
    assert [s.util_gpu_mean for s in monitor.summaries] == pytest.approx([0, 100], abs=6)
    assert monitor.device_samples[0] == monitor.samples
    assert len(monitor.device_samples) == 2


@pytest.mark.parametrize("spec", ["all", "0,1", ["cuda:0", "cuda:1"], "nvml:0,nvml:1"])
def test_devices_go_by_any_name_that_names_them(scene: Scene, spec: Any) -> None:
    with GpuMonitor(device=spec) as monitor:
        scene.run(1.0)
    names = [summary.device for summary in monitor.summaries]
    assert names == (spec if isinstance(spec, list) else [0, 1])


def test_device_is_an_ordinal_of_cuda(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with GpuMonitor(device=0) as monitor, GpuMonitor(device="nvml:0") as physical:
        scene.work(1.0)
    assert measured(monitor).device == 0
    assert measured(monitor).util_gpu_max == pytest.approx(0, abs=0.1)
    assert measured(physical).device == "nvml:0"
    assert measured(physical).util_gpu_max == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("device", "variable", "message"),
    [
        (2, None, "device 2: CUDA shows this process 2 devices, 0 to 1"),
        (-1, None, "device -1"),
        ("GPU-nothing", None, "no device has this UUID; there are GPU-"),
        (0, "", "CUDA_VISIBLE_DEVICES is empty"),
        (0, "7,bogus", "CUDA stops at '7', which is no device here"),
        ("cpu", None, "device 'cpu': not a device"),
    ],
)
def test_device_that_is_none_is_refused_before_the_block_if_strict_and_noted_otherwise(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, device: Any, variable: str | None, message: str
) -> None:
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    ran = []
    with pytest.raises(UsageError) as caught, GpuMonitor(device=device):
        ran.append("strict")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(running, "_warned", set())
    with GpuMonitor(device=device, strict=False) as monitor:
        ran.append("lax")
    assert ran == ["lax"]
    got = measured(monitor)
    assert (got.device, got.name, got.util_gpu_mean, got.n_samples) == (device, "n/a", None, 0)
    assert message in got.notes
    assert scene.reading == []
    assert scene.session.holds == 0


def test_whole_gpus_come_first_of_simulated_devices_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cut = '[[device]]\nmodel = "H200 SXM"\n\n[[device.mig]]\nprofile = "3g.71gb"\n\n[[device]]\nmodel = "L4"\n'
    with Scene(tmp_path, scenario=cut, device=1) as scene:
        with GpuMonitor() as monitor:
            scene.run(0.5)
        assert measured(monitor).name == "NVIDIA L4"
        (instance,) = (device for device in scene.session.sampler.listed if device.parent)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", instance.uuid)
        with GpuMonitor() as monitor:
            scene.run(0.5)
        assert "MIG 3g.71gb" in measured(monitor).name
        assert measured(monitor).energy_j is None


def test_device_that_the_settings_leave_out_is_read_for_as_long_as_it_is_asked_for(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        scene.run(0.1)
        one, other = (device.uuid for device in scene.session.sampler.listed)
    process.stop()
    with Scene(tmp_path / "again", devices=[one]) as scene:
        with GpuMonitor(device=one) as monitor:
            scene.run(1.0)
        assert measured(monitor).coverage == 1.0
        assert list(scene.session.sampler.states) == [one]
        with GpuMonitor(device=other) as monitor:
            scene.run(1.0)
        assert measured(monitor).coverage == 1.0
        assert [device.uuid for device in scene.session.joiner.devices_of(Execution("step"))] == [one]


@pytest.mark.parametrize(("back_s", "left_out_s"), [(1.5, 1.5), (60.0, 6.0)])
def test_a_clock_that_is_set_back_shortens_no_run_and_what_it_showed_twice_is_not_covered(
    scene: Scene, back_s: float, left_out_s: float
) -> None:
    scene.run(1.0)
    with GpuMonitor() as monitor:
        scene.work(2.0)
        scene.run(1.0)
        scene.clock.set_back(back_s)
        scene.work(3.0)
    got = measured(monitor)
    assert got.duration_s == pytest.approx(6.0, abs=0.01)
    assert got.coverage == pytest.approx(1 - left_out_s / 6.0, abs=0.05)
    assert f"the clock was set back: {left_out_s:.3f}s of the run are left out" in got.notes


@pytest.mark.parametrize("ahead_s", [0.4, 60.0])
def test_a_clock_that_is_set_ahead_lengthens_no_run(scene: Scene, ahead_s: float) -> None:
    edges, uuid = list[int](), scene.queue.device_uuid
    scene.run(1.0)
    with GpuMonitor() as monitor:
        edges.append(scene.clock.now_ns())
        scene.work(2.0)
        scene.run(1.0)
        edges.append(scene.clock.now_ns())
        scene.clock.set_forward(ahead_s)
        edges.append(scene.clock.now_ns())
        scene.work(3.0)
        edges.append(scene.clock.now_ns())
    got = measured(monitor)
    assert got.duration_s == pytest.approx(6.0, abs=0.01)
    assert got.busy_time_est_s == pytest.approx(5.0, abs=0.3)
    assert got.coverage == pytest.approx(1.0, abs=0.05)
    assert f"the clock was set ahead by {ahead_s:.3f}s: that time is left out" in got.notes
    # The simulated GPU went on meanwhile: its growth over the step is left out if it is implausible.
    before_j, between_j, after_j = (scene.truth().device(uuid, a, b).energy_j for a, b in pairwise(edges))
    assert got.energy_j == pytest.approx(before_j + after_j, abs=0.05 * (before_j + after_j) + min(between_j, 40))
