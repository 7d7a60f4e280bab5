"""Models that tests of PyTorch's integration instrument, and what came of it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.regions import Stage
from torch import nn
from torch.utils.data import DataLoader

from gpu_profile.integrations import torch as integration


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.act(self.inner(x))


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = Block()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(name="stage")
def torch_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    before = torch.autograd.backward, DataLoader.__iter__
    with Stage(tmp_path, monkeypatch, on_device=False) as made:
        yield made
    assert (torch.autograd.backward, DataLoader.__iter__) == before, "a test has not removed its instrumentation"
    assert len(integration._open) == 0


def count(stage: Stage) -> Counter[str]:
    stage.session.settle(final=True)
    return Counter(execution.name for execution in stage.ended)


def batch(rows: int = 3) -> Any:
    return torch.ones(rows, 4)
