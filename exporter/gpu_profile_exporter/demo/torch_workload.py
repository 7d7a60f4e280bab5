"""The demonstration's work on a real GPU, through PyTorch.

Written against PyTorch's documented behaviour; not yet run on hardware.
"""

from __future__ import annotations

from typing import Any

import torch

from gpu_profile.regions.frameworks import find_stream
from gpu_profile.regions.streams import Stream
from gpu_profile_exporter.demo.workload import DemoWorkload


class TorchWorkload(DemoWorkload):
    """Matrix products, reads and small kernels on the current CUDA device, in bf16."""

    def __init__(self) -> None:
        self.name = f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}"
        self._matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self._weights = torch.zeros(1 << 30, device="cuda", dtype=torch.bfloat16)
        self._small = torch.zeros(100_000, device="cuda")
        self._host = torch.zeros(96_000_000, dtype=torch.uint8, pin_memory=True)
        self._last: Any = None

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
        """0.1 s for a queue that is not empty: CUDA does not report its length in seconds."""
        return 0.0 if torch.cuda.current_stream().query() else 0.1

    @property
    def stream_of_thread(self) -> Stream | None:
        """The stream that PyTorch uses in the calling thread, on which regions record marks."""
        find = find_stream()
        return None if find is None else find()

    def drain(self) -> None:
        """Synchronise the device."""
        torch.cuda.synchronize()
