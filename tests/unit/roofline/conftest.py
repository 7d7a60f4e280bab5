"""No driver, a profiler of the processor with the ceilings of a test, and a clock and CUDA that a test turns."""

from collections.abc import Collection
from pathlib import Path

import pytest
from support.roofline import CEILINGS, fake_clock, fake_cuda

from gpu_profile import configure
from gpu_profile.roofline import GPUProfiler
from gpu_profile.roofline.ceilings import calibration
from gpu_profile.roofline.machines import processor
from gpu_profile.units import MIB

__all__ = ["fake_clock", "fake_cuda"]


@pytest.fixture(autouse=True)
def no_driver() -> None:
    """Regions are joined with nothing."""
    configure(backend="none")


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine shows its host's caches, half a gigabyte of them, which calibrations would go far beyond. They
    need no more memory than these caches call for."""
    real = processor._caches

    def clipped(root: Path, cpus: Collection[int]) -> tuple[processor.Cache, ...]:
        found = real(root, cpus)
        if root != processor.ROOT:
            return found
        return tuple(each._replace(total=min(each.total, (1 + i) * 4 * MIB)) for i, each in enumerate(found))

    monkeypatch.setattr(processor, "_caches", clipped)
    monkeypatch.setattr(calibration, "PROCESSOR_LEAST", calibration.LEAST_BYTES)


@pytest.fixture(scope="module")
def profiler() -> GPUProfiler:
    """Of PyTorch's processor."""
    return GPUProfiler("cpu", quiet=True, ceilings=CEILINGS)
