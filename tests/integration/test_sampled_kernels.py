"""From a window of a profiler to spans, events, metrics, a recording and its analysis. The profiler is a stand-in."""

from pathlib import Path

import pytest
from support.kernels import FakeSource
from support.regions import Stage, exposition

from gpu_profile import region
from gpu_profile.analysis import analyse
from gpu_profile.kernels.windows.sampling import Sampling
from gpu_profile.recording import read_recording
from gpu_profile.regimes import Regime
from gpu_profile.regions.session.recorder import record_session

#: The kernel of each step, in ns: of 20 ms on the host, so that the GPU starves.
KERNEL_NS = 2_000_000


def test_what_a_window_saw_reaches_spans_metrics_and_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, monkeypatch, on_device=False) as stage:
        recorder = record_session(stage.session, tmp_path / "recording")
        source = FakeSource()
        sampling = Sampling(window_s=0.05, clock=stage.clock, opener=lambda _: source)
        assert sampling.arm()
        with region("request"):
            for _ in range(10):
                with region("step"):
                    stage.run(0.018)
                    source.kernel(stage.clock.now_ns(), ns=KERNEL_NS, name="gemm")
                    stage.run(0.002)
        # The window is closed, and not read yet: its spans wait for that.
        stage.run(1.5)
        assert stage.names() == []
        sampling.read()
        stage.flush()
        metrics = exposition()
        recorder.close()
        spans = [span for span in stage.spans if span.name == "step"]
        request = stage.attributes("request")
    assert len(spans) == 10
    for span in spans:
        attributes = dict(span.attributes or {})
        assert attributes["gpu_profile.kernels.count"] == 1
        assert attributes["gpu_profile.kernels.time"] == KERNEL_NS / 1e9
        (event,) = span.events
        assert event.name == "gpu_profile.kernel"
        assert dict(event.attributes or {})["gpu_profile.kernel.name"] == "gemm"
    assert (request["kernels.count"], request["basis"], request["regime"]) == (10, "kernels", "HOST_BOUND")
    assert request["kernels.busy.ratio"] == pytest.approx(0.1, abs=0.02)
    assert 'gpu_profile_region_kernels_total{region="step"} 10.0' in metrics
    assert 'gpu_profile_region_profiled_total{region="step"} 10.0' in metrics
    assert f'gpu_profile_region_kernel_time_seconds_total{{region="step"}} {10 * KERNEL_NS / 1e9}' in metrics
    analysis = analyse(read_recording(tmp_path / "recording"))
    (verdict,) = (each.verdict for each in analysis.regions if each.summary.region == "request")
    assert (verdict.basis, verdict.regime) == ("kernels", Regime.HOST_BOUND)


def test_without_a_window_there_is_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stage(tmp_path, monkeypatch, on_device=False) as stage:
        with region("step"):
            stage.run(0.5)
        stage.flush()
        metrics = exposition()
        assert not any(key.startswith("kernels.") for key in stage.attributes("step"))
    assert "gpu_profile_region_calls_total{" in metrics
    assert "gpu_profile_region_profiled_total{" not in metrics
