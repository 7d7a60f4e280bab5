"""Simulated nvmlDeviceGetFieldValues: many readings in one call, each with its own return code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.catalogue.links import PCIE_ERROR_KINDS
from gpu_profile.driver.simulated.nvml_board import THRESHOLDS
from gpu_profile.driver.simulated.nvml_call import NvmlCall, ReturnCode, needs, number
from gpu_profile.driver.simulated.nvml_device import energy_mj
from gpu_profile.driver.simulated.physics import SimulatedQuantity

_ALL_LINKS: Final = 0xFFFFFFFF
_KIB: Final = 1024
_WIDE: Final = nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_PLAIN: Final = nv.NVML_VALUE_TYPE_UNSIGNED_INT
_SIGNED: Final = nv.NVML_VALUE_TYPE_SIGNED_INT
#: The power of a superchip's CPU in W, and the memory's share of the GPU's power.
_CPU_W, _MEMORY_SHARE = 120.0, 0.25


def _memory_temperature(call: NvmlCall, _scope: int) -> int:
    needs(call.unit.model.memory_temperature)
    return call.sensors.temperature_c(call.t_ns) + 6


def _power_average(call: NvmlCall, scope: int) -> int:
    needs(call.unit.model.power_average)
    return _scoped(call, scope, call.sensors.power_average_mw(call.t_ns))


def _power_instant(call: NvmlCall, scope: int) -> int:
    needs(scope != nv.NVML_POWER_SCOPE_MEMORY)
    return _scoped(call, scope, call.sensors.power_instant_mw(call.t_ns))


def _scoped(call: NvmlCall, scope: int, milliwatts: int) -> int:
    if scope == nv.NVML_POWER_SCOPE_GPU:
        return milliwatts
    if scope == nv.NVML_POWER_SCOPE_MODULE:
        needs(call.unit.model.c2c_links)
        return milliwatts + round(_CPU_W * 1000)
    needs(scope == nv.NVML_POWER_SCOPE_MEMORY and call.unit.model.gpm)
    return round(milliwatts * _MEMORY_SHARE)


def _limit(share: float) -> _Reader:
    return lambda call, _scope: round(call.unit.model.tdp_w * 1000 * share)


def _nvlink(call: NvmlCall, scope: int) -> int:
    links = call.unit.model.nvlinks
    needs(links)
    if scope != _ALL_LINKS and scope >= links:
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    total = call.sensors.counted(SimulatedQuantity.NVLINK, call.t_ns) // _KIB
    return total if scope == _ALL_LINKS else total // links


def _nvlink_speed(call: NvmlCall, _scope: int) -> int:
    model = call.unit.model
    return round(model.nvlink_bytes_per_s / model.nvlinks / 1e6) if model.nvlinks else 0


def _of_link(links: Callable[[NvmlCall], int], value: int) -> _Reader:
    """A reader of the same value for each existing link."""

    def read(call: NvmlCall, scope: int) -> int:
        needs(links(call))
        if scope >= links(call):
            raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
        return value

    return read


def _where(has: Callable[[NvmlCall], object], value: int = 0) -> _Reader:
    """A reader of `value` on devices for which `has` is true."""

    def read(call: NvmlCall, _scope: int) -> int:
        needs(has(call))
        return value

    return read


def _margin(threshold: int) -> _Reader:
    """The T.Limit margin at which a threshold is reached."""

    def read(call: NvmlCall, _scope: int) -> int:
        needs(call.unit.model.temperature_margin)
        return THRESHOLDS[nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] - THRESHOLDS[threshold]

    return read


def _nothing(_call: NvmlCall, _scope: int) -> int:
    return 0


_Reader = Callable[[NvmlCall, int], int]


def _nvlinks(call: NvmlCall) -> int:
    return call.unit.model.nvlinks


def _c2c(call: NvmlCall) -> int:
    return call.unit.model.c2c_links


_MEMORY_ERRORS: Final = [
    f"NVML_FI_DEV_ECC_{kind}_{count}_{place}"
    for kind in ("SBE", "DBE")
    for count in ("VOL", "AGG")
    for place in ("TOTAL", "DEV")
]
#: The numbers in drivers from 580.82 on. Bindings of other releases have other numbers for these names.
_MOVED: Final = {
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": 269,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": 270,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": 271,
}
_FIELDS: Final[dict[str, tuple[int, _Reader]]] = {
    "NVML_FI_DEV_MEMORY_TEMP": (_PLAIN, _memory_temperature),
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (_WIDE, lambda call, _: energy_mj(call)),
    "NVML_FI_DEV_POWER_AVERAGE": (_PLAIN, _power_average),
    "NVML_FI_DEV_POWER_INSTANT": (_PLAIN, _power_instant),
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": (
        _WIDE,
        lambda call, _: call.sensors.counted(SimulatedQuantity.PCIE_TX, call.t_ns),
    ),
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": (
        _WIDE,
        lambda call, _: call.sensors.counted(SimulatedQuantity.PCIE_RX, call.t_ns),
    ),
    "NVML_FI_DEV_PCIE_REPLAY_COUNTER": (_PLAIN, _nothing),
    "NVML_FI_DEV_NVLINK_LINK_COUNT": (_PLAIN, lambda call, _: _nvlinks(call)),
    "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON": (_PLAIN, _nvlink_speed),
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": (_WIDE, _nvlink),
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": (_WIDE, _nvlink),
    **{name: (_WIDE, _where(lambda call: call.unit.model.ecc)) for name in _MEMORY_ERRORS},
    "NVML_FI_DEV_ECC_CURRENT": (_PLAIN, _where(lambda call: call.unit.model.ecc, 1)),
    "NVML_FI_DEV_ECC_PENDING": (_PLAIN, _where(lambda call: call.unit.model.ecc, 1)),
    **{
        f"NVML_FI_DEV_REMAPPED_{row}": (_PLAIN, _where(lambda call: call.unit.model.ecc))
        for row in ("COR", "UNC", "PENDING", "FAILURE")
    },
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": (_PLAIN, _nothing),
    # Fields of the newest boards: only the superchips among the models have them.
    "NVML_FI_PWR_SMOOTHING_ENABLED": (_PLAIN, _where(_c2c)),
    "NVML_FI_DEV_MMA_STALL_PERCENT": (_PLAIN, _where(_c2c)),
    **{
        f"NVML_FI_DEV_{name}": (_PLAIN, _where(_c2c))
        for name in ("ACTIVE_BANK_REMAPPINGS", "INACTIVE_BANK_REMAPPINGS", "PENDING_BANK_REMAPPING")
    },
    "NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_MAX": (_PLAIN, _where(_c2c, 512)),
    "NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE": (_PLAIN, _where(_c2c)),
    "NVML_FI_DEV_POWER_DEFAULT_LIMIT": (_PLAIN, _limit(1.0)),
    "NVML_FI_DEV_POWER_REQUESTED_LIMIT": (_PLAIN, _limit(1.0)),
    "NVML_FI_DEV_POWER_MIN_LIMIT": (_PLAIN, _limit(0.3)),
    "NVML_FI_DEV_POWER_MAX_LIMIT": (_PLAIN, _limit(1.0)),
    "NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT": (_SIGNED, _margin(nv.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)),
    "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT": (_SIGNED, _margin(nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)),
    "NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT": (_SIGNED, _margin(nv.NVML_TEMPERATURE_THRESHOLD_GPU_MAX)),
    **{
        f"NVML_FI_DEV_PCIE_COUNT_{kind}": (_PLAIN, _where(lambda call: call.unit.model.gpm))
        for kind in PCIE_ERROR_KINDS.values()
    },
    **{
        f"NVML_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL": (_WIDE, _where(_nvlinks))
        for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
    },
    **{f"NVML_FI_DEV_NVLINK_ERROR_DL_{kind}": (_WIDE, _of_link(_nvlinks, 0)) for kind in ("CRC", "REPLAY", "RECOVERY")},
    "NVML_FI_DEV_NVLINK_GET_STATE": (_PLAIN, _of_link(_nvlinks, 1)),
    "NVML_FI_DEV_C2C_LINK_COUNT": (_PLAIN, lambda call, _: _c2c(call)),
    "NVML_FI_DEV_C2C_LINK_GET_STATUS": (_PLAIN, _of_link(_c2c, 1)),
    **{f"NVML_FI_DEV_C2C_LINK_ERROR_{kind}": (_WIDE, _of_link(_c2c, 0)) for kind in ("INTR", "REPLAY", "REPLAY_B2B")},
    **{
        f"NVML_FI_DEV_PERF_POLICY_{policy}": (_WIDE, _nothing)
        for policy in ("THERMAL", "BOARD_LIMIT", "LOW_UTILIZATION", "RELIABILITY", "TOTAL_APP_CLOCKS")
    },
    "NVML_FI_DEV_PERF_POLICY_POWER": (_WIDE, lambda call, _: call.sensors.throttled_ns(call.t_ns)),
    "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST": (_WIDE, _nothing),
    **dict.fromkeys(_MOVED, (_WIDE, _nothing)),
}
#: Without the names that an older nvidia-ml-py lacks: it cannot request these fields.
_BY_ID: Final = {
    _MOVED.get(name) or getattr(nv, name): (name, *row)
    for name, row in _FIELDS.items()
    if name in _MOVED or hasattr(nv, name)
}
#: The names that a scenario may call unsupported.
NAMES: Final = frozenset(name for name in dir(nv) if name.startswith(("NVML_FI_DEV_", "NVML_FI_PWR_")))


def _field_values(call: NvmlCall, count: Any, values: Any) -> None:
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
        except ReturnCode as done:
            field.nvmlReturn = done.code
            continue
        field.nvmlReturn, field.valueType = nv.NVML_SUCCESS, kind
        if kind == _WIDE:
            field.value.ullVal = reading
        elif kind == _SIGNED:
            field.value.siVal = reading
        else:
            field.value.uiVal = reading


GPU_TABLE: Final[dict[str, Callable[..., None]]] = {"nvmlDeviceGetFieldValues": _field_values}
