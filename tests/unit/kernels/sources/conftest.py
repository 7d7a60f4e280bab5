"""PyTorch's profiler as a source, which no test leaves running."""

from collections.abc import Iterator

import pytest

from gpu_profile.kernels.sources.torch_source import TorchSource


@pytest.fixture
def source() -> Iterator[TorchSource]:
    made = TorchSource()
    yield made
    made._abandon()
