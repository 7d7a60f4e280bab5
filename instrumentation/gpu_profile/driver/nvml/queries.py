"""The NVML functions that are called one by one, each once per read for all readers that share its answer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: Bit mask of the reasons for the present clocks; drivers before 535 know the call by its older name alone.
_REASONS: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


@dataclass(frozen=True, slots=True)
class Query:
    """One NVML function. `needs` are the names that the binding must have, the function's own first."""

    needs: tuple[str, ...]
    run: Callable[[Any, Any], Any]


def plain(name: str, *arguments: str) -> Query:
    """A function of the handle and of constants of the binding."""
    if not arguments:
        return Query((name,), lambda api, handle: getattr(api, name)(handle))
    return Query(
        (name, *arguments), lambda api, handle: getattr(api, name)(handle, *(getattr(api, one) for one in arguments))
    )


def clock_reasons(api: Any, handle: Any) -> int:
    """The reasons for the present clocks as NVML's bit mask."""
    try:
        mask: int = getattr(api, _REASONS[0])(handle)
    except api.NVMLError as failure:
        if failure.value != api.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        mask = getattr(api, _REASONS[1])(handle)
    return mask


def _memory(api: Any, handle: Any) -> Any:
    # Only version 2 tells what the driver reserves apart from what is in use; older drivers have the first alone.
    try:
        found = api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2)
    except api.NVMLError as failure:
        if failure.value not in (
            api.NVML_ERROR_FUNCTION_NOT_FOUND,
            api.NVML_ERROR_NOT_SUPPORTED,
            api.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        ):
            raise
        found = api.nvmlDeviceGetMemoryInfo(handle)
    if not found.total:
        # A GPU that shares the host's memory has none of its own: 0 of 0 is not a measurement.
        raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
    return found


def _fabric(api: Any, handle: Any) -> Any:
    found = api.c_nvmlGpuFabricInfo_v2_t()
    api.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(found))
    if found.state == api.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        raise api.NVMLError(api.NVML_ERROR_NOT_SUPPORTED)
    return found


def _sram(api: Any, handle: Any) -> Any:
    found = api.c_nvmlEccSramErrorStatus_v1_t()
    api.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(found))
    return found


def sram_errors(kind: str, count: str) -> Query:
    """SRAM errors; `kind` is CORRECTED or UNCORRECTED, `count` VOLATILE or AGGREGATE."""
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
FABRIC: Final = Query(("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"), _fabric)
SRAM: Final = Query(("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t"), _sram)
