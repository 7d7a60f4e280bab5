"""A GPU that tests of the profiler launch kernels on: its records are exact, and no hardware or framework is there."""

import threading
import time
from collections.abc import Iterable

from support.kernels import FakeSource

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.gmp.profiler import GmpProfiler
from gpu_profile.kernels.records import Allocation, Call, Kind, Operation, Record
from gpu_profile.kernels.region import RegionKernels

#: Where kernels run, on the GPU's clock: long after everything on the host, one after another.
LATER_NS = 1_000_000_000


class FakeGpu(FakeSource):
    """A source of records: what is launched on it, from any thread, while it records. `broken` says why it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.broken = ""
        #: How often it was started.
        self.windows = 0
        self._number = 0
        self._held = 0

    def start(self) -> None:
        if self.broken:
            raise GpuBackendError(self.broken)
        self.recording = True
        self.windows += 1
        self.records = []

    def stop(self) -> Iterable[Record]:
        self.recording, self.dropped = False, 0
        return self.records

    def launch(self, us: float, name: str = "kernel", occupancy: float | None = None) -> None:
        self._operation(Kind.KERNEL, us, name, None, occupancy)

    def copy(self, us: float, size: int) -> None:
        self._operation(Kind.TRANSFER, us, "Memcpy HtoD (Pageable -> Device)", size, None)

    def allocate(self, size: int, *, source: str = "torch", device: int = 0) -> None:
        """Take memory, or with a negative size give it back."""
        self._held += size
        self.records.append(
            Allocation(
                time.time_ns(), threading.get_native_id(), device, size, self._held, 4096, source,
                "device" if source == "driver" else "", 7 if source == "driver" else None,
            )
        )  # fmt: skip

    def _operation(self, kind: Kind, us: float, name: str, size: int | None, occupancy: float | None) -> None:
        self._number += 1
        call = time.time_ns()
        start = call + LATER_NS
        self.records.append(Call(self._number, call, call + 1, threading.get_native_id(), "cudaLaunchKernel"))
        end = start + round(us * 1000)
        self.records.append(Operation(kind, 0, 7, start, end, name, self._number, size, occupancy))


def kernels(of: GmpProfiler) -> dict[str, tuple[int, int, float]]:
    """Executions, kernels and their time in µs by range."""
    found: dict[str, tuple[int, int, float]] = {}
    for name, sums in of.results().kernels.items():
        assert isinstance(sums, RegionKernels)
        found[name] = sums.executions, sums.kernel_count, sums.kernel_ns / 1000
    return found
