"""An analysis as CSV: a row for each region on each device, and a row for each device.

Units are in the header's names. What is not known is an empty cell, never 0. Text that a spreadsheet would take for a
formula has an apostrophe before it; numbers are as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from gpu_profile.analysis.account import Analysis, DeviceUse, RegionUse
from gpu_profile.analysis.data import of_kernels
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.operation import Operations
from gpu_profile.report.as_csv import Cell, csv_text
from gpu_profile.units import seconds


def _mean_s(use: RegionUse) -> float | None:
    durations = use.summary.durations
    return durations.total_s / durations.calls if durations.calls else None


def _judged(value: Callable[[Verdict], Cell]) -> Callable[[RegionUse], Cell]:
    """Of a verdict that there is."""
    return lambda use: None if use.verdict.regime is Regime.UNKNOWN else value(use.verdict)


def _operated(value: Callable[[Operations], Cell]) -> Callable[[RegionUse], Cell]:
    """Of profiled operations, where there are any."""
    return lambda use: None if use.operations is None else value(use.operations)


def _of_kernels(key: str) -> Callable[[RegionUse], Cell]:
    """Of what a profiler's records say, where there are any; by its key in JSON."""
    return lambda use: None if use.kernels is None else cast(Cell, of_kernels(use.kernels)[key])


_REGIONS: Final[Mapping[str, Callable[[RegionUse], Cell]]] = {
    "region": lambda use: use.summary.region,
    "device_uuid": lambda use: use.summary.device.uuid,
    "device_index": lambda use: use.summary.device.index,
    "device_name": lambda use: use.summary.device.name,
    "calls": lambda use: use.summary.durations.calls,
    "executions": lambda use: use.summary.executions,
    "failures": lambda use: use.failures,
    "total_s": lambda use: use.summary.durations.total_s,
    "mean_s": _mean_s,
    "p50_s": lambda use: use.summary.durations.p50_s,
    "p95_s": lambda use: use.summary.durations.p95_s,
    "max_s": lambda use: use.summary.durations.max_s,
    "items": lambda use: use.summary.durations.items,
    "items_per_s": lambda use: use.items_per_s,
    "item_energy_j": lambda use: use.item_energy_j,
    "interval_source": lambda use: use.summary.interval_source,
    "interval_s": lambda use: use.summary.interval_s,
    "busy_ratio": lambda use: use.summary.busy,
    "busy_half_width_ratio": lambda use: use.summary.busy_half_width,
    "busy_source": lambda use: use.summary.busy_source,
    "busy_s": lambda use: use.summary.busy_s,
    "power_w": lambda use: use.summary.power_w,
    "power_half_width_w": lambda use: use.summary.power_half_width,
    "energy_source": lambda use: use.summary.energy_source,
    "energy_j": lambda use: use.summary.energy_j,
    "call_energy_j": lambda use: use.summary.call_energy_j,
    "memory_max_bytes": lambda use: use.summary.memory_max,
    "flops": _operated(lambda operations: operations.flops),
    "traffic_bytes": _operated(lambda operations: operations.bytes),
    "flops_per_s": _operated(lambda operations: operations.flops_per_s),
    "traffic_bytes_per_s": _operated(lambda operations: operations.bytes_per_s),
    "flops_per_byte": _operated(lambda operations: operations.intensity),
    "profiled": _of_kernels("executions"),
    "kernels": _of_kernels("kernels"),
    "kernel_s": _of_kernels("kernel_s"),
    "mean_kernel_s": _of_kernels("mean_kernel_s"),
    "profiled_s": lambda use: None if use.kernels is None else seconds(use.kernels.whole_ns),
    "host_wait_s": _of_kernels("host_wait_s"),
    "communication_s": _of_kernels("communication_s"),
    "copied_bytes": _of_kernels("copy_bytes"),
    "regime": lambda use: str(use.verdict.regime),
    "confidence_ratio": _judged(lambda verdict: verdict.confidence),
    "basis": lambda use: use.verdict.basis,
    "rule": lambda use: use.verdict.rule,
    "runner_up": lambda use: None if use.verdict.runner_up is None else str(use.verdict.runner_up),
    "windows": lambda use: use.verdict.n,
    "coverage_ratio": lambda use: use.verdict.coverage,
    "advice": lambda use: use.verdict.advice,
    "unknown_because": lambda use: "; ".join(use.reasons),
}
_DEVICES: Final[Mapping[str, Callable[[DeviceUse], Cell]]] = {
    "device_uuid": lambda use: use.device.uuid,
    "device_index": lambda use: use.device.index,
    "device_name": lambda use: use.device.name,
    "kind": lambda use: str(use.device.kind),
    "parent_uuid": lambda use: use.device.parent,
    "start_unix_ns": lambda use: use.start_ns or None,
    "end_unix_ns": lambda use: use.end_ns or None,
    "utilization_ratio": lambda use: use.utilization,
    "utilization_source": lambda use: use.utilization_source,
    "coverage_ratio": lambda use: use.coverage,
    "energy_j": lambda use: use.energy_j,
    "energy_source": lambda use: use.energy_source,
    "power_w": lambda use: use.power_w,
    "unattributed_j": lambda use: use.unattributed_j,
    "unknown_because": lambda use: "; ".join(use.reasons),
}


def regions_csv(analysis: Analysis) -> str:
    """A header and a row for each region on each of its devices, ended by line feeds."""
    return csv_text(_REGIONS, analysis.regions)


def devices_csv(analysis: Analysis) -> str:
    """A header and a row for each device, ended by line feeds."""
    return csv_text(_DEVICES, analysis.devices)
