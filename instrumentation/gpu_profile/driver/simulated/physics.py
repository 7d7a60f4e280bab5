"""From work to time and signals: a roofline with fixed efficiencies and a linear power model.

The model is deliberately small. It produces signals of a realistic shape with an exact cause, and predicts no real GPU.
Kernels that overlap do not slow each other down; their activity adds up to at most the ceiling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gpu_profile.driver.simulated.models import PRECISIONS, TENSOR, DeviceModel, Precision
from gpu_profile.units import NS_PER_S

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Shares of the data-sheet peaks that a good kernel or copy reaches.
COMPUTE_EFFICIENCY: Final = 0.75
MEMORY_EFFICIENCY: Final = 0.85
#: The time from the host's launch to the kernel's start, and the shortest kernel, in ns.
LAUNCH_LATENCY_NS: Final = 5_000
SHORTEST_KERNEL_NS: Final = 2_000
#: Dynamic power as a share of (TDP - idle): of resident multiprocessors, of the busiest pipe, of DRAM traffic.
_SM_WEIGHT, _PIPE_WEIGHT, _DRAM_WEIGHT = 0.15, 0.85, 0.55


class SimulatedQuantity(IntEnum):
    """The quantities in a device's running totals. Each total is the integral of its rate over seconds."""

    BUSY = 0  # s with at least one kernel
    MEMORY_BUSY = 1  # s with traffic in device memory
    SM = 2  # s, times the share of multiprocessors with work
    OCCUPANCY = 3
    TENSOR = 4
    DRAM = 5
    FP64 = 6
    FP32 = 7
    ENERGY = 8  # J above idle
    THROTTLED = 9  # s at the power limit
    PCIE_RX = 10  # B
    PCIE_TX = 11
    NVLINK = 12  # B, each way
    FLOPS = 13
    BYTES = 14


WIDTH: Final = len(SimulatedQuantity)
#: Rates that are shares of a ceiling.
_SHARES: Final = [column for column in SimulatedQuantity if column < SimulatedQuantity.ENERGY]


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel's worth of work.

    `flops`: operations at `precision`. `bytes`: device memory read and written. `sms`: the share of multiprocessors
    that it can fill, in (0, 1]. `occupancy`: resident warps on them as a share of the most that fit. `pcie_bytes`: read
    over PCIe while it runs. `nvlink_bytes`: exchanged each way. `seconds`: a fixed duration, instead of the model's.
    """

    flops: float = 0.0
    bytes: float = 0.0
    precision: Precision = "bf16"
    sms: float = 1.0
    occupancy: float = 0.5
    pcie_bytes: float = 0.0
    nvlink_bytes: float = 0.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        amounts = (self.flops, self.bytes, self.pcie_bytes, self.nvlink_bytes, self.seconds or 0.0)
        if not all(math.isfinite(amount) and amount >= 0 for amount in amounts):
            raise ValueError("amounts of work must be finite and not negative")
        if not (0 < self.sms <= 1 and 0 < self.occupancy <= 1):
            raise ValueError("sms and occupancy are shares above 0 and at most 1")
        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r}: one of {', '.join(PRECISIONS)}")


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The seconds that work needs at each ceiling alone, and the shortest duration of any work."""

    compute: float
    memory: float
    pcie: float
    nvlink: float
    floor: float = SHORTEST_KERNEL_NS / NS_PER_S

    @property
    def seconds(self) -> float:
        """The roofline: the slowest of them."""
        return max(self.compute, self.memory, self.pcie, self.nvlink, self.floor)


def bounds(model: DeviceModel, work: Work) -> TimeBounds:
    """The time bounds of `work` on `model`. Half of the multiprocessors are enough to saturate device memory."""
    peak = model.peak_flops.get(work.precision)
    if peak is None and work.flops:
        raise ValueError(f"{model.key} has no {work.precision} pipe")
    if work.nvlink_bytes and not model.nvlink_bytes_per_s:
        raise ValueError(f"{model.key} has no NVLink")
    return TimeBounds(
        compute=work.flops / (peak * COMPUTE_EFFICIENCY * work.sms) if peak else 0.0,
        memory=work.bytes / (model.dram_bytes_per_s * MEMORY_EFFICIENCY * min(1.0, 2 * work.sms)),
        pcie=work.pcie_bytes / model.pcie_bytes_per_s,
        nvlink=work.nvlink_bytes / (model.nvlink_bytes_per_s or 1.0),
    )


