"""A process with regions on a simulated GPU, driven by hand: with the device's intervals, and with the host's alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.regions import Stage, Staged


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staged]:
    """Makes a stage of one's own settings."""
    with ExitStack() as stages:
        yield lambda **settings: stages.enter_context(Stage(tmp_path, monkeypatch, **settings))


@pytest.fixture
def stage(staged: Staged) -> Stage:
    """Regions mark the queue of the GPU."""
    return staged()


@pytest.fixture
def on_host(staged: Staged) -> Stage:
    """Nobody knows when the GPU does a region's work."""
    return staged(on_device=False)
