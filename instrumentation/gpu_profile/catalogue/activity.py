"""The signals that say how busy a GPU is: its engines, and the activity counters of Hopper and newer (GPM)."""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue import families
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Dcgm, Kind, Signal, Tier

_SIXTH: Final = 1_000_000_000 // 6

UTILIZATION: Final = families.task(
    "utilization",
    "general",
    "nvmlDeviceGetSamples GPU_UTILIZATION, else nvmlDeviceGetUtilizationRates",
    "DCGM_FI_DEV_GPU_UTIL",
    Tier.FAST,
    "Share of the sample period in which at least one kernel ran",
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
    window_ns=_SIXTH,
    refresh_ns=_SIXTH,
    dcgm=Dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", 100),
)


def _media(key: str, nvml: str, dcgm: str | None, what: str) -> Signal:
    return families.task(
        key,
        key,
        f"nvmlDeviceGet{nvml}Utilization",
        dcgm,
        Tier.SLOW,
        f"Share of the sample period in which the {what} was busy",
        Group.MEDIA,
    )


ENCODER: Final = _media("encoder", "Encoder", "DCGM_FI_DEV_ENC_UTIL", "video encoder")
DECODER: Final = _media("decoder", "Decoder", "DCGM_FI_DEV_DEC_UTIL", "video decoder")
JPEG: Final = _media("jpeg", "Jpg", None, "JPEG engine")
OPTICAL_FLOW: Final = _media("optical_flow", "Ofa", None, "optical-flow engine")

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


def _pipe(key: str, name: str, group: Group = Group.GPM) -> Signal:
    return families.gpm(
        key,
        f"nvidia.gpu.{key}.activity",
        f"{'INTEGER' if key == 'integer' else key.upper()}_UTIL",
        f"DCGM_FI_PROF_PIPE_{'INT' if key == 'integer' else key.upper()}_ACTIVE",
        f"Share of cycles in which the {name} pipe was active",
        group,
    )


FP64: Final = _pipe("fp64", "FP64")
FP32: Final = _pipe("fp32", "FP32")
FP16: Final = _pipe("fp16", "FP16")
INTEGER: Final = _pipe("integer", "integer", Group.GPM_DETAIL)


def _tensor(kind: str, dcgm: str | None, numbers: str) -> Signal:
    return families.gpm(
        f"tensor_{kind}",
        f"nvidia.gpu.tensor.{kind}.activity",
        f"{kind.upper()}_TENSOR_UTIL",
        dcgm,
        f"Share of cycles in which the tensor pipe worked on {numbers}",
        Group.GPM_DETAIL,
    )


#: The tensor pipe by what it multiplies, as `nvml.h` calls the instructions.
TENSORS: Final = (
    _tensor("hmma", "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "half-precision numbers"),
    _tensor("imma", "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", "integers"),
    _tensor("dfma", "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", "double-precision numbers (fused multiply-add)"),
    _tensor("dmma", None, "double-precision numbers (matrix multiply)"),
)


def _rates(link: str, nvml: str, dcgm: str, name: str, group: Group) -> tuple[Signal, Signal]:
    brief = f"Bytes per second over {name}, seen from the GPU"
    rx, tx = f"{nvml}RX_PER_SEC", f"{nvml}TX_PER_SEC"
    return (
        families.gpm_rate(f"{link}_rx_rate", link, rx, "receive", dcgm.format("RX"), brief, group),
        families.gpm_rate(f"{link}_tx_rate", link, tx, "transmit", dcgm.format("TX"), brief, group),
    )


PCIE_RATES: Final = _rates("pcie", "PCIE_", "DCGM_FI_PROF_PCIE_{}_BYTES", "PCIe", Group.GPM)
NVLINK_RATES: Final = _rates("nvlink", "NVLINK_TOTAL_", "DCGM_FI_PROF_NVLINK_{}_BYTES", "all NVLinks", Group.GPM_DETAIL)
C2C_RATES: Final = _rates(
    "c2c", "C2C_TOTAL_", "DCGM_FI_PROF_C2C_{}_ALL_BYTES", "the links to the CPU", Group.GPM_DETAIL
)

ACTIVITY: Final[tuple[Signal, ...]] = (UTILIZATION, MEMORY_CONTROLLER, ENCODER, DECODER, JPEG, OPTICAL_FLOW)
GPM: Final[tuple[Signal, ...]] = (
    GRAPHICS,
    SM,
    OCCUPANCY,
    TENSOR,
    DRAM,
    FP64,
    FP32,
    FP16,
    *PCIE_RATES,
    INTEGER,
    *TENSORS,
    *NVLINK_RATES,
    *C2C_RATES,
)