def duration_ns(model: DeviceModel, work: Work) -> int:
    """The duration of `work` on `model`, in whole nanoseconds."""
    if work.seconds is not None:
        return max(1, round(work.seconds * NS_PER_S))
    return max(1, round(bounds(model, work).seconds * NS_PER_S))


def copy_ns(model: DeviceModel, size: float) -> int:
    """The duration of a copy of `size` bytes over PCIe, in whole nanoseconds."""
    return max(SHORTEST_KERNEL_NS, round(size / model.pcie_bytes_per_s * NS_PER_S))


def rates(model: DeviceModel, records: npt.NDArray[np.void]) -> Floats:
    """Rates per second of each `SimulatedQuantity` while `records` (`worklog.RECORD`) run: shape (records, WIDTH).

    Energy is dynamic power before the power limit. `limited` applies the limits to the sum of overlapping records.
    """
    out = np.zeros((len(records), WIDTH))
    seconds = np.maximum(records["end"] - records["start"], 1) / NS_PER_S
    kernel = records["kind"] == 0
    flops, size = records["flops"] / seconds, records["bytes"] / seconds
    out[:, SimulatedQuantity.BUSY] = kernel
    out[:, SimulatedQuantity.MEMORY_BUSY] = (records["bytes"] > 0) | (records["pcie"] > 0)
    out[:, SimulatedQuantity.SM] = np.where(kernel, records["sms"], 0.0)
    out[:, SimulatedQuantity.OCCUPANCY] = out[:, SimulatedQuantity.SM] * records["occupancy"]
    for code, precision in enumerate(PRECISIONS):
        column = SimulatedQuantity.TENSOR if precision in TENSOR else SimulatedQuantity[precision.upper()]
        if peak := model.peak_flops.get(precision):
            out[:, column] += np.where(records["precision"] == code, flops / peak, 0.0)
    out[:, SimulatedQuantity.DRAM] = (size + records["pcie"] / seconds) / model.dram_bytes_per_s
    pipe = out[:, [SimulatedQuantity.TENSOR, SimulatedQuantity.FP64, SimulatedQuantity.FP32]].max(axis=1)
    dynamic = power_share(out[:, SimulatedQuantity.SM], pipe, out[:, SimulatedQuantity.DRAM])
    out[:, SimulatedQuantity.ENERGY] = dynamic * (model.tdp_w - model.idle_w)
    outward = records["kind"] == 2
    out[:, SimulatedQuantity.PCIE_RX] = np.where(outward, 0.0, records["pcie"] / seconds)
    out[:, SimulatedQuantity.PCIE_TX] = np.where(outward, records["pcie"] / seconds, 0.0)
    out[:, SimulatedQuantity.NVLINK] = records["nvlink"] / seconds
    out[:, SimulatedQuantity.FLOPS], out[:, SimulatedQuantity.BYTES] = flops, size
    return out


def power_share(sms: Any = 0.0, pipe: Any = 0.0, dram: Any = 0.0) -> Any:
    """Dynamic power before the limit as a share of (TDP - idle), from shares of multiprocessors, a pipe and DRAM."""
    return _SM_WEIGHT * sms + _PIPE_WEIGHT * pipe + _DRAM_WEIGHT * dram


def limited(model: DeviceModel, together: Floats) -> Floats:
    """Summed rates, limited in place to their ceilings. Time at the power limit counts as throttled."""
    ceiling = model.tdp_w - model.idle_w
    together[:, _SHARES] = np.clip(together[:, _SHARES], 0.0, 1.0)
    together[:, SimulatedQuantity.THROTTLED] = together[:, SimulatedQuantity.ENERGY] > ceiling
    np.clip(together[:, SimulatedQuantity.ENERGY], 0.0, ceiling, out=together[:, SimulatedQuantity.ENERGY])
    return together
