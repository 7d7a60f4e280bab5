"""A board with constant readings, for detectors of spinning."""

from collections.abc import Callable, Mapping

from support.worlds import T0

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device, Sample
from gpu_profile.catalogue.signal import Kind
from gpu_profile.history.ledger import Ledger
from gpu_profile.history.timeline import Timeline
from gpu_profile.join.spinning import SpinningDetector
from gpu_profile.units import NS_PER_S

HOPPER = Device("GPU-h", clock_max_hz=1_980_000_000, pcie_bytes_per_s=63_000_000_000, nvlink_bytes_per_s=450 * 10**9)
AMPERE = Device("GPU-a", clock_max_hz=1_410_000_000, pcie_bytes_per_s=31_500_000_000)
#: Means by signal, in base units: a context without work, the same with a kernel that polls, and a product.
WAITING: Mapping[Signal, float] = {
    rows.UTILIZATION: 0, rows.GRAPHICS: 0, rows.DRAM: 0, rows.TENSOR: 0, rows.INTEGER: 0, rows.FP32: 0,
    rows.MEMORY_CONTROLLER: 0, rows.PCIE_RX: 4e6, rows.PCIE_TX: 4e6, rows.NVLINK_RX: 0, rows.NVLINK_TX: 0,
    rows.ENERGY: 124, rows.POWER_LIMIT: 700, rows.CLOCK_SM: 1.98e9,
}  # fmt: skip
SPIN = {**WAITING, rows.UTILIZATION: 1, rows.GRAPHICS: 0.995, rows.ENERGY: 128}
PRODUCT = {**SPIN, rows.TENSOR: 0.9, rows.DRAM: 0.3, rows.ENERGY: 650, rows.MEMORY_CONTROLLER: 0.4}
#: Signals that an Ampere board has, with the controller's if it is read.
OLD = (rows.UTILIZATION, rows.MEMORY_CONTROLLER, rows.ENERGY, rows.POWER_LIMIT, rows.CLOCK_SM)


class Board:
    """A device with readings each 0.2 s, and its detector, which is advanced each 0.2 s as well."""

    def __init__(self, device: Device = HOPPER, *, timeline: bool = False) -> None:
        self.columns = Timeline(device) if timeline else Ledger()
        self.detector = SpinningDetector(device, self.columns)
        self.now_ns = T0
        #: Called after each reading with its time.
        self.after: list[Callable[[int], None]] = []
        self._totals: dict[Signal, float] = {}

    def run(
        self, means: Mapping[Signal, float], seconds: float, *, without: tuple[Signal, ...] = (), ended_s: float = -1
    ) -> float | None:
        """Run a load. Returns the seconds until it was first reported; None if it was not.

        `ended_s`: a region is open, and another one ended that many seconds after the load's start."""
        start, found = self.now_ns, None
        ended_ns = None if ended_s < 0 else start + round(ended_s * NS_PER_S)
        while self.now_ns < start + seconds * NS_PER_S:
            before, self.now_ns = self.now_ns, self.now_ns + NS_PER_S // 5
            self.columns.append([self._sample(s, mean, before) for s, mean in means.items() if s not in without])
            for each in self.after:
                each(self.now_ns)
            spin = self.detector.advance(self.now_ns, region_ended_ns=ended_ns)
            if spin is not None and found is None:
                found = (self.now_ns - start) / NS_PER_S
        return found

    def _sample(self, row: Signal, mean: float, before: int) -> Sample:
        if row.kind is not Kind.COUNTER:
            return Sample(
                row, before if row.kind is Kind.WINDOW_MEAN else self.now_ns, self.now_ns, round(mean / row.quantum)
            )
        self._totals[row] = self._totals.get(row, 0) + mean * (self.now_ns - before) / NS_PER_S
        return Sample(row, self.now_ns, self.now_ns, round(self._totals[row] / row.quantum) % (row.wraps_at or 1 << 62))
