"""Simulated NVML functions for the processes on a device. The writers of work logs compute; no process draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated.nvml_call import NvmlCall, ReturnCode, number, put
from gpu_profile.driver.simulated.sensors import SAMPLES_KEPT

_NO_INSTANCE: Final = 0xFFFFFFFF


def _compute(call: NvmlCall, count: Any, out: Any) -> None:
    units = call.library.node.scenario.units
    held = call.library.node.processes(call.unit, call.t_ns)
    room = count._obj.value
    put(count, len(held))
    if len(held) > room:
        raise ReturnCode(nv.NVML_ERROR_INSUFFICIENT_SIZE)
    if not held or out is None:
        return
    for info, (pid, slot, size) in zip(out, held, strict=False):
        instance = units[slot].parent is not None
        info.pid, info.usedGpuMemory = pid, size
        info.gpuInstanceId = units[slot].index + 1 if instance else _NO_INSTANCE
        info.computeInstanceId = 0 if instance else _NO_INSTANCE


def _nobody(_: NvmlCall, count: Any, _out: Any) -> None:
    put(count, 0)


def _utilization(call: NvmlCall, out: Any, count: Any, last_seen_us: Any) -> None:
    call.whole_gpu_only()
    # Samples end when the utilisation is renewed; the newest `SAMPLES_KEPT` are kept.
    period, epoch = call.unit.model.utilization_refresh_ns, call.sensors.epoch_ns
    end = call.sensors.refreshed(call.t_ns, period)
    after = call.sensors.refreshed(max(epoch, number(last_seen_us) * 1000), period)
    if after >= end:
        raise ReturnCode(nv.NVML_ERROR_NOT_FOUND)
    shares = call.library.node.shares(call.unit, max(after, end - SAMPLES_KEPT * period), end)
    if not shares:
        raise ReturnCode(nv.NVML_ERROR_NOT_FOUND)
    room = count._obj.value
    put(count, len(shares))
    if out is None or len(shares) > room:
        raise ReturnCode(nv.NVML_ERROR_INSUFFICIENT_SIZE)
    for row, (pid, share) in zip(out, shares.items(), strict=False):
        row.pid, row.timeStamp, row.smUtil = pid, end // 1000, round(100 * share)


TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlDeviceGetComputeRunningProcesses_v3": _compute,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _nobody,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _nobody,
    "nvmlDeviceGetProcessUtilization": _utilization,
}
