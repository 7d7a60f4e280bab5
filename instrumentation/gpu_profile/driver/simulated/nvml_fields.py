"""Simulated nvmlDeviceGetFieldValues: many readings in one call, each with its own return code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated.nvml_call import Call, Done, number
from gpu_profile.driver.simulated.nvml_device import energy_mj
from gpu_profile.driver.simulated.physics import Column

_ALL_LINKS: Final = 0xFFFFFFFF
_LINKS: Final = 18
_KIB: Final = 1024
_WIDE: Final = nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_PLAIN: Final = nv.NVML_VALUE_TYPE_UNSIGNED_INT


def _memory_temperature(call: Call, _scope: int) -> int:
    if not call.unit.model.memory_temperature:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    return call.sensors.temperature_c(call.t_ns) + 6


def _power_average(call: Call, scope: int) -> int:
    if not call.unit.model.power_average or scope:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    return call.sensors.power_average_mw(call.t_ns)


def _power_instant(call: Call, scope: int) -> int:
    if scope:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    return call.sensors.power_instant_mw(call.t_ns)


def _nvlink(call: Call, scope: int) -> int:
    if not call.unit.model.nvlink_bytes_per_s:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    if scope != _ALL_LINKS and scope >= _LINKS:
        raise Done(nv.NVML_ERROR_INVALID_ARGUMENT)
    total = call.sensors.counted(Column.NVLINK, call.t_ns) // _KIB
    return total if scope == _ALL_LINKS else total // _LINKS


def _nvlink_count(call: Call, _scope: int) -> int:
    return _LINKS if call.unit.model.nvlink_bytes_per_s else 0


def _nvlink_speed(call: Call, _scope: int) -> int:
    return round(call.unit.model.nvlink_bytes_per_s / _LINKS / 1e6)


def _nothing(_call: Call, _scope: int) -> int:
    return 0


_Reader = Callable[[Call, int], int]
_FIELDS: Final[dict[str, tuple[int, _Reader]]] = {
    "NVML_FI_DEV_MEMORY_TEMP": (_PLAIN, _memory_temperature),
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (_WIDE, lambda call, _: energy_mj(call)),
    "NVML_FI_DEV_POWER_AVERAGE": (_PLAIN, _power_average),
    "NVML_FI_DEV_POWER_INSTANT": (_PLAIN, _power_instant),
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": (_WIDE, lambda call, _: call.sensors.counted(Column.PCIE_TX, call.t_ns)),
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": (_WIDE, lambda call, _: call.sensors.counted(Column.PCIE_RX, call.t_ns)),
    "NVML_FI_DEV_PCIE_REPLAY_COUNTER": (_PLAIN, _nothing),
    "NVML_FI_DEV_NVLINK_LINK_COUNT": (_PLAIN, _nvlink_count),
    "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON": (_PLAIN, _nvlink_speed),
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": (_WIDE, _nvlink),
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": (_WIDE, _nvlink),
    "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": (_WIDE, _nothing),
    "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": (_WIDE, _nothing),
    "NVML_FI_DEV_PERF_POLICY_POWER": (_WIDE, lambda call, _: call.sensors.throttled_ns(call.t_ns)),
    "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST": (_WIDE, _nothing),
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": (_WIDE, _nothing),
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": (_WIDE, _nothing),
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": (_WIDE, _nothing),
}
#: An older nvidia-ml-py may lack the newest names; what it cannot ask for needs no answer.
_BY_ID: Final = {getattr(nv, name): (name, *row) for name, row in _FIELDS.items() if hasattr(nv, name)}
#: The names that a scenario may call unsupported.
NAMES: Final = frozenset(_FIELDS) | {
    "NVML_TOTAL_POWER_SAMPLES",
    "NVML_GPU_UTILIZATION_SAMPLES",
    "NVML_MEMORY_UTILIZATION_SAMPLES",
    "NVML_PROCESSOR_CLK_SAMPLES",
    "NVML_MEMORY_CLK_SAMPLES",
}


def _field_values(call: Call, count: Any, values: Any) -> None:
    call.gpu_only()
    fields = getattr(values, "_obj", values)
    stamp, unsupported = call.now_ns // 1000, call.unit.unsupported
    for i in range(number(count)):
        field = fields[i]
        field.timestamp, field.latencyUsec = stamp, 0
        row = _BY_ID.get(field.fieldId)
        if row is None or row[0] in unsupported:
            field.nvmlReturn = nv.NVML_ERROR_NOT_SUPPORTED
            continue
        _, kind, read = row
        try:
            reading = read(call, field.scopeId)
        except Done as done:
            field.nvmlReturn = done.code
            continue
        field.nvmlReturn, field.valueType = nv.NVML_SUCCESS, kind
        if kind == _WIDE:
            field.value.ullVal = reading
        else:
            field.value.uiVal = reading


TABLE: Final[dict[str, Callable[..., None]]] = {"nvmlDeviceGetFieldValues": _field_values}
