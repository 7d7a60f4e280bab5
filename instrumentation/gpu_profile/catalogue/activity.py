"""The signals of a GPU's activity: its engines, and the activity counters of Hopper and newer (GPM)."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu_profile.catalogue.families import FASTEST, RECEIVED, REFRESH_NS, SENT, gauge, mean
from gpu_profile.catalogue.group import Group
from gpu_profile.catalogue.signal import Signal, Tier
from gpu_profile.units import NS_PER_S

_SIXTH: Final = NS_PER_S // 6
#: Fine enough for a gauge, and coarse enough that a minute's integral stays exact, in B/s.
_RATE_STEP: Final = 65_536

#: Utilisation of one engine, in whole per cents over the driver's sample period (1/6 s to 1 s by model).
_task: Final = partial(
    mean, unit="1", quantum=1e-2, limit=100, tier=Tier.FAST, window_ns=_SIXTH, refresh_ns=_SIXTH, dcgm_scale=100
)
#: Means between two renewals of the driver's counters: a share of a ceiling, and traffic in whole 64 KiB/s.
_window: Final = partial(mean, tier=Tier.GPM, window_ns=REFRESH_NS, refresh_ns=REFRESH_NS, group=Group.GPM)
_gpm: Final = partial(_window, unit="1", quantum=1e-4, limit=10_000, mig=True)
_gpm_rate: Final = partial(_window, unit="By/s", quantum=float(_RATE_STEP), limit=FASTEST // _RATE_STEP)

UTILIZATION: Final = _task(
    "utilization",
    "hw.gpu.utilization",
    "nvmlDeviceGetSamples GPU_UTILIZATION, else nvmlDeviceGetUtilizationRates",
    "Share of the sample period in which at least one kernel ran",
    "DCGM_FI_DEV_GPU_UTIL",
    attributes=(("hw.gpu.task", "general"),),
)
MEMORY_CONTROLLER: Final = _task(
    "memory_controller",
    "nvidia.gpu.memory_controller.utilization",
    "nvmlDeviceGetSamples MEMORY_UTILIZATION, else nvmlDeviceGetUtilizationRates",
    "Share of the sample period in which device memory was read or written (not a bandwidth)",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    group=Group.CORE_DETAIL,
)


def _media(key: str, nvml: str, engine: str, dcgm: str = "") -> Signal:
    return _task(
        key,
        "hw.gpu.utilization",
        f"nvmlDeviceGet{nvml}Utilization",
        f"Share of the sample period in which the {engine} was busy",
        dcgm,
        attributes=(("hw.gpu.task", key),),
        tier=Tier.SLOW,
        group=Group.MEDIA,
    )


ENCODER: Final = _media("encoder", "Encoder", "video encoder", "DCGM_FI_DEV_ENC_UTIL")
DECODER: Final = _media("decoder", "Decoder", "video decoder", "DCGM_FI_DEV_DEC_UTIL")
ACTIVITY: Final = (
    UTILIZATION,
    MEMORY_CONTROLLER,
    ENCODER,
    DECODER,
    _media("jpeg", "Jpg", "JPEG engine"),
    _media("optical_flow", "Ofa", "optical-flow engine"),
    gauge(
        "tensor_stall",
        "nvidia.gpu.tensor.stall",
        "field MMA_STALL_PERCENT",
        "Stalls of the tensor pipes (MMA), as the share that the driver reports",
        unit="1",
        quantum=1e-2,
        limit=100,
        tier=Tier.SLOW,
        group=Group.GPM_DETAIL,
    ),
)

GRAPHICS: Final = _gpm(
    "graphics",
    "nvidia.gpu.graphics.activity",
    "GPM GRAPHICS_UTIL",
    "Share of time in which any compute or graphics work ran",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
)
SM: Final = _gpm(
    "sm",
    "nvidia.gpu.sm.activity",
    "GPM SM_UTIL",
    "Share of cycles in which a multiprocessor had a warp resident, averaged over multiprocessors",
    "DCGM_FI_PROF_SM_ACTIVE",
)
OCCUPANCY: Final = _gpm(
    "occupancy",
    "nvidia.gpu.sm.occupancy",
    "GPM SM_OCCUPANCY",
    "Resident warps as a share of the most that fit",
    "DCGM_FI_PROF_SM_OCCUPANCY",
    group=Group.PIPES,
)
TENSOR: Final = _gpm(
    "tensor",
    "nvidia.gpu.tensor.activity",
    "GPM ANY_TENSOR_UTIL",
    "Share of cycles in which a tensor pipe was active",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
)
DRAM: Final = _gpm(
    "dram",
    "nvidia.gpu.dram.activity",
    "GPM DRAM_BW_UTIL",
    "Share of the peak device-memory bandwidth in use",
    "DCGM_FI_PROF_DRAM_ACTIVE",
)


def _pipe(key: str, name: str, dcgm: str) -> Signal:
    brief = f"Share of cycles in which the {name} pipe was active"
    return _gpm(key, f"nvidia.gpu.{key}.activity", f"GPM {key.upper()}_UTIL", brief, dcgm, group=Group.PIPES)


FP64: Final = _pipe("fp64", "FP64", "DCGM_FI_PROF_PIPE_FP64_ACTIVE")
FP32: Final = _pipe("fp32", "FP32", "DCGM_FI_PROF_PIPE_FP32_ACTIVE")
FP16: Final = _pipe("fp16", "FP16", "DCGM_FI_PROF_PIPE_FP16_ACTIVE")
INTEGER: Final = _pipe("integer", "integer", "DCGM_FI_PROF_PIPE_INT_ACTIVE")


def _tensor(kind: str, numbers: str, dcgm: str = "") -> Signal:
    """The tensor pipe's activity with one kind of number, by the instructions' names in `nvml.h`."""
    brief = f"Share of cycles in which the tensor pipe worked on {numbers}"
    otel, source = f"nvidia.gpu.tensor.{kind}.activity", f"GPM {kind.upper()}_TENSOR_UTIL"
    return _gpm(f"tensor_{kind}", otel, source, brief, dcgm, group=Group.GPM_DETAIL)


def _rates(link: str, nvml: str, name: str, dcgm: str) -> tuple[Signal, ...]:
    """A link's rates in both directions. `nvml` and `dcgm` have a place for the direction."""
    brief = f"Bytes per second over {name}, seen from the GPU"
    return tuple(
        _gpm_rate(
            f"{link}_{way.lower()}_rate",
            f"nvidia.gpu.{link}.rate",
            f"GPM {nvml.format(way)}",
            brief,
            dcgm.format(way),
            attributes=direction,
            group=Group.GPM_DETAIL,
        )
        for way, direction in (("RX", RECEIVED), ("TX", SENT))
    )


