"""A profiler of ranges on a GPU that is not there."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.kernels.gmp.profilers import FakeGpu

from gpu_profile import configure
from gpu_profile.kernels.gmp import collecting, profiler
from gpu_profile.kernels.gmp.profiler import GmpProfiler, create_profiler


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No driver, no global profiler from another test, and files where nobody minds."""
    configure(backend="none")
    monkeypatch.chdir(tmp_path)
    made = GmpProfiler(name="the global profiler")
    for name in ("_collecting", "_ready", "_warned"):
        monkeypatch.setattr(profiler._GLOBAL, name, getattr(made, name))
    yield
    gc.collect()
    configure()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu()
    monkeypatch.setattr(collecting, "open_source", lambda spec, **_: made)
    monkeypatch.setattr(profiler, "open_source", lambda spec, **_: made)
    return made


@pytest.fixture
def ready(gpu: FakeGpu) -> Iterator[GmpProfiler]:
    made = create_profiler()
    made.init()
    yield made
    made.disable()
