"""The GPU work of the demonstration's regions, on a simulated GPU or without a GPU."""

from __future__ import annotations

import time
from pathlib import Path

from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.regions.region import current_name
from gpu_profile.regions.streams import Stream


class DemoWorkload:
    """Launches GPU work without waiting for it. This base class has no GPU: the regions run on the host only."""

    name = "host only: PyTorch with CUDA is not installed"

    def host(self, seconds: float) -> None:
        """Wait without using a CPU core."""
        time.sleep(seconds)

    def copy(self, size: float) -> None:
        """Copy `size` bytes to the GPU."""

    def matmul(self, flops: float) -> None:
        """Launch a matrix product of `flops` FLOPs."""

    def stream(self, size: float) -> None:
        """Read `size` bytes of device memory once."""

    def tiny(self) -> None:
        """Launch a kernel that fills a few per cent of the GPU for some microseconds."""

    @property
    def pending_s(self) -> float:
        """Seconds of queued GPU work."""
        return 0.0

    @property
    def stream_of_thread(self) -> Stream | None:
        """The stream for the marks of device intervals. Without one, the join uses host intervals."""
        return None

    def drain(self) -> None:
        """Wait until the GPU has completed all work."""

    def truth(self) -> Truth | None:
        """The true busy time and energy. None without a simulated GPU."""
        return None


class SimulatedWorkload(DemoWorkload):
    """Work on the first GPU of a simulated node."""

    name = "simulated"

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._queue = SimulatedQueue(self._directory, device=0)
        self._queue.allocate(28 << 30)

    @property
    def pending_s(self) -> float:
        """Seconds until the queue's end."""
        return self._queue.pending_ns / 1e9

    @property
    def stream_of_thread(self) -> Stream:
        """The simulated queue."""
        return self._queue

    def _launch(self, work: Work) -> None:
        self._queue.launch(work, tag=current_name() or "other")

    def copy(self, size: float) -> None:
        """A copy over PCIe."""
        self._queue.copy(size, "to_device", tag=current_name() or "other")

    def matmul(self, flops: float) -> None:
        """bf16 on the tensor cores; 1 byte for every 2,000 FLOPs, as in a product of 6,000 x 6,000."""
        self._launch(Work(flops=flops, bytes=flops / 2000, precision="bf16"))

    def stream(self, size: float) -> None:
        """2 FLOPs for every 2-byte weight, as in decoding one sequence."""
        self._launch(Work(flops=size, bytes=size, precision="bf16"))

    def tiny(self) -> None:
        """8 µs on a few multiprocessors."""
        self._launch(Work(flops=1e6, bytes=4e5, precision="fp32", sms=0.08, seconds=8e-6))

    def drain(self) -> None:
        """Wait for the queue's end."""
        self._queue.synchronize()

    def truth(self) -> Truth:
        """The simulator's record of the true values."""
        return Truth(self._directory)
