"""The table of signals, by family.

The NVML facts in the `source`, `window_ns` and `refresh_ns` columns are NVIDIA's documentation of `nvml.h` unless the
brief says otherwise; windows of power sensors are those that Yang, Adamek and Armour measured ("Part-time Power
Measurements", SC24, arXiv 2312.02741).
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue import families
from gpu_profile.catalogue.signal import Dcgm, Kind, Signal, Tier
from gpu_profile.units import MIB

_MS = 1_000_000
_SECOND = 1_000 * _MS

UTILIZATION: Final = families.task(
    "utilization",
    "general",
    "nvmlDeviceGetSamples GPU_UTILIZATION, else nvmlDeviceGetUtilizationRates",
    "DCGM_FI_DEV_GPU_UTIL",
    Tier.FAST,
    "Share of the sample period in which at least one kernel ran",
)
ENCODER: Final = families.task(
    "encoder",
    "encoder",
    "nvmlDeviceGetEncoderUtilization",
    "DCGM_FI_DEV_ENC_UTIL",
    Tier.SLOW,
    "Share of the sample period in which the video encoder was busy",
)
DECODER: Final = families.task(
    "decoder",
    "decoder",
    "nvmlDeviceGetDecoderUtilization",
    "DCGM_FI_DEV_DEC_UTIL",
    Tier.SLOW,
    "Share of the sample period in which the video decoder was busy",
)
MEMORY_CONTROLLER: Final = Signal(
    "memory_controller",
    "nvidia.gpu.memory_controller.utilization",
    "1",
    Kind.WINDOW_MEAN,
    1e-2,
    100,
    Tier.FAST,
    source="nvmlDeviceGetSamples MEMORY_UTILIZATION, else nvmlDeviceGetUtilizationRates",
    brief="Share of the sample period in which device memory was read or written (not a bandwidth)",
    window_ns=_SECOND // 6,
    refresh_ns=_SECOND // 6,
    dcgm=Dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", 100),
)

MEMORY_USED: Final = Signal(
    "memory_used",
    "hw.gpu.memory.usage",
    "By",
    Kind.INSTANT,
    float(MIB),
    1 << 24,
    Tier.SLOW,
    source="nvmlDeviceGetMemoryInfo_v2 used",
    brief="Device memory in use",
    dcgm=Dcgm("DCGM_FI_DEV_FB_USED", 1 / MIB),
    mig=True,
)
MEMORY_RESERVED: Final = Signal(
    "memory_reserved",
    "nvidia.gpu.memory.reserved",
    "By",
    Kind.INSTANT,
    float(MIB),
    1 << 24,
    Tier.SLOW,
    source="nvmlDeviceGetMemoryInfo_v2 reserved",
    brief="Device memory that the driver and firmware keep for themselves",
    dcgm=Dcgm("DCGM_FI_DEV_FB_RESERVED", 1 / MIB),
)

POWER: Final = Signal(
    "power",
    "hw.power",
    "W",
    Kind.WINDOW_MEAN,
    1e-3,
    4_000_000,
    Tier.FAST,
    source="field POWER_INSTANT",
    brief="Power draw in the driver's latest short window (25-100 ms by architecture)",
    window_ns=25 * _MS,
    refresh_ns=100 * _MS,
)
POWER_AVERAGE: Final = Signal(
    "power_average",
    "nvidia.gpu.power.average",
    "W",
    Kind.WINDOW_MEAN,
    1e-3,
    4_000_000,
    Tier.FAST,
    source="field POWER_AVERAGE, else nvmlDeviceGetPowerUsage",
    brief="Power draw averaged by the driver over the last second",
    window_ns=_SECOND,
    refresh_ns=100 * _MS,
    dcgm=Dcgm("DCGM_FI_DEV_POWER_USAGE"),
)
POWER_LIMIT: Final = Signal(
    "power_limit",
    "nvidia.gpu.power.limit",
    "W",
    Kind.INSTANT,
    1e-3,
    4_000_000,
    Tier.SLOW,
    source="nvmlDeviceGetEnforcedPowerLimit",
    brief="Power limit that the driver enforces",
)
ENERGY: Final = Signal(
    "energy",
    "hw.energy",
    "J",
    Kind.COUNTER,
    1e-3,
    4_000_000,
    Tier.FAST,
    source="field TOTAL_ENERGY_CONSUMPTION",
    brief="Energy consumed since the driver was loaded",
    refresh_ns=100 * _MS,
    dcgm=Dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000),
)

TEMPERATURE: Final = Signal(
    "temperature",
    "hw.temperature",
    "Cel",
    Kind.INSTANT,
    1.0,
    1_000,
    Tier.SLOW,
    source="nvmlDeviceGetTemperature",
    brief="Temperature of the GPU core",
    attributes=(("hw.sensor_location", "core"),),
    dcgm=Dcgm("DCGM_FI_DEV_GPU_TEMP"),
)
TEMPERATURE_MEMORY: Final = Signal(
    "temperature_memory",
    "hw.temperature",
    "Cel",
    Kind.INSTANT,
    1.0,
    1_000,
    Tier.SLOW,
    source="field MEMORY_TEMP",
    brief="Temperature of the device memory",
    attributes=(("hw.sensor_location", "memory"),),
    dcgm=Dcgm("DCGM_FI_DEV_MEMORY_TEMP"),
)


CLOCK_SM: Final = families.clock("clock_sm", "sm", "DCGM_FI_DEV_SM_CLOCK", "streaming multiprocessors")
CLOCK_MEMORY: Final = families.clock("clock_memory", "memory", "DCGM_FI_DEV_MEM_CLOCK", "device memory")

# The header says of both that they "can be wrapped", and nothing of the other counters.
PCIE_RX: Final = families.io(
    "pcie_rx",
    "hw.gpu.io",
    "PCIE_COUNT_RX_BYTES",
    "receive",
    1.0,
    "Bytes that the GPU received over PCIe",
    wraps_at=1 << 32,
)
PCIE_TX: Final = families.io(
    "pcie_tx",
    "hw.gpu.io",
    "PCIE_COUNT_TX_BYTES",
    "transmit",
    1.0,
    "Bytes that the GPU sent over PCIe",
    wraps_at=1 << 32,
)
NVLINK_RX: Final = families.io(
    "nvlink_rx",
    "nvidia.gpu.nvlink.io",
    "NVLINK_THROUGHPUT_DATA_RX, all links",
    "receive",
    1024.0,
    "Payload bytes received over all NVLinks",
)
NVLINK_TX: Final = families.io(
    "nvlink_tx",
    "nvidia.gpu.nvlink.io",
    "NVLINK_THROUGHPUT_DATA_TX, all links",
    "transmit",
    1024.0,
    "Payload bytes sent over all NVLinks",
)
PCIE_REPLAYS: Final = Signal(
    "pcie_replays",
    "nvidia.gpu.pcie.replays",
    "{replay}",
    Kind.COUNTER,
    1.0,
    1 << 32,
    Tier.SLOW,
    source="field PCIE_REPLAY_COUNTER",
    brief="PCIe packets that had to be sent again",
    dcgm=Dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
)
ECC_CORRECTED: Final = Signal(
    "ecc_corrected",
    "hw.errors",
    "{error}",
    Kind.COUNTER,
    1.0,
    1 << 40,
    Tier.SLOW,
    source="field ECC_SBE_VOL_TOTAL",
    brief="Memory errors since the driver was loaded",
    attributes=(("error.type", "corrected"), ("hw.type", "gpu")),
)
ECC_UNCORRECTED: Final = Signal(
    "ecc_uncorrected",
    "hw.errors",
    "{error}",
    Kind.COUNTER,
    1.0,
    1 << 40,
    Tier.SLOW,
    source="field ECC_DBE_VOL_TOTAL",
    brief="Memory errors since the driver was loaded",
    attributes=(("error.type", "uncorrected"), ("hw.type", "gpu")),
)

_THROTTLED = "Time for which the driver held the clocks down, by reason"
THROTTLES: Final = (
    families.throttle("sw_power_cap", "PERF_POLICY_POWER", _THROTTLED),
    families.throttle("sw_thermal", "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", _THROTTLED),
    families.throttle("hw_thermal", "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN", _THROTTLED),
    families.throttle("hw_power_brake", "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN", _THROTTLED),
    families.throttle("sync_boost", "PERF_POLICY_SYNC_BOOST", _THROTTLED),
)

GRAPHICS: Final = families.gpm(
    "graphics",
    "nvidia.gpu.graphics.activity",
    "GRAPHICS_UTIL",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "Share of time in which any compute or graphics work ran",
)
SM: Final = families.gpm(
    "sm",
    "nvidia.gpu.sm.activity",
    "SM_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
    "Share of cycles in which a multiprocessor had a warp resident, averaged over multiprocessors",
)
OCCUPANCY: Final = families.gpm(
    "occupancy",
    "nvidia.gpu.sm.occupancy",
    "SM_OCCUPANCY",
    "DCGM_FI_PROF_SM_OCCUPANCY",
    "Resident warps as a share of the most that fit",
)
TENSOR: Final = families.gpm(
    "tensor",
    "nvidia.gpu.tensor.activity",
    "ANY_TENSOR_UTIL",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "Share of cycles in which a tensor pipe was active",
)
DRAM: Final = families.gpm(
    "dram",
    "nvidia.gpu.dram.activity",
    "DRAM_BW_UTIL",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "Share of the peak device-memory bandwidth in use",
)
FP64: Final = families.gpm(
    "fp64",
    "nvidia.gpu.fp64.activity",
    "FP64_UTIL",
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "Share of cycles in which the FP64 pipe was active",
)
FP32: Final = families.gpm(
    "fp32",
    "nvidia.gpu.fp32.activity",
    "FP32_UTIL",
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "Share of cycles in which the FP32 pipe was active",
)
FP16: Final = families.gpm(
    "fp16",
    "nvidia.gpu.fp16.activity",
    "FP16_UTIL",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
    "Share of cycles in which the FP16 pipe was active",
)

#: Every signal, in the order in which docs and dashboards show them.
SIGNALS: Final[tuple[Signal, ...]] = (
    UTILIZATION,
    ENCODER,
    DECODER,
    MEMORY_CONTROLLER,
    MEMORY_USED,
    MEMORY_RESERVED,
    POWER,
    POWER_AVERAGE,
    POWER_LIMIT,
    ENERGY,
    TEMPERATURE,
    TEMPERATURE_MEMORY,
    CLOCK_SM,
    CLOCK_MEMORY,
    PCIE_RX,
    PCIE_TX,
    NVLINK_RX,
    NVLINK_TX,
    PCIE_REPLAYS,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    *THROTTLES,
    GRAPHICS,
    SM,
    OCCUPANCY,
    TENSOR,
    DRAM,
    FP64,
    FP32,
    FP16,
)

#: Where busy time comes from, best first: GPM's own windows are exact, `utilization` is whole per cents.
BUSY_SOURCES: Final = (GRAPHICS, UTILIZATION)
#: Where energy comes from, best first.
ENERGY_SOURCES: Final = (ENERGY, POWER_AVERAGE)

_BY_KEY: Final = {row.key: row for row in SIGNALS}


def signal(key: str) -> Signal:
    """The row with this key; KeyError if there is none."""
    return _BY_KEY[key]
