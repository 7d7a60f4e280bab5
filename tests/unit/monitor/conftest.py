from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.monitor.scene import Scene

from gpu_profile import configure
from gpu_profile.monitor import run as running
from gpu_profile.regions.session import process


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
