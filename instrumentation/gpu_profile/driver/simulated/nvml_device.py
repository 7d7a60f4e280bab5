"""Simulated NVML functions of a device: identity, sensors, memory, processes, sample buffers and MIG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated.nvml_call import Call, Done, number, put
from gpu_profile.driver.simulated.sensors import SAMPLES_KEPT
from gpu_profile.units import MIB

_NO_INSTANCE: Final = 0xFFFFFFFF
_MOST_INSTANCES: Final = 7
_LANES: Final = 16


def _text(buffer: Any, text: str) -> None:
    buffer.value = text.encode()


def _minor(call: Call, out: Any) -> None:
    put(out, call.library.gpu(call.unit).index)


def _pci(call: Call, out: Any) -> None:
    info, bus = out._obj, 0x18 + 0x10 * call.library.gpu(call.unit).index
    info.domain, info.bus, info.device = 0, bus, 0
    info.busIdLegacy = f"0000:{bus:02X}:00.0".encode()
    info.busId = f"00000000:{bus:02X}:00.0".encode()


def _link_generation(call: Call, out: Any) -> None:
    call.gpu_only()
    put(out, call.unit.model.pcie_generation)


def _link_width(call: Call, out: Any) -> None:
    call.gpu_only()
    put(out, _LANES)


def _utilization(call: Call, out: Any) -> None:
    _whole_gpu_only(call)
    out._obj.gpu, out._obj.memory = call.sensors.utilization(call.t_ns)


def _whole_gpu_only(call: Call) -> None:
    if call.unit.parent is not None or call.unit.slices:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)


def _no_video(call: Call, utilization: Any, period_us: Any) -> None:
    _whole_gpu_only(call)
    put(utilization, 0)
    put(period_us, call.unit.model.utilization_refresh_ns // 1000)


def _memory(call: Call, out: Any) -> None:
    memory, model = out._obj, call.unit.model
    used, reserved = call.library.node.memory_used(call.unit, call.t_ns), model.reserved_mib * MIB
    memory.total = model.memory_mib * MIB
    memory.free = memory.total - reserved - used
    memory.used = used + reserved


def _memory_v2(call: Call, out: Any) -> None:
    if out._obj.version != nv.nvmlMemory_v2:
        raise Done(nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    _memory(call, out)
    out._obj.reserved = call.unit.model.reserved_mib * MIB
    out._obj.used -= out._obj.reserved


def power_mw(call: Call) -> int:
    """What nvmlDeviceGetPowerUsage reports: the 1 s mean where there is one, else the instant reading."""
    call.gpu_only()
    sensors = call.sensors
    if call.unit.model.power_average:
        return sensors.power_average_mw(call.t_ns)
    return sensors.power_instant_mw(call.t_ns)


def energy_mj(call: Call) -> int:
    """The energy counter in mJ since the driver was last loaded."""
    call.gpu_only()
    loaded = max(load for load in call.library.node.loads if load <= max(call.now_ns, call.sensors.epoch_ns))
    return call.sensors.energy_mj(call.t_ns, loaded)


def _power_limit(call: Call, out: Any) -> None:
    call.gpu_only()
    put(out, round(call.unit.model.tdp_w * 1000))


def _temperature(call: Call, sensor: Any, out: Any) -> None:
    call.gpu_only()
    if number(sensor) != nv.NVML_TEMPERATURE_GPU:
        raise Done(nv.NVML_ERROR_INVALID_ARGUMENT)
    put(out, call.sensors.temperature_c(call.t_ns))


def _clock(call: Call, domain: Any, out: Any) -> None:
    call.gpu_only()
    memory = _domain(domain) == nv.NVML_CLOCK_MEM
    put(out, call.unit.model.memory_clock_mhz if memory else call.sensors.sm_clock_mhz(call.t_ns))


def _max_clock(call: Call, domain: Any, out: Any) -> None:
    call.gpu_only()
    memory = _domain(domain) == nv.NVML_CLOCK_MEM
    put(out, call.unit.model.memory_clock_mhz if memory else call.unit.model.sm_clock_mhz)


def _domain(domain: Any) -> int:
    if (wanted := number(domain)) >= nv.NVML_CLOCK_COUNT:
        raise Done(nv.NVML_ERROR_INVALID_ARGUMENT)
    return wanted


def _memory_clocks(call: Call, after_ns: int) -> tuple[Any, Any]:
    instants, clocks = call.sensors.clock_samples(call.t_ns, after_ns)
    return instants, clocks * 0 + call.unit.model.memory_clock_mhz


#: Sample types by number: the name that `unsupported` knows them by, and what they hold after a moment.
SAMPLES: Final[dict[int, tuple[str, Callable[[Call, int], tuple[Any, Any]]]]] = {
    nv.NVML_TOTAL_POWER_SAMPLES: (
        "NVML_TOTAL_POWER_SAMPLES",
        lambda call, after: call.sensors.power_samples(call.t_ns, after),
    ),
    nv.NVML_GPU_UTILIZATION_SAMPLES: (
        "NVML_GPU_UTILIZATION_SAMPLES",
        lambda call, after: call.sensors.utilization_samples(call.t_ns, after)[:2],
    ),
    nv.NVML_MEMORY_UTILIZATION_SAMPLES: (
        "NVML_MEMORY_UTILIZATION_SAMPLES",
        lambda call, after: call.sensors.utilization_samples(call.t_ns, after)[::2],
    ),
    nv.NVML_PROCESSOR_CLK_SAMPLES: (
        "NVML_PROCESSOR_CLK_SAMPLES",
        lambda call, after: call.sensors.clock_samples(call.t_ns, after),
    ),
    nv.NVML_MEMORY_CLK_SAMPLES: ("NVML_MEMORY_CLK_SAMPLES", _memory_clocks),
}
_OF_WHOLE_GPUS: Final = {nv.NVML_GPU_UTILIZATION_SAMPLES, nv.NVML_MEMORY_UTILIZATION_SAMPLES}


def _samples(call: Call, kind: Any, last_seen_us: Any, value_type: Any, count: Any, out: Any) -> None:
    call.gpu_only()
    name, read = SAMPLES.get(number(kind), ("", None))
    mig = call.unit.slices and number(kind) in _OF_WHOLE_GPUS
    if read is None or mig or name in call.unit.unsupported:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    put(value_type, nv.NVML_VALUE_TYPE_UNSIGNED_INT)
    if out is None:
        # As the driver does, ask for room for the whole buffer before looking.
        instants, _ = read(call, number(last_seen_us) * 1000)
        if not _newer(instants, last_seen_us).any():
            raise Done(nv.NVML_ERROR_NOT_FOUND)
        put(count, SAMPLES_KEPT)
        return
    instants, values = read(call, number(last_seen_us) * 1000)
    fresh = _newer(instants, last_seen_us)
    instants, values = instants[fresh], values[fresh]
    if len(instants) == 0:
        raise Done(nv.NVML_ERROR_NOT_FOUND)
    if len(instants) > count._obj.value:
        raise Done(nv.NVML_ERROR_INSUFFICIENT_SIZE)
    put(count, len(instants))
    for slot, instant, value in zip(out, (instants // 1000).tolist(), values.tolist(), strict=False):
        slot.timeStamp, slot.sampleValue.uiVal = instant, value


def _newer(instants: Any, last_seen_us: Any) -> Any:
    return instants // 1000 > number(last_seen_us)


def _processes(call: Call, count: Any, out: Any) -> None:
    units = call.library.node.scenario.units
    held = call.library.node.processes(call.unit, call.t_ns)
    room = count._obj.value
    put(count, len(held))
    if len(held) > room:
        raise Done(nv.NVML_ERROR_INSUFFICIENT_SIZE)
    if not held or out is None:
        return
    for info, (pid, slot, size) in zip(out, held, strict=False):
        instance = units[slot].parent is not None
        info.pid, info.usedGpuMemory = pid, size
        info.gpuInstanceId = units[slot].index + 1 if instance else _NO_INSTANCE
        info.computeInstanceId = 0 if instance else _NO_INSTANCE


def _mig_mode(call: Call, current: Any, pending: Any) -> None:
    if not call.unit.model.mig:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    put(current, int(bool(call.unit.slices)))
    put(pending, int(bool(call.unit.slices)))


def _most_instances(call: Call, out: Any) -> None:
    put(out, _MOST_INSTANCES if call.unit.model.mig else 0)


def _instance(call: Call, index: Any, out: Any) -> None:
    if not call.unit.model.mig:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)
    if number(index) >= len(call.unit.slices):
        raise Done(nv.NVML_ERROR_NOT_FOUND)
    call.library.put_handle(out, call.library.node.scenario.units[call.unit.slices[number(index)]])


def _parent(call: Call, out: Any) -> None:
    if call.unit.parent is None:
        raise Done(nv.NVML_ERROR_INVALID_ARGUMENT)
    call.library.put_handle(out, call.library.gpu(call.unit))


def _instance_id(call: Call, out: Any) -> None:
    _mig_only(call)
    put(out, call.unit.index + 1)


def _compute_instance_id(call: Call, out: Any) -> None:
    _mig_only(call)
    put(out, 0)


def _mig_only(call: Call) -> None:
    if call.unit.parent is None:
        raise Done(nv.NVML_ERROR_NOT_SUPPORTED)


def _attributes(call: Call, out: Any) -> None:
    _mig_only(call)
    compute, _ = call.library.gpu(call.unit).model.mig[call.unit.profile or ""]
    attributes = out._obj
    attributes.multiprocessorCount = call.unit.model.sms
    attributes.gpuInstanceSliceCount = attributes.computeInstanceSliceCount = compute
    attributes.memorySizeMB = call.unit.model.memory_mib


TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetName": lambda call, buffer, _size: _text(buffer, call.unit.model.name),
    "nvmlDeviceGetUUID": lambda call, buffer, _size: _text(buffer, call.unit.uuid),
    "nvmlDeviceGetIndex": lambda call, out: put(out, call.unit.index),
    "nvmlDeviceGetMinorNumber": _minor,
    "nvmlDeviceGetPciInfo_v3": _pci,
    "nvmlDeviceGetMaxPcieLinkGeneration": _link_generation,
    "nvmlDeviceGetMaxPcieLinkWidth": _link_width,
    "nvmlDeviceGetCurrPcieLinkGeneration": _link_generation,
    "nvmlDeviceGetCurrPcieLinkWidth": _link_width,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetEncoderUtilization": _no_video,
    "nvmlDeviceGetDecoderUtilization": _no_video,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory_v2,
    "nvmlDeviceGetPowerUsage": lambda call, out: put(out, power_mw(call)),
    "nvmlDeviceGetEnforcedPowerLimit": _power_limit,
    "nvmlDeviceGetTotalEnergyConsumption": lambda call, out: put(out, energy_mj(call)),
    "nvmlDeviceGetTemperature": _temperature,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetMaxClockInfo": _max_clock,
    "nvmlDeviceGetSamples": _samples,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": _most_instances,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceIsMigDeviceHandle": lambda call, out: put(out, int(call.unit.parent is not None)),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _parent,
    "nvmlDeviceGetGpuInstanceId": _instance_id,
    "nvmlDeviceGetComputeInstanceId": _compute_instance_id,
    "nvmlDeviceGetAttributes_v2": _attributes,
}
