"""What the demonstration's regions ask of a GPU: a simulated one, a real one through PyTorch, or none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpu_profile.regions.streams import Stream

if TYPE_CHECKING:
    from gpu_profile.driver.simulated import Truth


class Workload(Protocol):
    """Launches work without waiting for it."""

    name: str

    def host(self, seconds: float) -> None:
        """Keep the host busy."""
        ...

    def copy(self, size: float) -> None:
        """Copy `size` bytes to the GPU."""
        ...

    def matmul(self, flops: float) -> None:
        """A matrix product of so many FLOPs."""
        ...

    def stream(self, size: float) -> None:
        """Read `size` bytes of device memory once."""
        ...

    def tiny(self) -> None:
        """A kernel that fills a few per cent of the GPU for some microseconds."""
        ...

    @property
    def pending_s(self) -> float:
        """How far the GPU is behind."""
        ...

    @property
    def stream_of_thread(self) -> Stream | None:
        """Whose marks give device intervals."""
        ...

    def drain(self) -> None:
        """Wait until the GPU has done all."""
        ...

    def truth(self) -> Truth | None:
        """What really happened; None where nobody knows: only a simulated GPU tells."""
        ...


class SimulatedWorkload:
    """Work on the first GPU of a simulated node."""

    def __init__(self, directory: str) -> None:
        from gpu_profile.driver.simulated import SimulatedQueue

        self.name = "simulated"
        self._directory = Path(directory)
        self._queue = SimulatedQueue(self._directory, device=0)
        self._queue.allocate(28 << 30)

    def host(self, seconds: float) -> None:
        """Wait; the host's core is left to others."""
        time.sleep(seconds)

    def _tag(self) -> str:
        from gpu_profile.regions.region import current_name

        return current_name() or "other"

    def copy(self, size: float) -> None:
        """A copy over PCIe."""
        self._queue.copy(size, "to_device", tag=self._tag())

    def matmul(self, flops: float) -> None:
        """bf16 on the tensor cores; 1 byte for every 2,000 FLOPs, as in a product of 6,000 x 6,000."""
        from gpu_profile.driver.simulated import Work

        self._queue.launch(Work(flops=flops, bytes=flops / 2000, precision="bf16"), tag=self._tag())

    def stream(self, size: float) -> None:
        """2 FLOPs for every 2-byte weight, as in decoding one sequence."""
        from gpu_profile.driver.simulated import Work

        self._queue.launch(Work(flops=size, bytes=size, precision="bf16"), tag=self._tag())

    def tiny(self) -> None:
        """8 µs on a few multiprocessors."""
        from gpu_profile.driver.simulated import Work

        self._queue.launch(Work(flops=1e6, bytes=4e5, precision="fp32", sms=0.08, seconds=8e-6), tag=self._tag())

    @property
    def pending_s(self) -> float:
        """How far the queue reaches into the future."""
        return self._queue.pending_ns / 1e9

    @property
    def stream_of_thread(self) -> Stream | None:
        """The queue itself."""
        return self._queue

    def drain(self) -> None:
        """Wait for the queue's end."""
        self._queue.synchronize()

    def truth(self) -> Truth:
        """The simulator's own account."""
        from gpu_profile.driver.simulated import Truth

        return Truth(self._directory)


class HostWorkload:
    """No GPU that this process could use: the regions run, on the host only."""

    name = "host only: PyTorch with CUDA is not installed"

    def host(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def copy(self, size: float) -> None:
        """Nothing to copy to."""

    def matmul(self, flops: float) -> None:
        """Nothing to compute on."""

    def stream(self, size: float) -> None:
        """Nothing to read."""

    def tiny(self) -> None:
        """Nothing to launch."""

    @property
    def pending_s(self) -> float:
        """Nothing is queued."""
        return 0.0

    @property
    def stream_of_thread(self) -> Stream | None:
        """Host intervals must do."""
        return None

    def drain(self) -> None:
        """Nothing to wait for."""

    def truth(self) -> Truth | None:
        """Nobody knows."""
        return None


def open_workload(directory: str | None) -> Workload:
    """Work for the simulated node in `directory`, else for this machine's GPU through PyTorch, else for nobody."""
    if directory is not None:
        return SimulatedWorkload(directory)
    try:
        import torch
    except ImportError:
        return HostWorkload()
    if not torch.cuda.is_available():
        return HostWorkload()
    from gpu_profile_exporter.demo.torch_workload import TorchWorkload

    return TorchWorkload()
