import asyncio
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from unit.monitor.scene import Scene, measured

from gpu_profile import GpuBackendError, configure
from gpu_profile.errors import UnknownBackendError, UsageError
from gpu_profile.monitor import GpuMonitor, gpu_profile
from gpu_profile.monitor import run as running
from gpu_profile.monitor.gpu_summary import GpuSummary
from gpu_profile.regions.session import process
from gpu_profile.units import nanoseconds

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
        ({"interval_s": "0.1"}, ValueError, "interval_s must be a positive number of seconds, not '0.1'"),
        ({"warmup_s": "1"}, ValueError, "warmup_s must be a number of seconds of at least 0, not '1'"),
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
