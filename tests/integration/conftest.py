"""A node with a GPU that is busy half of the time and one that is idle, for tests that start programs on it."""

from pathlib import Path
from typing import Final

import pytest
from support.nodes import busy, node_of

from gpu_profile.driver import simulated

NODE: Final = node_of("H200 SXM") + busy(0.5) + node_of("A10G")


@pytest.fixture
def node(tmp_path: Path) -> str:
    """The driver's name for such a node."""
    return f"simulated:{simulated.create(tmp_path / 'node', NODE)}"
