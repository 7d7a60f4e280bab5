"""An analysis as CSV: a row for each region on each device, and a row for each device.

Units are in the header's names. An unknown value is an empty cell, never 0. Text that a spreadsheet would take for a
formula gets an apostrophe in front; numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.views.data import of_region
from gpu_profile.report.as_csv import Cell, csv_text
from gpu_profile.report.as_json import Value
from gpu_profile.units import seconds

#: A region on one device, and its JSON.
_Row = tuple[RegionUse, Mapping[str, Value]]


def _of(key: str, inside: str = "") -> Callable[[_Row], Cell]:
    """A reader of one JSON key, or of a key of the object `inside`. Unknown values are null there too."""

    def read(row: _Row) -> Cell:
        values = cast("Mapping[str, Cell] | None", row[1][inside] if inside else row[1])
        return None if values is None else values[key]

    return read


def _same(*keys: str, inside: str = "") -> Mapping[str, Callable[[_Row], Cell]]:
    """Columns with the same names as in JSON."""
    return {key: _of(key, inside) for key in keys}


_REGIONS: Final[Mapping[str, Callable[[_Row], Cell]]] = {
    "region": _of("region"),
    "device_uuid": _of("device"),
    "device_index": lambda row: row[0].summary.device.index,
    "device_name": lambda row: row[0].summary.device.name,
    **_same("calls", "executions", "failures", "total_s", "mean_s", "p50_s", "p95_s", "max_s"),
    **_same("items", "items_per_s", "item_energy_j", "interval_source", "interval_s"),
    "busy_ratio": _of("busy"),
    "busy_half_width_ratio": _of("busy_half_width"),
    **_same("busy_source", "busy_s", "busy_half_width_s", "power_w", "power_half_width_w"),
    **_same("energy_source", "energy_j", "energy_half_width_j", "call_energy_j", "memory_max_bytes"),
    **_same("metered_executions", "metered_power_w", "metered_power_half_width_w"),
    "throttled_ratio": lambda row: max(row[0].summary.throttled.values(), default=None),
    "throttled_by": lambda row: _most(row[0].summary.throttled),
    "flops": _of("flops", "operations"),
    "flops_at_least": _of("flops_at_least", "operations"),
    "traffic_bytes": _of("bytes", "operations"),
    "flops_per_s": _of("flops_per_s", "operations"),
    "traffic_bytes_per_s": _of("bytes_per_s", "operations"),
    "flops_per_byte": _of("intensity", "operations"),
    "profiled": _of("executions", "kernels"),
    **_same("kernels", "kernel_s", "mean_kernel_s", inside="kernels"),
    "profiled_s": lambda row: None if row[0].kernels is None else seconds(row[0].kernels.whole_ns),
    **_same("host_wait_s", "communication_s", inside="kernels"),
    "copied_bytes": _of("copy_bytes", "kernels"),
    "regime": _of("regime", "verdict"),
    "confidence_ratio": _of("confidence", "verdict"),
    **_same("basis", "rule", "runner_up", inside="verdict"),
    "windows": _of("n", "verdict"),
    "coverage_ratio": _of("coverage", "verdict"),
    "advice": _of("advice", "verdict"),
    "unknown_because": lambda row: "; ".join(row[0].reasons),
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
    "energy_coverage_ratio": lambda use: use.energy_coverage,
    "power_w": lambda use: use.power_w,
    "unattributed_j": lambda use: use.unattributed_j,
    "unattributed_half_width_j": lambda use: use.unattributed_half_width_j,
    "unknown_because": lambda use: "; ".join(use.reasons),
}


def _most(shares: Mapping[str, float]) -> str:
    """The reason with the largest share; empty if no share is above 0."""
    reason = max(shares, key=lambda each: shares[each], default="")
    return reason if shares.get(reason) else ""


def regions_csv(analysis: Analysis) -> str:
    """A header and a row for each region on each of its devices, ended by line feeds."""
    return csv_text(_REGIONS, [(use, of_region(use)) for use in analysis.regions])


def devices_csv(analysis: Analysis) -> str:
    """A header and a row for each device, ended by line feeds."""
    return csv_text(_DEVICES, analysis.devices)
