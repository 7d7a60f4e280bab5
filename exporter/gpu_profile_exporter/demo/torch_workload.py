"""The demonstration's work on a real GPU, through PyTorch.

Written against PyTorch's documented behaviour; not yet run on hardware.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gpu_profile.streams import Stream

if TYPE_CHECKING:
    from gpu_profile.driver.simulated import Truth


class TorchStream:
    """Marks on the current CUDA stream. Event times count from a base event that the host's clock was read at."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        self.device_uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        torch.cuda.synchronize()
        self._base = torch.cuda.Event(enable_timing=True)
        self._base.record()
        torch.cuda.synchronize()
        self._base_ns = time.time_ns()

    def record(self) -> object:
        """An event at the end of the current stream."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def resolve(self, mark: object) -> int | None:
        """When the GPU reached the event, by the host's clock."""
        event: Any = mark
        if not event.query():
            return None
        return self._base_ns + int(self._base.elapsed_time(event) * 1e6)


class TorchWorkload:
    """Matrix products, reads and small kernels on the current CUDA device, in bf16."""

    def __init__(self) -> None:
        import torch

        self.name = f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"
        self._torch: Any = torch
        self._stream = TorchStream()
        self._matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self._weights = torch.zeros(1 << 30, device="cuda", dtype=torch.bfloat16)
        self._small = torch.zeros(100_000, device="cuda")
        self._host = torch.zeros(96_000_000, dtype=torch.uint8, pin_memory=True)
        self._last: Any = None

    def host(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def copy(self, size: float) -> None:
        """From pinned memory."""
        self._host[: int(size)].to("cuda", non_blocking=True)

    def matmul(self, flops: float) -> None:
        """Square products of 8192, 1.1 TFLOP each."""
        for _ in range(max(1, round(flops / (2 * 8192**3)))):
            self._last = self._matrix @ self._matrix

    def stream(self, size: float) -> None:
        """Sums over a 2 GiB buffer."""
        for _ in range(max(1, round(size / self._weights.nbytes))):
            self._last = self._weights.sum()

    def tiny(self) -> None:
        """An addition in place."""
        self._small.add_(1.0)

    @property
    def pending_s(self) -> float:
        """Seconds cannot be told; a queue that is not empty counts as a little."""
        return 0.0 if self._torch.cuda.current_stream().query() else 0.1

    @property
    def stream_of_thread(self) -> Stream | None:
        """The stream's marks."""
        return self._stream

    def drain(self) -> None:
        """Synchronise."""
        self._torch.cuda.synchronize()

    def truth(self) -> Truth | None:
        """Nobody knows."""
        return None
