"""A node with a GPU that is busy half of the time and one that is idle, for tests that start programs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gpu_profile.driver import simulated

NODE: Final = """
[[device]]
model = "H200 SXM"
  [[device.phase]]
  duration_s = 3600
  duty = 0.5
  period_s = 0.1

[[device]]
model = "A10G"
"""


@pytest.fixture
def node(tmp_path: Path) -> str:
    """The driver's name for such a node."""
    return f"simulated:{simulated.create(tmp_path / 'node', NODE)}"
