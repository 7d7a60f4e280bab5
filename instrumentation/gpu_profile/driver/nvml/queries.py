"""NVML functions for single quantities. Readers that share a function share one call per read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: Bit mask of the reasons for the current clocks. Drivers before 535 have only the older name.
_REASONS: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


@dataclass(frozen=True, slots=True)
class Query:
    """One NVML function. `needs`: the names that the binding must have, first that of the function."""

    needs: tuple[str, ...]
    run: Callable[[Any, Any], Any]


def plain(name: str, *arguments: str) -> Query:
    """A query that calls `name` with the handle and with constants of the binding."""
    if not arguments:
        return Query((name,), lambda api, handle: getattr(api, name)(handle))
    return Query(
        (name, *arguments), lambda api, handle: getattr(api, name)(handle, *(getattr(api, one) for one in arguments))
    )


def clock_reasons(api: Any, handle: Any) -> int:
    """The reasons for the current clocks as NVML's bit mask."""
    try:
        mask: int = getattr(api, _REASONS[0])(handle)
    except api.NVMLError as failure:
        if failure.value != api.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        mask = getattr(api, _REASONS[1])(handle)
    return mask


def _memory(api: Any, handle: Any) -> Any:
    # Only version 2 separates reserved memory from memory in use. Older drivers have only version 1.
    try:
        memory = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except api.NVMLError as failure:
        if failure.value not in (
            api.NVML_ERROR_FUNCTION_NOT_FOUND,
            api.NVML_ERROR_NOT_SUPPORTED,
            api.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        ):
            raise
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    if not memory.total:
        # A GPU that shares the host's memory has none of its own: 0 of 0 bytes is no measurement.
        raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
    return memory


def _fabric(structure: str) -> Query:
    def run(api: Any, handle: Any) -> Any:
        info = getattr(api, structure)()
        api.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        if info.state == api.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
        return info

    return Query(("nvmlDeviceGetGpuFabricInfoV", structure), run)


def _sram(api: Any, handle: Any) -> Any:
    status = api.c_nvmlEccSramErrorStatus_v1_t()
    api.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return status


def sram_errors(kind: str, count: str) -> Query:
    """The number of SRAM errors. `kind` is CORRECTED or UNCORRECTED, `count` VOLATILE or AGGREGATE."""
    return plain(
        "nvmlDeviceGetMemoryErrorCounter",
        f"NVML_MEMORY_ERROR_TYPE_{kind}",
        f"NVML_{count}_ECC",
        "NVML_MEMORY_LOCATION_SRAM",
    )


RATES: Final = plain("nvmlDeviceGetUtilizationRates")
MEMORY: Final = Query(("nvmlDeviceGetMemoryInfo", "nvmlMemory_v2"), _memory)
BAR1: Final = plain("nvmlDeviceGetBAR1MemoryInfo")
POWER: Final = plain("nvmlDeviceGetPowerUsage")
ENFORCED_LIMIT: Final = plain("nvmlDeviceGetEnforcedPowerLimit")
DEFAULT_LIMIT: Final = plain("nvmlDeviceGetPowerManagementDefaultLimit")
LIMITS: Final = plain("nvmlDeviceGetPowerManagementLimitConstraints")
TEMPERATURE: Final = plain("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")
MARGIN: Final = plain("nvmlDeviceGetMarginTemperature")
FAN: Final = plain("nvmlDeviceGetFanSpeed")
PSTATE: Final = plain("nvmlDeviceGetPerformanceState")
REASONS: Final = Query((_REASONS[0],), clock_reasons)
FABRIC: Final = _fabric("c_nvmlGpuFabricInfo_v2_t")
#: A query of its own, because older drivers lack version 3 of the structure.
FABRIC_3: Final = _fabric("c_nvmlGpuFabricInfo_v3_t")
ROW_REMAPPER: Final = plain("nvmlDeviceGetRowRemapperHistogram")
REPAIR: Final = plain("nvmlDeviceGetRepairStatus")
ADDRESSING: Final = plain("nvmlDeviceGetAddressingMode")
#: A state of the whole node.
CONFIDENTIAL: Final = Query(
    ("nvmlSystemGetConfComputeState",), lambda api, _handle: api.nvmlSystemGetConfComputeState().ccFeature
)
SRAM: Final = Query(("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"), _sram)