TENSOR_KINDS: Final = (
    _tensor("hmma", "half-precision numbers", "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE"),
    _tensor("imma", "integers", "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE"),
    _tensor("dfma", "double-precision numbers (fused multiply-add)", "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE"),
    _tensor("dmma", "double-precision numbers (matrix multiply)"),
)
#: Activities with integrals that are published as counters, since a scrape sees few of their windows. The integral of
#: `GRAPHICS` is busy time.
INTEGRATED: Final = (SM, TENSOR, DRAM, FP64, FP32, FP16, INTEGER, *TENSOR_KINDS)

GPM: Final[tuple[Signal, ...]] = (
    GRAPHICS,
    SM,
    OCCUPANCY,
    TENSOR,
    DRAM,
    FP64,
    FP32,
    FP16,
    *_rates("pcie", "PCIE_{}_PER_SEC", "PCIe", "DCGM_FI_PROF_PCIE_{}_BYTES"),
    INTEGER,
    *TENSOR_KINDS,
    *_rates("nvlink", "NVLINK_TOTAL_{}_PER_SEC", "all NVLinks", "DCGM_FI_PROF_NVLINK_{}_BYTES"),
    *_rates("c2c", "C2C_TOTAL_{}_PER_SEC", "the links to the CPU", "DCGM_FI_PROF_C2C_{}_ALL_BYTES"),
)
