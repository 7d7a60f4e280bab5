"""Simulated GPM: activity between two samples. A sample contains the totals at the last internal refresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml as nv

from gpu_profile.driver.simulated.nvml_call import (
    NvmlCall,
    ReturnCode,
    SimulatedLibrary,
    address,
    needs,
    number,
    put_address,
)
from gpu_profile.driver.simulated.physics import SimulatedQuantity
from gpu_profile.units import MIB, NS_PER_S

#: Metric -> (column, its scale, short name, unit). None: the device has the pipe, but it is never active.
_METRICS: Final[dict[str, tuple[SimulatedQuantity | None, float, bytes, bytes]]] = {
    "NVML_GPM_METRIC_GRAPHICS_UTIL": (SimulatedQuantity.BUSY, 100.0, b"Graphics Util", b"%"),
    "NVML_GPM_METRIC_SM_UTIL": (SimulatedQuantity.SM, 100.0, b"SM Util", b"%"),
    "NVML_GPM_METRIC_SM_OCCUPANCY": (SimulatedQuantity.OCCUPANCY, 100.0, b"SM Occupancy", b"%"),
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL": (SimulatedQuantity.TENSOR, 100.0, b"Tensor Util", b"%"),
    "NVML_GPM_METRIC_HMMA_TENSOR_UTIL": (SimulatedQuantity.TENSOR, 100.0, b"HMMA Tensor Util", b"%"),
    "NVML_GPM_METRIC_DRAM_BW_UTIL": (SimulatedQuantity.DRAM, 100.0, b"DRAM BW Util", b"%"),
    "NVML_GPM_METRIC_FP64_UTIL": (SimulatedQuantity.FP64, 100.0, b"FP64 Util", b"%"),
    "NVML_GPM_METRIC_FP32_UTIL": (SimulatedQuantity.FP32, 100.0, b"FP32 Util", b"%"),
    "NVML_GPM_METRIC_FP16_UTIL": (None, 0.0, b"FP16 Util", b"%"),
    "NVML_GPM_METRIC_INTEGER_UTIL": (None, 0.0, b"Integer Util", b"%"),
    "NVML_GPM_METRIC_IMMA_TENSOR_UTIL": (None, 0.0, b"IMMA Tensor Util", b"%"),
    "NVML_GPM_METRIC_DFMA_TENSOR_UTIL": (None, 0.0, b"DFMA Tensor Util", b"%"),
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC": (SimulatedQuantity.PCIE_TX, 1 / MIB, b"PCIe TX", b"MiB/s"),
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC": (SimulatedQuantity.PCIE_RX, 1 / MIB, b"PCIe RX", b"MiB/s"),
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC": (SimulatedQuantity.NVLINK, 1 / MIB, b"NVLink RX", b"MiB/s"),
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": (SimulatedQuantity.NVLINK, 1 / MIB, b"NVLink TX", b"MiB/s"),
}
_NVLINK: Final = frozenset(name for name in _METRICS if "NVLINK" in name)
_BY_ID: Final = {getattr(nv, name): (name, *row) for name, row in _METRICS.items() if hasattr(nv, name)}
NAMES: Final = frozenset(_METRICS)


def _support(call: NvmlCall, out: Any) -> None:
    out._obj.isSupportedDevice = int(call.unit.model.gpm)


def _allocate(library: SimulatedLibrary, out: Any) -> None:
    sample = library.new_object()
    library.gpm_samples[sample] = None
    put_address(out, sample)


def _free(library: SimulatedLibrary, sample: Any) -> None:
    if library.gpm_samples.pop(address(sample), 0) == 0:
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)


def _store(call: NvmlCall, slot: int, sample: Any) -> None:
    needs(call.unit.model.gpm)
    if (where := address(sample)) not in call.library.gpm_samples:
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    instant, totals = call.library.node.sensors[slot].gpm_snapshot(call.t_ns)
    call.library.gpm_samples[where] = (slot, instant, totals.copy())


def _get(call: NvmlCall, sample: Any) -> None:
    _store(call, call.unit.slot, sample)


def _mig_get(call: NvmlCall, instance: Any, sample: Any) -> None:
    if not 0 < number(instance) <= len(call.unit.slices):
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    _store(call, call.unit.slices[number(instance) - 1], sample)


def _metrics(library: SimulatedLibrary, out: Any) -> None:
    request = out._obj
    if request.version != nv.NVML_GPM_METRICS_GET_VERSION:
        raise ReturnCode(nv.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    before = library.gpm_samples.get(address(request.sample1))
    after = library.gpm_samples.get(address(request.sample2))
    if before is None or after is None or before[0] != after[0]:
        raise ReturnCode(nv.NVML_ERROR_INVALID_ARGUMENT)
    unit, elapsed = library.node.scenario.units[after[0]], after[1] - before[1]
    # Two samples of one refresh have the same totals: there is no window between them.
    rates = (after[2] - before[2]) * (NS_PER_S / elapsed) if elapsed > 0 else None
    for i in range(request.numMetrics):
        metric = request.metrics[i]
        row = _BY_ID.get(metric.metricId)
        if row is None or row[0] in unit.unsupported or (row[0] in _NVLINK and not unit.model.nvlinks):
            metric.nvmlReturn = nv.NVML_ERROR_NOT_SUPPORTED
        elif rates is None:
            metric.nvmlReturn = nv.NVML_ERROR_NOT_READY
        else:
            _, column, scale, name, symbol = row
            metric.nvmlReturn = nv.NVML_SUCCESS
            metric.value = 0.0 if column is None else float(rates[column]) * scale
            metric.metricInfo.shortName = metric.metricInfo.longName = name
            metric.metricInfo.unit = symbol


DEVICE_TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlGpmQueryDeviceSupport": _support,
    "nvmlGpmSampleGet": _get,
    "nvmlGpmMigSampleGet": _mig_get,
}
TABLE: Final[dict[str, Callable[..., None]]] = {
    "nvmlGpmSampleAlloc": _allocate,
    "nvmlGpmSampleFree": _free,
    "nvmlGpmMetricsGet": _metrics,
}
