"""A process with regions on a simulated GPU, driven by hand: with the device's intervals, and with the host's alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.regions import Stage


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Regions mark the queue of the GPU."""
    with Stage(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def on_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Nobody knows when the GPU does a region's work."""
    with Stage(tmp_path, monkeypatch, on_device=False) as made:
        yield made
