from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from monitor_support import Scene

from gpu_profile import GpuBackendError, configure, process
from gpu_profile.errors import UnknownBackendError, UsageError
from gpu_profile.executions import Execution
from gpu_profile.gpu_summary import GpuSummary, ProfiledResult
from gpu_profile.monitor import GpuMonitor, gpu_profile
from gpu_profile.monitor import run as running
from gpu_profile.monitor.run import SETTLE_S
from gpu_profile.units import nanoseconds


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as scene:
        yield scene


@pytest.fixture
def off() -> Iterator[None]:
    """A process without a driver: what is tested is not about numbers."""
    configure(backend="none")
    yield
    process.stop()
    configure()


@pytest.fixture
def no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose driver cannot be opened."""
    configure(backend=f"replay:{tmp_path / 'nothing'}")
    monkeypatch.setattr(running, "_warned", set())
    yield
    process.stop()
    configure()


def measured(monitor: GpuMonitor) -> GpuSummary:
    assert monitor.summary is not None
    return monitor.summary


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
        assert [device.uuid for device in scene.session.devices_of(Execution("step"))] == [one]


# ---------------------------------------------------------------------- drivers


def test_unknown_backend_is_refused_before_the_function_runs(off: None) -> None:
    ran = []

    @gpu_profile(backend="nvlm")
    def work() -> None:
        ran.append(1)

    with pytest.raises(UnknownBackendError, match=r"unknown driver 'nvlm'.*did you mean 'nvml'\?"):
        work()
    assert ran == []


def test_missing_driver_is_an_error_if_strict(no_driver: None, tmp_path: Path) -> None:
    ran = []

    @gpu_profile
    def work() -> None:
        ran.append(1)

    for call in (work, gpu_profile(report=False)(work.__wrapped__)):  # type: ignore[attr-defined]
        with pytest.raises(GpuBackendError, match=str(tmp_path / "nothing")):
            call()
    with pytest.raises(GpuBackendError), GpuMonitor():
        ran.append(2)
    assert ran == []


def test_missing_driver_is_one_warning_and_a_note_if_not(no_driver: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        with GpuMonitor(strict=False) as monitor:
            pass
        assert "recording" in measured(monitor).notes
        assert measured(monitor).util_gpu_mean is None
    assert len(caplog.records) == 1


def test_unknown_backend_is_one_warning_and_a_note_if_not_strict(
    off: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_warned", set())
    for _ in range(2):
        with GpuMonitor(backend="nvlm", strict=False) as monitor:
            pass
        assert "unknown driver 'nvlm'" in measured(monitor).notes
    assert len(caplog.records) == 1


def test_backend_none_is_a_dry_run_however_it_was_chosen(scene: Scene) -> None:
    with GpuMonitor(backend="none") as monitor:
        scene.run(0.1)
    assert measured(monitor).notes == "sampling is off (backend none)"
    assert measured(monitor).duration_s == pytest.approx(0.1)
    assert scene.regions() == []


def test_backend_none_of_the_whole_process_serves_auto(off: None) -> None:
    with GpuMonitor() as monitor:
        pass
    assert measured(monitor).notes == "sampling is off (backend none)"


def test_process_that_is_switched_off_measures_nothing_and_prints_nothing(
    off: None, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(backend="none", enabled=False)
    synced: list[int] = []
    assert gpu_profile(sync_fn=lambda: synced.append(1))(lambda: 3)() == 3
    result = gpu_profile(return_profile=True)(lambda: 4)()
    assert (result.value, result.gpu.notes) == (4, "gpu-profile is switched off")
    with GpuMonitor(sync_fn=lambda: synced.append(1)) as monitor:
        pass
    assert measured(monitor).notes == "gpu-profile is switched off"
    assert synced == []
    assert capsys.readouterr().out == ""


def test_monitors_share_one_sampler_that_runs_at_the_smallest_interval(scene: Scene) -> None:
    sampler = scene.session.sampler
    assert sampler.interval_s == 0.05
    with GpuMonitor(interval_s=0.02):
        assert sampler.interval_s == 0.02
        with GpuMonitor(interval_s=0.01), GpuMonitor(interval_s=1.0):
            assert sampler.interval_s == 0.01
            assert scene.session.holds == 3
        assert sampler.interval_s == 0.02
    assert sampler.interval_s == 0.05
    assert scene.session.holds == 0
    assert len([sampler]) == 1


def test_session_that_is_ended_meanwhile_leaves_a_summary_of_what_there_was(scene: Scene) -> None:
    with GpuMonitor() as monitor:
        scene.work(1.0)
        process.stop()
        scene.clock.advance(1.0)
    got = measured(monitor)
    assert got.coverage == pytest.approx(0.5, abs=0.06)
    assert "sampling stopped early: the session was ended" in got.notes


def test_gpu_that_is_lost_meanwhile_leaves_a_summary_of_what_there_was(tmp_path: Path) -> None:
    lost = '[[device]]\nmodel = "H200 SXM"\n\n[[fault]]\nkind = "gpu_lost"\ndevice = 0\nfrom_s = 2.0\n'
    with Scene(tmp_path, scenario=lost) as scene:
        with GpuMonitor() as monitor:
            scene.work(2.0)
            scene.run(2.0)
            end_ns = scene.clock.now_ns()
        assert scene.clock.now_ns() - end_ns < nanoseconds(0.1)
    got = measured(monitor)
    assert got.coverage == pytest.approx(0.5, abs=0.05)
    assert got.busy_time_est_s == pytest.approx(2.0, abs=0.11)
    assert "sampling stopped early: " in got.notes
    assert "samples cover" in got.notes


# ---------------------------------------------------------------------- the block


def test_summary_is_none_before_the_block_has_ended(scene: Scene) -> None:
    monitor = GpuMonitor()
    assert (monitor.summary, monitor.summaries, monitor.samples) == (None, (), [])
    with monitor as entered:
        assert entered is monitor
        assert monitor.summary is None
        scene.run(0.1)
    assert monitor.summary is not None


def test_monitor_cannot_be_entered_while_it_runs_and_can_be_used_again_afterwards(scene: Scene) -> None:
    monitor = GpuMonitor()
    with monitor:
        with pytest.raises(UsageError, match="is running already"), monitor:
            pass
        scene.run(1.0)
    first = monitor.summary
    with monitor:
        assert monitor.summary is None
        scene.run(2.0)
    assert measured(monitor) is not first
    assert measured(monitor).duration_s == pytest.approx(2.0, abs=0.01)


def test_monitor_that_was_refused_can_be_used_again(no_driver: None) -> None:
    monitor = GpuMonitor()
    for _ in range(2):
        with pytest.raises(GpuBackendError), monitor:
            pass


def test_async_block_is_measured_too(scene: Scene) -> None:
    async def main() -> GpuSummary:
        async with GpuMonitor() as monitor:
            scene.work(1.0)
            with pytest.raises(UsageError):
                await monitor.__aenter__()
        return measured(monitor)

    assert asyncio.run(main()).util_gpu_mean == pytest.approx(100, abs=6)


def test_error_in_the_block_passes_through_and_the_summary_is_made(scene: Scene) -> None:
    monitor = GpuMonitor()

    def fails() -> None:
        with monitor:
            scene.run(1.0)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert measured(monitor).duration_s == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"interval_s": 0}, ValueError, "interval_s must be a positive number of seconds, not 0"),
        ({"interval_s": -0.1}, ValueError, "not -0.1"),
        ({"interval_s": math.nan}, ValueError, "interval_s"),
        ({"interval_s": math.inf}, ValueError, "interval_s"),
        ({"warmup_s": -1}, ValueError, "warmup_s must be a number of seconds of at least 0, not -1"),
        ({"warmup_s": math.nan}, ValueError, "warmup_s"),
        ({"sync_fn": 3}, TypeError, "sync_fn is a function"),
        ({"sync_fn": "cuda"}, TypeError, "'cuda'"),
        ({"backend": None}, TypeError, "backend is a name"),
        ({"device": []}, ValueError, "names no device"),
        ({"device": [[0, 1]]}, TypeError, "or a list of such names"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    for made in (GpuMonitor, gpu_profile):
        with pytest.raises(error, match=message) as caught:
            made(**options)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- sync_fn


def test_sync_fn_is_called_before_and_after_and_the_run_ends_with_it(scene: Scene) -> None:
    called: list[str] = []

    def sync() -> None:
        called.append("sync")
        scene.run(scene.queue.pending_ns / 1e9)

    @gpu_profile(sync_fn=sync, return_profile=True, report=False)
    def launch() -> None:
        called.append("launch")
        scene.queue.launch(running_work(2.0))

    scene.queue.launch(running_work(1.0))
    result = launch()
    assert called == ["sync", "launch", "sync"]
    assert result.gpu.duration_s == pytest.approx(2.0, abs=0.01)
    assert result.gpu.util_gpu_mean == pytest.approx(100, abs=6)
    scene.session.settle(final=True)
    (region,) = scene.ended
    assert region.end_ns - region.start_ns == pytest.approx(nanoseconds(2.0), rel=0.01)


def running_work(seconds: float) -> Any:
    from gpu_profile.driver.simulated import Work

    return Work(seconds=seconds, flops=1e12)


def test_sync_fn_that_fails_before_reaches_the_user_and_the_function_does_not_run(scene: Scene) -> None:
    ran: list[int] = []

    def fails() -> None:
        raise RuntimeError("device-side assert")

    with pytest.raises(RuntimeError, match="device-side assert"):
        gpu_profile(sync_fn=fails)(ran.append)(1)
    monitor = GpuMonitor(sync_fn=fails)
    with pytest.raises(RuntimeError, match="device-side assert"), monitor:
        ran.append(2)
    assert ran == []
    assert scene.reading == []


def failing_second() -> Callable[[], None]:
    calls = iter([None, RuntimeError("device-side assert")])

    def sync() -> None:
        error = next(calls)
        if error is not None:
            raise error

    return sync


def test_sync_fn_that_fails_after_reaches_the_user_once_the_summary_is_made(scene: Scene) -> None:
    seen: list[GpuSummary] = []
    with pytest.raises(RuntimeError, match="device-side assert"):
        gpu_profile(sync_fn=failing_second(), report=seen.append)(scene.run)(1.0)
    assert seen[0].duration_s == pytest.approx(1.0, abs=0.01)
    monitor = GpuMonitor(sync_fn=failing_second())
    with pytest.raises(RuntimeError, match="device-side assert"), monitor:
        scene.run(1.0)
    assert measured(monitor).duration_s == pytest.approx(1.0, abs=0.01)
    assert scene.reading == []


def test_functions_own_error_wins_over_that_of_sync_fn_and_report(scene: Scene) -> None:
    def report(_: GpuSummary) -> None:
        raise OSError("disk full")

    @gpu_profile(sync_fn=failing_second(), report=report)
    def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        work()
    assert caught.value.__notes__ == [
        "gpu-profile: sync_fn raised too: RuntimeError('device-side assert')",
        "gpu-profile: the report failed too: OSError('disk full')",
    ]


def test_sync_fn_auto_takes_that_of_the_framework(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(running, "find_sync", lambda: lambda: called.append(1))
    with GpuMonitor(sync_fn="auto"):
        pass
    assert called == [1, 1]
    monkeypatch.setattr(running, "find_sync", lambda: None)
    with GpuMonitor(sync_fn="auto"):
        pass


# ---------------------------------------------------------------------- the decorator


def test_report_is_printed_by_default(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    @gpu_profile
    def work(a: int, *, b: int = 2) -> int:
        """Documented."""
        scene.work(1.0)
        return a + b

    assert work(1, b=3) == 4
    assert (work.__name__, work.__doc__) == ("work", "Documented.")
    out = capsys.readouterr().out
    assert out.startswith("[GPU 0] NVIDIA H200\n  duration: 1.0")
    assert out.count("\n") == 11


def test_report_can_be_a_function_or_nothing(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[GpuSummary] = []
    gpu_profile(report=seen.append, device=[0, 1])(scene.run)(0.5)
    assert [summary.device for summary in seen] == [0, 1]
    gpu_profile(report=False, return_profile=True)(scene.run)(0.5)
    assert capsys.readouterr().out == ""
    with pytest.raises(TypeError, match="report is True, False or a function"):
        gpu_profile(report=3)  # type: ignore[call-overload]


def test_report_that_fails_reaches_the_user(scene: Scene) -> None:
    def report(_: GpuSummary) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        gpu_profile(report=report)(scene.run)(0.5)
    assert scene.reading == []


def test_terminal_that_cannot_show_the_trace_does_not_fail_the_function(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as narrow:
        monkeypatch.setattr("sys.stdout", narrow)
        gpu_profile(scene.work)(1.0)
    assert "util trace: ?" in (tmp_path / "out").read_text()


def test_profile_is_returned_with_the_value(scene: Scene) -> None:
    @gpu_profile(return_profile=True, report=False, device=[0, 1])
    def work() -> str:
        scene.work(1.0)
        return "done"

    result = work()
    assert isinstance(result, ProfiledResult)
    assert result.value == "done"
    assert result.gpu is result.gpus[0]
    assert [summary.util_gpu_mean for summary in result.gpus] == pytest.approx([100, 0], abs=1)


def test_functions_error_passes_through_after_the_report(scene: Scene) -> None:
    seen: list[GpuSummary] = []

    @gpu_profile(report=seen.append)
    def work() -> None:
        scene.run(0.5)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert seen[0].duration_s == pytest.approx(0.5, abs=0.01)
    scene.session.settle(final=True)
    assert scene.ended[0].failed


@pytest.mark.parametrize(
    "thing", [int, property(lambda self: 1), staticmethod(len), classmethod(lambda cls: 1), 3, "name"]
)
def test_what_is_no_function_is_refused(thing: Any) -> None:
    for decorate in (gpu_profile, gpu_profile()):
        with pytest.raises(TypeError, match=r"@gpu_profile decorates functions, not .*: put it on the function inside"):
            decorate(thing)


def test_methods_nested_and_recursive_calls_have_a_summary_and_a_region_each(scene: Scene) -> None:
    seen: list[GpuSummary] = []

    class Model:
        @gpu_profile(report=seen.append)
        def forward(self, depth: int) -> int:
            scene.run(1.0)
            return 1 + (self.forward(depth - 1) if depth else 0)

        @classmethod
        @gpu_profile(report=seen.append)
        def make(cls) -> Model:
            return cls()

        @staticmethod
        @gpu_profile(report=seen.append)
        def version() -> int:
            return 2

    assert Model.make().forward(2) == 3
    assert Model.version() == 2
    assert [round(summary.duration_s) for summary in seen] == [0, 1, 2, 3, 0]
    names = [name.split("<locals>.")[1] for name in scene.regions()]
    assert sorted(names) == ["Model.forward"] * 3 + ["Model.make", "Model.version"]
    assert [e.parent is not None for e in scene.ended if e.name.endswith("forward")].count(True) == 2


def test_coroutine_is_measured_while_it_runs(scene: Scene) -> None:
    seen: list[GpuSummary] = []

    @gpu_profile(report=seen.append, return_profile=True)
    async def work(x: int) -> int:
        scene.run(0.5)
        await asyncio.sleep(0)
        scene.work(0.5)
        return x

    assert inspect.iscoroutinefunction(work)
    result = asyncio.run(work(3))
    assert (result.value, result.gpu) == (3, seen[0])
    assert result.gpu.duration_s == pytest.approx(1.0, abs=0.01)
    assert scene.regions() == [work.__qualname__]

    @gpu_profile(report=seen.append)
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fails())
    assert len(seen) == 2


def test_generator_is_measured_from_its_first_step_to_its_end(scene: Scene) -> None:
    seen: list[GpuSummary] = []

    @gpu_profile(report=seen.append, return_profile=True)
    def talk(n: int) -> Iterator[int]:
        for i in range(n):
            scene.run(0.5)
            got = yield i
            assert got == f"got {i}"
        return "done"  # type: ignore[return-value]

    assert inspect.isgeneratorfunction(talk)
    steps: Any = talk(2)
    scene.run(1.0)
    assert next(steps) == 0
    assert steps.send("got 0") == 1
    with pytest.raises(StopIteration) as stop:
        steps.send("got 1")
    assert isinstance(stop.value.value, ProfiledResult)
    assert (stop.value.value.value, stop.value.value.gpu) == ("done", seen[0])
    assert seen[0].duration_s == pytest.approx(1.0, abs=0.01)
    assert scene.regions() == [talk.__qualname__]


def test_generator_that_is_closed_or_fails_is_summed_up(scene: Scene) -> None:
    seen: list[GpuSummary] = []
    closed: list[str] = []

    @gpu_profile(report=seen.append)
    def count() -> Iterator[int]:
        try:
            while True:
                scene.run(0.25)
                yield 1
        finally:
            closed.append("closed")

    steps: Any = count()
    next(steps)
    steps.close()
    assert (len(seen), closed) == (1, ["closed"])
    steps = count()
    next(steps)
    with pytest.raises(KeyError):
        steps.throw(KeyError)
    assert len(seen) == 2
    assert scene.reading == []


def test_report_that_fails_on_a_closed_generator_reaches_whoever_closes_it(scene: Scene) -> None:
    def report(_: GpuSummary) -> None:
        raise OSError("disk full")

    @gpu_profile(report=report)
    def count() -> Iterator[int]:
        yield 1

    steps: Any = count()
    next(steps)
    with pytest.raises(OSError, match="disk full"):
        steps.close()


def test_async_generator_is_measured_from_its_first_step_to_its_end(scene: Scene) -> None:
    seen: list[GpuSummary] = []
    closed: list[str] = []

    @gpu_profile(report=seen.append)
    async def count(n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                scene.run(0.5)
                try:
                    yield i
                except KeyError:
                    yield -1
        finally:
            closed.append("closed")

    assert inspect.isasyncgenfunction(count)

    async def main() -> list[int]:
        whole = [i async for i in count(2)]
        steps: Any = count(5)
        await steps.__anext__()
        thrown = await steps.athrow(KeyError)
        await steps.aclose()
        return [*whole, thrown]

    assert asyncio.run(main()) == [0, 1, -1]
    assert closed == ["closed", "closed"]
    assert [round(summary.duration_s, 1) for summary in seen] == [1.0, 0.5]
    assert len(scene.regions()) == 2
    with pytest.raises(TypeError, match="an async generator returns nothing"):
        gpu_profile(return_profile=True)(count.__wrapped__)  # type: ignore[attr-defined]


def test_async_generator_of_a_process_that_is_switched_off_just_runs(off: None) -> None:
    configure(backend="none", enabled=False)

    @gpu_profile
    async def count() -> AsyncIterator[int]:
        yield 1

    async def main() -> list[int]:
        return [i async for i in count()]

    assert asyncio.run(main()) == [1]


def test_generator_of_a_process_that_is_switched_off_just_runs(off: None) -> None:
    configure(backend="none", enabled=False)

    @gpu_profile
    def count() -> Iterator[int]:
        yield 1

    async def later() -> int:
        return 2

    assert list(count()) == [1]
    assert asyncio.run(gpu_profile(later)()) == 2


def test_threads_have_a_run_each(off: None) -> None:
    @gpu_profile(return_profile=True, report=False)
    def work(n: int) -> int:
        return n

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(100)))
    assert [result.value for result in results] == list(range(100))
