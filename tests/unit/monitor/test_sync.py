from collections.abc import Callable
from typing import Any

import pytest
from unit.monitor.scene import Scene, measured

from gpu_profile.monitor import GpuMonitor, gpu_profile
from gpu_profile.monitor import run as running
from gpu_profile.monitor.gpu_summary import GpuSummary
from gpu_profile.units import nanoseconds

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
