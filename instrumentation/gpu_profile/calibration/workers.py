"""Programs that put a known load on a GPU: PyTorch, CuPy, or a simulated device's queue.

Each has two levels of power: products of matrices, which the multiprocessors bound, and copies, which memory bounds.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final, Protocol

from gpu_profile.clock import Clock
from gpu_profile.driver.simulated.physics import Work
from gpu_profile.driver.simulated.queue import SimulatedQueue
from gpu_profile.errors import UsageError
from gpu_profile.regions.frameworks import find_stream
from gpu_profile.regions.streams import Stream

LEVELS: Final = ("products", "copies")
#: A matrix's side and a copy's bytes. Each call takes some tenths of a millisecond on a data-centre GPU.
_SIDE: Final = 4096
_COPIED: Final = 256 << 20
#: The number of calls that measure the length of one.
_TIMED: Final = 20
#: The share of its peaks at which a simulated device works.
_SHARE: Final = 0.6


class LoadWorker(Protocol):
    """Queues work at a level on one device. `stream` marks its begin and end."""

    stream: Stream

    def launch(self, level: int, seconds: float) -> None:
        """Queue work of about this length, and return at once."""
        ...

    def close(self) -> None:
        """Free the resources."""
        ...


class SimulatedWorker:
    """A load on a simulated device."""

    def __init__(self, directory: str, device: str, clock: Clock) -> None:
        self._queue = SimulatedQueue(directory, device, clock=clock)
        self.stream: Stream = self._queue
        self._model = self._queue.model

    def launch(self, level: int, seconds: float) -> None:
        """Launch one kernel of that length."""
        peaks = self._model.peak_flops
        flops = _SHARE * peaks.get("fp16", max(peaks.values())) * seconds if level == 0 else 0.0
        size = _SHARE * self._model.dram_bytes_per_s * seconds if level == 1 else 0.0
        self._queue.launch(Work(flops, size, "fp16", seconds=seconds))

    def close(self) -> None:
        """End the queue's log."""
        self._queue.close()


class FrameworkWorker:
    """PyTorch or CuPy on CUDA device `ordinal`. UsageError without either, or if its stream cannot record events."""

    def __init__(self, ordinal: int, clock: Clock) -> None:
        framework = next((name for name in ("torch", "cupy") if importlib.util.find_spec(name)), None)
        if framework is None:
            raise UsageError("to put a load on the GPU, calibrate needs PyTorch or CuPy: pip install torch")
        self._calls, wait = (_torch if framework == "torch" else _cupy)(ordinal)
        self._call_s = [_timed(call, wait) for call in self._calls]
        seek = find_stream(clock=clock)
        stream = seek() if seek is not None else None
        if stream is None:
            raise UsageError(f"{framework} has no stream on CUDA device {ordinal} whose events could be recorded")
        self.stream: Stream = stream

    def launch(self, level: int, seconds: float) -> None:
        """Queue as many calls as take about that long."""
        call = self._calls[level]
        for _ in range(max(1, round(seconds / self._call_s[level]))):
            call()

    def close(self) -> None:
        """Release the arrays."""
        self._calls = ()


def _torch(ordinal: int) -> tuple[tuple[Callable[[], Any], ...], Callable[[], Any]]:
    import torch

    if ordinal >= torch.cuda.device_count():
        raise UsageError(f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices")
    torch.cuda.set_device(ordinal)
    a, b = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.float16) for _ in range(2))
    c, source = torch.empty_like(a), torch.ones(_COPIED, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return (lambda: torch.mm(a, b, out=c), lambda: target.copy_(source)), torch.cuda.synchronize


def _cupy(ordinal: int) -> tuple[tuple[Callable[[], Any], ...], Callable[[], Any]]:
    cupy = importlib.import_module("cupy")

    cupy.cuda.Device(ordinal).use()
    a, b = (cupy.random.standard_normal((_SIDE, _SIDE)).astype(cupy.float16) for _ in range(2))
    c, source = cupy.empty_like(a), cupy.ones(_COPIED, cupy.uint8)
    target = cupy.empty_like(source)
    return (lambda: cupy.matmul(a, b, out=c), lambda: cupy.copyto(target, source)), cupy.cuda.runtime.deviceSynchronize


def _timed(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """The device's time for one call, in s, after three calls that warm up."""
    for _ in range(3):
        call()
    wait()
    before = perf_counter()
    for _ in range(_TIMED):
        call()
    wait()
    return max(1e-6, (perf_counter() - before) / _TIMED)
