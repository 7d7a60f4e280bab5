"""No driver, a profiler of the processor with the ceilings of a test, and a clock and CUDA that a test turns."""

import pytest
from support.roofline import CEILINGS, fake_clock, fake_cuda

from gpu_profile import configure
from gpu_profile.roofline import GPUProfiler

__all__ = ["fake_clock", "fake_cuda"]


@pytest.fixture(autouse=True)
def no_driver() -> None:
    """Regions are joined with nothing."""
    configure(backend="none")


@pytest.fixture(scope="module")
def profiler() -> GPUProfiler:
    """Of PyTorch's processor."""
    return GPUProfiler("cpu", quiet=True, ceilings=CEILINGS)
