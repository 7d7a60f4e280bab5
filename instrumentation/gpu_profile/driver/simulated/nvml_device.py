"""Simulated NVML functions of a device: name, utilisation, memory, power, processes, sample buffers and MIG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated import nvml_board, nvml_processes
from gpu_profile.driver.simulated.nvml_call import NvmlCall, ReturnCode, needs, number, put, text
from gpu_profile.driver.simulated.sensors import SAMPLES_KEPT
from gpu_profile.units import MIB

_MOST_INSTANCES: Final = 7
#: The ids of MIG profiles on Ampere and Hopper, by compute slices (`nvidia-smi mig -lgip`).
_PROFILE_IDS: Final = {"1": 19, "2": 14, "3": 9, "4": 5, "7": 0}


def _utilization(call: NvmlCall, out: Any) -> None:
    call.whole_gpu_only()
    out._obj.gpu, out._obj.memory = call.sensors.utilization(call.t_ns)


def _no_video(call: NvmlCall, utilization: Any, period_us: Any) -> None:
    call.whole_gpu_only()
    put(utilization, 0)
    put(period_us, call.unit.model.utilization_refresh_ns // 1000)


def _jpeg(call: NvmlCall, utilization: Any, period_us: Any) -> None:
    needs(call.unit.model.jpeg)
    _no_video(call, utilization, period_us)


def _memory(call: NvmlCall, out: Any) -> None:
    memory, model = out._obj, call.unit.model
    needs(not model.unified_memory)
    used, reserved = call.library.node.memory_used(call.unit, call.t_ns), model.reserved_mib * MIB
    memory.total = model.memory_mib * MIB
    memory.free = memory.total - reserved - used
    memory.used = used + reserved


def _memory_v2(call: NvmlCall, out: Any) -> None:
    if out._obj.version != nv.nvmlMemory_v2:
        raise ReturnCode(nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    _memory(call, out)
    out._obj.reserved = call.unit.model.reserved_mib * MIB
    out._obj.used -= out._obj.reserved


def _power_mw(call: NvmlCall) -> int:
    """The 1 s mean if the model has one, else the instant reading."""
    sensors = call.sensors
    return (sensors.power_average_mw if call.unit.model.power_average else sensors.power_instant_mw)(call.t_ns)


def energy_mj(call: NvmlCall) -> int:
    """The energy counter in mJ since the driver was last loaded."""
    loaded = max(load for load in call.library.node.loads if load <= max(call.now_ns, call.sensors.epoch_ns))
    return call.sensors.energy_mj(call.t_ns, loaded)


def _memory_clocks(call: NvmlCall, after_ns: int) -> tuple[Any, Any]:
    instants, clocks = call.sensors.clock_samples(call.t_ns, after_ns)
    return instants, clocks * 0 + call.unit.model.memory_clock_mhz


#: Number of a sample type -> its name in `unsupported`, and a function that returns its samples after a moment.
SAMPLES: Final[dict[int, tuple[str, Callable[[NvmlCall, int], tuple[Any, Any]]]]] = {
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
SAMPLE_NAMES: Final = frozenset(name for name, _ in SAMPLES.values())
_OF_WHOLE_GPUS: Final = {nv.NVML_GPU_UTILIZATION_SAMPLES, nv.NVML_MEMORY_UTILIZATION_SAMPLES}


def _samples(call: NvmlCall, kind: Any, last_seen_us: Any, value_type: Any, count: Any, out: Any) -> None:
    name, read = SAMPLES.get(number(kind), ("", None))
    mig = call.unit.slices and number(kind) in _OF_WHOLE_GPUS
    if read is None or mig or name in call.unit.unsupported:
        raise ReturnCode(nv.NVML_ERROR_NOT_SUPPORTED)
    put(value_type, nv.NVML_VALUE_TYPE_UNSIGNED_INT)
    instants, values = read(call, number(last_seen_us) * 1000)
    fresh = instants // 1000 > number(last_seen_us)
    instants, values = instants[fresh], values[fresh]
    if len(instants) == 0:
        raise ReturnCode(nv.NVML_ERROR_NOT_FOUND)
    if out is None:
        put(count, SAMPLES_KEPT)  # like the driver, request room for the whole buffer
        return
    if len(instants) > count._obj.value:
        raise ReturnCode(nv.NVML_ERROR_INSUFFICIENT_SIZE)
    put(count, len(instants))
    for slot, instant, value in zip(out, (instants // 1000).tolist(), values.tolist(), strict=False):
        slot.timeStamp, slot.sampleValue.uiVal = instant, value


def _mig_mode(call: NvmlCall, current: Any, pending: Any) -> None:
    needs(call.unit.model.mig)
    put(current, int(bool(call.unit.slices)))
    put(pending, int(bool(call.unit.slices)))


def _most_instances(call: NvmlCall, out: Any) -> None:
    put(out, _MOST_INSTANCES if call.unit.model.mig else 0)


def _instance(call: NvmlCall, index: Any, out: Any) -> None:
    needs(call.unit.model.mig)
    if number(index) >= len(call.unit.slices):
        raise ReturnCode(nv.NVML_ERROR_NOT_FOUND)
    call.library.put_handle(out, call.library.node.scenario.units[call.unit.slices[number(index)]])


def _parent(call: NvmlCall, out: Any) -> None:
    if call.unit.parent is None:
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    call.library.put_handle(out, call.library.gpu(call.unit))


def _instance_id(call: NvmlCall, out: Any) -> None:
    needs(call.unit.parent is not None)
    put(out, call.unit.index + 1)


def _instance_by_id(call: NvmlCall, identity: Any, out: Any) -> None:
    if not 0 < number(identity) <= len(call.unit.slices):
        raise ReturnCode(nv.NVML_ERROR_NOT_FOUND)
    call.library.put_handle(out, call.library.node.scenario.units[call.unit.slices[number(identity) - 1]])


def _instance_info(call: NvmlCall, out: Any) -> None:
    needs(call.unit.parent is not None)
    gpu, info = call.library.gpu(call.unit), out._obj
    info.id, info.profileId = call.unit.index + 1, _PROFILE_IDS[(call.unit.profile or "")[0]]
    units = call.library.node.scenario.units
    before = [units[slot] for slot in gpu.slices[: call.unit.index]]
    info.placement.start = sum(gpu.model.mig[unit.profile or ""][1] for unit in before)
    info.placement.size = gpu.model.mig[call.unit.profile or ""][1]


def _compute_instance_id(call: NvmlCall, out: Any) -> None:
    needs(call.unit.parent is not None)
    put(out, 0)


def _attributes(call: NvmlCall, out: Any) -> None:
    needs(call.unit.parent is not None)
    compute, _ = call.library.gpu(call.unit).model.mig[call.unit.profile or ""]
    attributes = out._obj
    attributes.multiprocessorCount = call.unit.model.sms
    attributes.gpuInstanceSliceCount = attributes.computeInstanceSliceCount = compute
    attributes.memorySizeMB = call.unit.model.memory_mib


TABLE: Final[dict[str, Callable[..., None]]] = {
    **nvml_board.TABLE,
    "nvmlDeviceGetName": lambda call, buffer, _size: text(buffer, call.unit.model.name),
    "nvmlDeviceGetUUID": lambda call, buffer, _size: text(buffer, call.unit.uuid),
    "nvmlDeviceGetIndex": lambda call, out: put(out, call.unit.index),
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetEncoderUtilization": _no_video,
    "nvmlDeviceGetDecoderUtilization": _no_video,
    "nvmlDeviceGetJpgUtilization": _jpeg,
    "nvmlDeviceGetOfaUtilization": _no_video,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory_v2,
    **nvml_processes.TABLE,
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": _most_instances,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceIsMigDeviceHandle": lambda call, out: put(out, int(call.unit.parent is not None)),
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _parent,
    "nvmlDeviceGetGpuInstanceId": _instance_id,
    "nvmlGpuInstanceGetInfo": _instance_info,
    "nvmlDeviceGetComputeInstanceId": _compute_instance_id,
    "nvmlDeviceGetAttributes_v2": _attributes,
}
#: Functions that MIG instances do not support.
GPU_TABLE: Final[dict[str, Callable[..., None]]] = {
    **nvml_board.GPU_TABLE,
    "nvmlDeviceGetGpuInstanceById": _instance_by_id,
    "nvmlDeviceGetPowerUsage": lambda call, out: put(out, _power_mw(call)),
    "nvmlDeviceGetTotalEnergyConsumption": lambda call, out: put(out, energy_mj(call)),
    "nvmlDeviceGetSamples": _samples,
}
