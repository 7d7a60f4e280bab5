"""A user's module, and a stopwatch that a test sets."""

from typing import Any

import pytest
from torch import nn

from gpu_profile.roofline.models.profile import ModelProfile, ModuleRow
from gpu_profile.roofline.models.stopwatch import Stopwatch


class Residual(nn.Module):  # type: ignore[misc]
    """A user's module: what is inside of it, added to what came in."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside = inside
        self.runs = 0

    def forward(self, value: Any, *, scale: float = 1.0) -> Any:
        self.runs += 1
        return self.inside(value) * scale + value


def rows(found: ModelProfile) -> dict[str, ModuleRow]:
    """By name."""
    return {row.name: row for row in found.rows}


def fixed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
    """Have each module take so long."""
    stop = Stopwatch.stop

    def stopped(self: Stopwatch) -> None:
        stop(self)
        for submodule, lap in self.laps.items():
            lap.own_s = seconds[submodule.path]
            lap.total_s = sum(each for path, each in seconds.items() if path.startswith(submodule.path))

    monkeypatch.setattr(Stopwatch, "stop", stopped)
