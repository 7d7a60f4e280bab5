"""Simulated NVML functions of the board: identity, links, limits, clocks and memory errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated.nvml_call import NvmlCall, ReturnCode, needs, number, put, text
from gpu_profile.driver.simulated.physics import SimulatedQuantity
from gpu_profile.driver.simulated.sensors import COUNTER_REFRESH_NS
from gpu_profile.units import MIB

_LANES: Final = 16
#: In °C: shutdown, slowdown, highest operating temperature of the GPU, and that of its memory.
THRESHOLDS: Final = {
    nv.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: 95,
    nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: 89,
    nv.NVML_TEMPERATURE_THRESHOLD_GPU_MAX: 87,
    nv.NVML_TEMPERATURE_THRESHOLD_MEM_MAX: 95,
}
#: Two bits per health condition. 0b10 means that the condition is false.
_HEALTHY: Final = 0b10101010
_FAN_IDLE: Final = 30
#: Memory banks, each with all of its spare rows.
_BANKS: Final = 2560
_P_IDLE: Final = 8


def _idle(call: NvmlCall) -> bool:
    """Whether nothing ran in the last refresh period of the clocks."""
    return call.sensors.sm_clock_mhz(call.t_ns) == call.unit.model.idle_clock_mhz


def _text(fact: Callable[[NvmlCall], str]) -> Callable[..., None]:
    return lambda call, buffer, _size: text(buffer, fact(call))


def _scalar(read: Callable[[NvmlCall], int]) -> Callable[..., None]:
    return lambda call, out: put(out, read(call))


def _capability(call: NvmlCall, major: Any, minor: Any) -> None:
    first, _, second = call.unit.model.compute_capability.partition(".")
    put(major, int(first))
    put(minor, int(second))


def _pci(call: NvmlCall, out: Any) -> None:
    info, bus = out._obj, 0x18 + 0x10 * call.library.gpu(call.unit).index
    info.domain, info.bus, info.device = 0, bus, 0
    info.busIdLegacy = f"0000:{bus:02X}:00.0".encode()
    info.busId = f"00000000:{bus:02X}:00.0".encode()


def _generation(call: NvmlCall) -> int:
    # Boards that save power at idle lower the link to its slowest generation.
    return 1 if call.unit.model.saves_power and _idle(call) else call.unit.model.pcie_generation


def _limit_mw(call: NvmlCall) -> int:
    return round(call.unit.model.tdp_w * 1000)


def _limits(call: NvmlCall, lowest: Any, highest: Any) -> None:
    put(lowest, round(call.unit.model.tdp_w * 1000 * 0.3))
    put(highest, _limit_mw(call))


def _temperature(call: NvmlCall, sensor: Any, out: Any) -> None:
    if number(sensor) != nv.NVML_TEMPERATURE_GPU:
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    put(out, call.sensors.temperature_c(call.t_ns))


def _threshold(call: NvmlCall, kind: Any, out: Any) -> None:
    if number(kind) == nv.NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
        needs(call.unit.model.memory_temperature)
    needs(number(kind) in THRESHOLDS)
    put(out, THRESHOLDS[number(kind)])


def _margin(call: NvmlCall, out: Any) -> None:
    needs(call.unit.model.temperature_margin)
    slowdown = THRESHOLDS[nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN]
    out._obj.marginTemperature = slowdown - call.sensors.temperature_c(call.t_ns)


def _fan(call: NvmlCall, out: Any) -> None:
    needs(call.unit.model.fan)
    put(out, _FAN_IDLE + max(0, call.sensors.temperature_c(call.t_ns) - 35))


def _clock(sm_mhz: Callable[[NvmlCall], int]) -> Callable[..., None]:
    """The clock of a domain, derived from the clock of the multiprocessors."""

    def entry(call: NvmlCall, domain: Any, out: Any) -> None:
        wanted = number(domain)
        if wanted >= nv.NVML_CLOCK_COUNT:
            raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
        if wanted == nv.NVML_CLOCK_MEM:
            put(out, call.unit.model.memory_clock_mhz)
        else:
            put(out, round(sm_mhz(call) * 0.9) if wanted == nv.NVML_CLOCK_VIDEO else sm_mhz(call))

    return entry


def _reasons(call: NvmlCall, out: Any) -> None:
    end = call.sensors.refreshed(call.t_ns, COUNTER_REFRESH_NS)
    throttled = call.sensors.mean(SimulatedQuantity.THROTTLED, end, COUNTER_REFRESH_NS) > 0
    capped = nv.nvmlClocksEventReasonSwPowerCap if throttled else 0
    put(out, capped or (nv.nvmlClocksEventReasonGpuIdle if _idle(call) else 0))


def _bar1(call: NvmlCall, out: Any) -> None:
    needs(not call.unit.model.unified_memory)
    # The window is the memory's size, rounded up to a power of two.
    out._obj.bar1Total = (1 << (call.unit.model.memory_mib - 1).bit_length()) * MIB
    out._obj.bar1Used = 2 * MIB
    out._obj.bar1Free = out._obj.bar1Total - out._obj.bar1Used


def _memory_errors(call: NvmlCall, _kind: Any, _count: Any, place: Any, out: Any) -> None:
    needs(call.unit.model.ecc and number(place) in (nv.NVML_MEMORY_LOCATION_SRAM, nv.NVML_MEMORY_LOCATION_DRAM))
    put(out, 0)


def _sram(call: NvmlCall, out: Any) -> None:
    needs(call.unit.model.ecc)
    out._obj.bThresholdExceeded = 0


def _row_remapper(call: NvmlCall, out: Any) -> None:
    needs(call.unit.model.ecc)
    out._obj.max = _BANKS


def _repair(call: NvmlCall, out: Any) -> None:
    needs(call.unit.model.ecc)
    out._obj.bChannelRepairPending = out._obj.bTpcRepairPending = 0


def _addressing(call: NvmlCall, out: Any) -> None:
    # Superchips share the page tables of their CPU.
    out._obj.value = nv.NVML_DEVICE_ADDRESSING_MODE_ATS if call.unit.model.c2c_links else 0


def _fabric(call: NvmlCall, out: Any) -> None:
    info = out._obj
    if call.unit.model.fabric:
        info.state, info.status, info.healthMask = nv.NVML_GPU_FABRIC_STATE_COMPLETED, 0, _HEALTHY
        if hasattr(info, "healthSummary"):
            info.healthSummary = nv.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
    else:
        info.state = nv.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED


TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetMinorNumber": lambda call, out: put(out, call.library.gpu(call.unit).index),
    "nvmlDeviceGetPciInfo_v3": _pci,
}
#: Functions that MIG instances do not support.
GPU_TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetVbiosVersion": _text(lambda call: call.unit.model.vbios_version),
    "nvmlDeviceGetBoardPartNumber": _text(lambda call: call.unit.model.part_number),
    "nvmlDeviceGetMaxPcieLinkGeneration": _scalar(lambda call: call.unit.model.pcie_generation),
    "nvmlDeviceGetMaxPcieLinkWidth": _scalar(lambda _: _LANES),
    "nvmlDeviceGetCurrPcieLinkGeneration": _scalar(_generation),
    "nvmlDeviceGetCurrPcieLinkWidth": _scalar(lambda _: _LANES),
    "nvmlDeviceGetEnforcedPowerLimit": _scalar(_limit_mw),
    "nvmlDeviceGetPowerManagementDefaultLimit": _scalar(_limit_mw),
    "nvmlDeviceGetPowerManagementLimitConstraints": _limits,
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetTemperatureThreshold": _threshold,
    "nvmlDeviceGetMarginTemperature": _margin,
    "nvmlDeviceGetFanSpeed": _fan,
    "nvmlDeviceGetClockInfo": _clock(lambda call: call.sensors.sm_clock_mhz(call.t_ns)),
    "nvmlDeviceGetMaxClockInfo": _clock(lambda call: call.unit.model.sm_clock_mhz),
    "nvmlDeviceGetPerformanceState": _scalar(
        lambda call: _P_IDLE if call.unit.model.saves_power and _idle(call) else 0
    ),
    "nvmlDeviceGetCurrentClocksEventReasons": _reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": _reasons,
    "nvmlDeviceGetBAR1MemoryInfo": _bar1,
    "nvmlDeviceGetMemoryErrorCounter": _memory_errors,
    "nvmlDeviceGetSramEccErrorStatus": _sram,
    "nvmlDeviceGetGpuFabricInfoV": _fabric,
    "nvmlDeviceGetRowRemapperHistogram": _row_remapper,
    "nvmlDeviceGetRepairStatus": _repair,
    "nvmlDeviceGetAddressingMode": _addressing,
}
