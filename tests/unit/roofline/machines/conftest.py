"""PyTorch where it is installed, and its accelerators on a model of CUDA."""

import sys
from typing import Any

import pytest
from support.cuda import FakeCuda
from support.roofline import Accelerator, torch_with


@pytest.fixture(name="torch")
def real_torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(name="gpus")
def fake_gpus(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """`torch.cuda` with two devices."""
    gpus = Accelerator(cuda)
    monkeypatch.setitem(sys.modules, "torch", torch_with(cuda=gpus))
    return gpus
