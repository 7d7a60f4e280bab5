"""`profile_model` on a model of CUDA's streams: the device's own times, one wait at the end."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.cuda import FakeCuda  # noqa: E402
from support.roofline import CEILINGS, FakeMachine  # noqa: E402
from torch import nn  # noqa: E402
from unit.roofline.models.streams import Waiting  # noqa: E402

from gpu_profile import configure  # noqa: E402
from gpu_profile.roofline.models import profile_model  # noqa: E402
from gpu_profile.roofline.models import run as model_run  # noqa: E402
from gpu_profile.roofline.models.timers import EventTimer  # noqa: E402
from gpu_profile.roofline.profiler import GPUProfiler  # noqa: E402


class Gpu(FakeMachine):
    """A machine of the kind that events time."""

    kind = "cuda"
    device = "cuda:0"


class Launch(nn.Module):  # type: ignore[misc]
    """Launches work of so many seconds for each of its calls."""

    def __init__(self, cuda: FakeCuda, seconds: float) -> None:
        super().__init__()
        self.cuda = cuda
        self.seconds = seconds

    def forward(self, value: Any) -> Any:
        self.cuda.launch(self.seconds)
        return value


def test_modules_have_the_devices_times_and_the_host_waits_once_per_run(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(backend="none")
    profiler = GPUProfiler("cpu", ceilings=CEILINGS, quiet=True)
    profiler.machine = Gpu()
    monkeypatch.setattr(model_run, "timer_for", lambda _: EventTimer(Waiting(cuda), 0))
    shared = Launch(cuda, 0.010)
    found = profile_model(nn.Sequential(shared, Launch(cuda, 0.060), shared), 5, profiler=profiler, repeats=2)
    assert [(row.name, row.calls) for row in found.rows] == [("1", 1), ("0", 2), ("Sequential", 1)]
    assert [row.own_s for row in found.rows] == pytest.approx([0.060, 0.020, 0.0], abs=1e-5)
    assert found.whole.own_s == pytest.approx(0.080, abs=1e-5)
    assert cuda.waits == ["device 0"] * 2
    assert found.output == 5
    assert any("as far as the device waited for the host" in note for note in found.notes)
