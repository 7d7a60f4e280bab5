"""The table of signals: the rows of all families, and those that other modules import by name.

The NVML facts in the `source`, `window_ns` and `refresh_ns` columns are NVIDIA's documentation of `nvml.h` unless the
brief says otherwise.
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.activity import (
    ACTIVITY,
    DECODER,
    DRAM,
    ENCODER,
    FP16,
    FP32,
    FP64,
    GPM,
    GRAPHICS,
    INTEGER,
    INTEGRATED,
    MEMORY_CONTROLLER,
    OCCUPANCY,
    SM,
    TENSOR,
    UTILIZATION,
)
from gpu_profile.catalogue.board import (
    BOARD,
    CLOCK_MEMORY,
    CLOCK_SM,
    ENERGY,
    POWER,
    POWER_AVERAGE,
    POWER_LIMIT,
    RECOVERY_ACTION,
    TEMPERATURE,
    TEMPERATURE_MEMORY,
    THROTTLES,
    THROTTLES_SEEN,
    THROTTLING,
)
from gpu_profile.catalogue.links import (
    LINKS,
    NVLINK_RX,
    NVLINK_TX,
    PCIE_GENERATION,
    PCIE_LANES,
    PCIE_REPLAYS,
    PCIE_RX,
    PCIE_TX,
)
from gpu_profile.catalogue.memory import (
    BAR1,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    MEMORY,
    MEMORY_ERRORS,
    MEMORY_FREE,
    MEMORY_RESERVED,
    MEMORY_USED,
    REMAP_FAILURE,
    REMAP_PENDING,
)
from gpu_profile.catalogue.signal import Signal

__all__ = [
    "BUSY_SOURCES",
    "CLOCK_MEMORY",
    "CLOCK_SM",
    "DECODER",
    "DRAM",
    "ECC_CORRECTED",
    "ECC_UNCORRECTED",
    "ENCODER",
    "ENERGY",
    "ENERGY_SOURCES",
    "FP16",
    "FP32",
    "FP64",
    "GRAPHICS",
    "INTEGER",
    "INTEGRATED",
    "MEMORY_CONTROLLER",
    "MEMORY_FREE",
    "MEMORY_RESERVED",
    "MEMORY_USED",
    "NVLINK_RX",
    "NVLINK_TX",
    "OCCUPANCY",
    "PCIE_GENERATION",
    "PCIE_LANES",
    "PCIE_REPLAYS",
    "PCIE_RX",
    "PCIE_TX",
    "POWER",
    "POWER_AVERAGE",
    "POWER_LIMIT",
    "POWER_SOURCES",
    "RECOVERY_ACTION",
    "REMAP_FAILURE",
    "REMAP_PENDING",
    "SIGNALS",
    "SLOW_COUNTERS",
    "SM",
    "TEMPERATURE",
    "TEMPERATURE_MEMORY",
    "TENSOR",
    "THROTTLES",
    "THROTTLES_SEEN",
    "UTILIZATION",
    "signal",
]

#: Every signal, in the order in which docs and dashboards show them.
SIGNALS: Final[tuple[Signal, ...]] = (*ACTIVITY, *MEMORY, *BOARD, *LINKS, *BAR1, *MEMORY_ERRORS, *THROTTLING, *GPM)

#: The sources of busy time, best first: GPM's own windows are exact, `utilization` is in whole per cents.
BUSY_SOURCES: Final = (GRAPHICS, UTILIZATION)
#: The sources of energy, best first.
ENERGY_SOURCES: Final = (ENERGY, POWER_AVERAGE)
#: The sources of a region's power: also the driver's own power samples, if their timing is calibrated.
POWER_SOURCES: Final = (ENERGY, POWER, POWER_AVERAGE)

#: Counters of the fast tier with slow reads: 2.4 to 2.9 ms on an H200, 0.9 ms on an H100.
SLOW_COUNTERS: Final = frozenset({ENERGY, *THROTTLES})

_BY_KEY: Final = {row.key: row for row in SIGNALS}


def signal(key: str) -> Signal:
    """The row with this key; KeyError if there is none."""
    return _BY_KEY[key]
