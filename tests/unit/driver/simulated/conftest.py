"""A node directory on a fake clock, and pynvml above it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpu_profile.driver import simulated
from gpu_profile.testing import FakeClock


@pytest.fixture
def install(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[..., Path]]:
    """Makes a node from a scenario (None: the built-in one), puts it beneath pynvml and opens NVML."""

    def make(text: str | None = None) -> Path:
        directory = simulated.create(tmp_path / "node", text, clock=clock)
        simulated.install(directory, clock=clock)
        pynvml.nvmlInit()
        return directory

    yield make
    simulated.remove()
