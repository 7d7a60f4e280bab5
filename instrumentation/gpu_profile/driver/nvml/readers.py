"""How each row of the catalogue is read through NVML: one reader per row, its names those of `nvml.h`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier, signal
from gpu_profile.catalogue.signals import (
    CLOCK_MEMORY,
    CLOCK_SM,
    DECODER,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    ENCODER,
    ENERGY,
    MEMORY_CONTROLLER,
    MEMORY_RESERVED,
    MEMORY_USED,
    NVLINK_RX,
    NVLINK_TX,
    PCIE_REPLAYS,
    PCIE_RX,
    PCIE_TX,
    POWER,
    POWER_AVERAGE,
    POWER_LIMIT,
    TEMPERATURE,
    TEMPERATURE_MEMORY,
    THROTTLES,
    UTILIZATION,
)
from gpu_profile.units import MIB, NS_PER_S

#: `scopeId` of the NVLink throughput fields that means the sum over all links (`nvml.h`).
ALL_LINKS: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Query:
    """One NVML function, called once per read for all readers that share it.

    `needs` are the names that the binding must have, the function's own first.
    """

    needs: tuple[str, ...]
    run: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Reader:
    """The sources of one signal, best first: a field value, the driver's sample buffer, a query, a GPM metric.

    `pick` takes the signal's value, in its quanta, out of the query's answer. A polled window mean covers the time
    since the reading before, but never more than `longest_ns`.
    """

    signal: Signal
    field: str = ""
    scope: int = 0
    buffer: str = ""
    query: Query | None = None
    pick: Callable[[Any], int] = int
    gpm: str = ""
    longest_ns: int = NS_PER_S
    #: Whether the signal is a counter, whose values have no limit.
    counts: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", self.signal.kind is Kind.COUNTER)


def _memory(api: Any, handle: Any) -> Any:
    # Only version 2 tells what the driver reserves apart from what is in use.
    return api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)


def _first(pair: Any) -> int:
    return int(pair[0])


_RATES: Final = Query(("nvmlDeviceGetUtilizationRates",), lambda api, h: api.nvmlDeviceGetUtilizationRates(h))
_MEMORY: Final = Query(("nvmlDeviceGetMemoryInfo", "nvmlMemory_v2"), _memory)
_ENCODER: Final = Query(("nvmlDeviceGetEncoderUtilization",), lambda api, h: api.nvmlDeviceGetEncoderUtilization(h))
_DECODER: Final = Query(("nvmlDeviceGetDecoderUtilization",), lambda api, h: api.nvmlDeviceGetDecoderUtilization(h))
_USAGE: Final = Query(("nvmlDeviceGetPowerUsage",), lambda api, h: api.nvmlDeviceGetPowerUsage(h))
_LIMIT: Final = Query(("nvmlDeviceGetEnforcedPowerLimit",), lambda api, h: api.nvmlDeviceGetEnforcedPowerLimit(h))
_TEMPERATURE: Final = Query(
    ("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    lambda api, h: api.nvmlDeviceGetTemperature(h, api.NVML_TEMPERATURE_GPU),
)
_CLOCK_SM: Final = Query(
    ("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"), lambda api, h: api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_SM)
)
_CLOCK_MEM: Final = Query(
    ("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"), lambda api, h: api.nvmlDeviceGetClockInfo(h, api.NVML_CLOCK_MEM)
)

_THROTTLE_FIELDS: Final = {
    "throttle_sw_power_cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "throttle_sw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "throttle_hw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "throttle_hw_power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "throttle_sync_boost": "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
}
_GPM_METRICS: Final = {
    "graphics": "NVML_GPM_METRIC_GRAPHICS_UTIL",
    "sm": "NVML_GPM_METRIC_SM_UTIL",
    "occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "fp64": "NVML_GPM_METRIC_FP64_UTIL",
    "fp32": "NVML_GPM_METRIC_FP32_UTIL",
    "fp16": "NVML_GPM_METRIC_FP16_UTIL",
}


def _rows() -> Iterator[Reader]:
    yield Reader(UTILIZATION, buffer="NVML_GPU_UTILIZATION_SAMPLES", query=_RATES, pick=lambda rates: int(rates.gpu))
    yield Reader(
        MEMORY_CONTROLLER, buffer="NVML_MEMORY_UTILIZATION_SAMPLES", query=_RATES, pick=lambda rates: int(rates.memory)
    )
    yield Reader(ENCODER, query=_ENCODER, pick=_first)
    yield Reader(DECODER, query=_DECODER, pick=_first)
    yield Reader(MEMORY_USED, query=_MEMORY, pick=lambda memory: round(memory.used / MIB))
    yield Reader(MEMORY_RESERVED, query=_MEMORY, pick=lambda memory: round(memory.reserved / MIB))
    # The sensor's own window is a part of its refresh period; a reading is taken to stand for the time since the last
    # one, as long as that is at most two periods.
    yield Reader(POWER, field="NVML_FI_DEV_POWER_INSTANT", longest_ns=2 * POWER.refresh_ns)
    yield Reader(POWER_AVERAGE, field="NVML_FI_DEV_POWER_AVERAGE", query=_USAGE)
    yield Reader(POWER_LIMIT, query=_LIMIT)
    yield Reader(ENERGY, field="NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    yield Reader(TEMPERATURE, query=_TEMPERATURE)
    yield Reader(TEMPERATURE_MEMORY, field="NVML_FI_DEV_MEMORY_TEMP")
    yield Reader(CLOCK_SM, query=_CLOCK_SM)
    yield Reader(CLOCK_MEMORY, query=_CLOCK_MEM)
    yield Reader(PCIE_RX, field="NVML_FI_DEV_PCIE_COUNT_RX_BYTES")
    yield Reader(PCIE_TX, field="NVML_FI_DEV_PCIE_COUNT_TX_BYTES")
    yield Reader(NVLINK_RX, field="NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", scope=ALL_LINKS)
    yield Reader(NVLINK_TX, field="NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", scope=ALL_LINKS)
    yield Reader(PCIE_REPLAYS, field="NVML_FI_DEV_PCIE_REPLAY_COUNTER")
    yield Reader(ECC_CORRECTED, field="NVML_FI_DEV_ECC_SBE_VOL_TOTAL")
    yield Reader(ECC_UNCORRECTED, field="NVML_FI_DEV_ECC_DBE_VOL_TOTAL")
    for row in THROTTLES:
        yield Reader(row, field=_THROTTLE_FIELDS[row.key])
    for key, metric in _GPM_METRICS.items():
        yield Reader(signal(key), gpm=metric)


#: Every signal of the catalogue and its reader, in the catalogue's order.
READERS: Final = {row: reader for row in SIGNALS for reader in _rows() if reader.signal is row}
TIERS: Final = (Tier.FAST, Tier.SLOW)
