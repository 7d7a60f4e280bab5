"""Faults in a simulated fleet, one for each alert. They begin at three o'clock on the second day and stay."""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from benchmarks.alert_fleet import DAY, GPUS, KINDS, MINUTES, SimulatedNode

AT: Final = DAY + 180
#: Faulty GPUs of a node: two are healthy.
_SHARED: Final = GPUS - 2
_LATER: Final = np.arange(1, MINUTES - AT + 1)
Fault = Callable[[SimulatedNode, int], None]


class Planted(NamedTuple):
    """A fault of a GPU, a whole node or a region, on a node with this load."""

    fault: Fault
    kind: str
    where: str = "gpu"


def _gauge(name: str, value: float, labels: str = "") -> Fault:
    def plant(node: SimulatedNode, index: int) -> None:
        node.series[node.gpu(index, name, labels)][AT:] = value

    return plant


def _growth(name: str, a_minute: float, labels: str = "") -> Fault:
    """A GPU's counter grows by as much more."""

    def plant(node: SimulatedNode, index: int) -> None:
        node.series[node.gpu(index, name, labels)][AT:] += a_minute * _LATER

    return plant


def _of_node(name: str, labels: str, values: tuple[float, float], a_minute: float = 0) -> Fault:
    """A series of the exporter has one value before the fault and one from it on, and grows."""

    def plant(node: SimulatedNode, index: int) -> None:
        series = node.series.setdefault(node.node(name, labels), np.full(MINUTES, float(values[0])))
        series[AT:] = values[1] + a_minute * _LATER

    return plant


def _xid(code: int) -> Fault:
    def plant(node: SimulatedNode, index: int) -> None:
        errors = np.full(MINUTES, np.nan)
        errors[AT:] = 1
        node.series[node.gpu(index, "nvidia_gpu_xid_errors_total", f', nvidia_gpu_xid="{code}"')] = errors
        node.series[node.gpu(index, "nvidia_gpu_xid_errors_any_total")][AT:] += 1

    return plant


def _times(name: str, factor: float, ranks: int = GPUS) -> Fault:
    """A counter of a region grows by as much faster."""

    def plant(node: SimulatedNode, _: int) -> None:
        for rank in range(ranks):
            for series, values in node.series.items():
                if series.startswith(node.region(rank, name)[:-1]):
                    base = values[:AT][~np.isnan(values[:AT])][-1]
                    values[AT:] = base + factor * (values[AT:] - base)

    return plant


def _regime(regime: str) -> Fault:
    def plant(node: SimulatedNode, _: int) -> None:
        for rank in range(GPUS):
            labels = f', hw_id="GPU-{node.job}-{rank}", regime="%s"'
            usual = node.region(rank, "gpu_profile_region_calls_total", labels % "COMPUTE_BOUND")
            other = node.region(rank, "gpu_profile_region_calls_total", labels % regime)
            grown = node.series[usual].copy()
            node.series.setdefault(other, np.zeros(MINUTES))
            node.series[usual][AT:] = grown[AT - 1]
            node.series[other][AT:] += grown[AT:]

    return plant


def _stop(*names: str) -> Fault:
    """Counters of a GPU that no longer grow."""

    def plant(node: SimulatedNode, index: int) -> None:
        for name in names:
            values = node.series[node.gpu(index, name)]
            values[AT:] = values[:AT][~np.isnan(values[:AT])][-1]

    return plant


def _vanish(node: SimulatedNode, index: int) -> None:
    for name in node.of_gpu(index):
        node.series[name][AT:] = np.nan


def _idle(node: SimulatedNode, index: int) -> None:
    node.series[node.gpu(index, "gpu_profile_busy_seconds_total")][:] = 0


def _half_measured(node: SimulatedNode, index: int) -> None:
    name = node.gpu(index, "gpu_profile_activity_observed_seconds_total", ', nvidia_gpu_unit="sm"')
    node.series[name][AT:] -= 24.0 * _LATER


def _link_down(node: SimulatedNode, index: int) -> None:
    state = np.ones(MINUTES)
    state[AT:] = 0
    node.series[node.gpu(index, "nvidia_gpu_nvlink_link_state", ', nvidia_gpu_nvlink_link="3"')] = state


def _target_down(node: SimulatedNode, _: int) -> None:
    for name, values in node.series.items():
        values[AT:] = 0 if name == node.node("up") else np.nan


def _twice(node: SimulatedNode, index: int) -> None:
    since = np.where(np.arange(MINUTES) < AT, np.nan, 0)
    again = {name.replace('job="gpu"', 'job="again"'): values + since for name, values in node.series.items()}
    node.series = again | node.series


_THROTTLE: Final = ', nvidia_gpu_throttle_reason="%s"'
_CORE: Final = ', hw_sensor_location="core", hw_type="gpu"'
_END: Final = MINUTES * 60.0
_CALLS, _SUM = "gpu_profile_region_calls_total", "gpu_profile_region_duration_seconds_sum"
_UNCERTAIN: Final = "gpu_profile_region_energy_uncertain_joules_total"
FAULTS: Final = {
    "GpuProfileTargetDown": Planted(_target_down, "notebooks", "node"),
    "GpuDriverDown": Planted(_of_node("gpu_profile_driver_up", "", (1, 0)), "notebooks", "node"),
    "GpuSamplesStale": Planted(_gauge("gpu_profile_sample_age_seconds", 45), "training"),
    "GpuBusyTimeMissing": Planted(
        _stop("gpu_profile_observed_seconds_total", "gpu_profile_busy_seconds_total"), "training"
    ),
    "GpuCoverageLow": Planted(_half_measured, "training"),
    "GpuSamplesDropped": Planted(
        _of_node("gpu_profile_samples_dropped_total", ', reason="late"', (0, 0), 2000), "serving", "node"
    ),
    "GpuReadersRestarting": Planted(
        _of_node("gpu_profile_reader_restarts_total", ', reason="hung"', (0, 0), 1), "serving", "node"
    ),
    "GpuProfilePushFailing": Planted(
        _of_node("gpu_profile_push_failures_total", ', signal="metrics"', (0, 0), 4), "serving", "node"
    ),
    "GpuProfilePushLosing": Planted(
        _of_node("gpu_profile_push_dropped_total", ', signal="logs", reason="queue_full"', (0, 1)), "serving", "node"
    ),
    "GpuAttributionDown": Planted(
        _of_node("gpu_profile_attribution_up", ', source="dra", reason="timeout"', (np.nan, 0)), "serving", "node"
    ),
    "GpuProfileSeriesDropped": Planted(
        _of_node("gpu_profile_series_dropped_total", ', reason="over_budget"', (0, 0), 9), "serving", "node"
    ),
    "GpuProfileScrapedTwice": Planted(_twice, "serving", "node"),
    "GpuProfileCertificateEnds": Planted(
        _of_node("gpu_profile_http_certificate_end_timestamp_seconds", "", (100 * _END, _END)), "serving", "node"
    ),
    "GpuLost": Planted(_gauge("gpu_profile_device_up", 0), "training"),
    "GpuVanished": Planted(_vanish, "training"),
    "GpuHot": Planted(_gauge("hw_temperature_celsius", 92, _CORE), "training"),
    "GpuSlowedByHeatOrPowerFault": Planted(
        _growth("nvidia_gpu_throttle_time_seconds_total", 15, _THROTTLE % "sw_thermal"), "training"
    ),
    "GpuPowerCapped": Planted(
        _growth("nvidia_gpu_throttle_time_seconds_total", 50, _THROTTLE % "sw_power_cap"), "training"
    ),
    "GpuClockBelowPeers": Planted(
        _gauge("nvidia_gpu_clock_hertz", 1.6e9, ', nvidia_gpu_clock_domain="sm"'), "training"
    ),
    "GpuSpinning": Planted(_growth("gpu_profile_spinning_seconds_total", 59), "training"),
    "GpuHeldButIdle": Planted(_idle, "training"),
    "GpuMemoryNearlyFull": Planted(_gauge("hw_gpu_memory_utilization_ratio", 0.993), "training"),
    "GpuPcieLinkNarrow": Planted(_gauge("nvidia_gpu_pcie_link_width", 8), "training"),
    "GpuNvLinkErrors": Planted(_growth("nvidia_gpu_nvlink_errors_total", 0.02, ', error_type="recovery"'), "training"),
    "GpuNvLinkDown": Planted(_link_down, "training"),
    "GpuXidCritical": Planted(_xid(95), "training"),
    "GpuXid": Planted(_xid(63), "training"),
    "GpuXidOfProgram": Planted(_xid(31), "training"),
    "GpuUncorrectedMemoryErrors": Planted(
        _gauge("hw_errors_total", 1, ', error_type="uncorrected", hw_type="gpu"'), "training"
    ),
    "GpuCorrectedErrorsGrow": Planted(
        _growth("hw_errors_total", 0.5, ', error_type="corrected", hw_type="gpu"'), "training"
    ),
    "GpuRowRemapPending": Planted(_gauge("nvidia_gpu_remapped_rows_pending", 1), "training"),
    "GpuRowRemapFailed": Planted(_gauge("nvidia_gpu_remapped_rows_failure", 1), "training"),
    "GpuRecoveryActionNeeded": Planted(_gauge("nvidia_gpu_recovery_action", 1), "training"),
    "RegionSlower": Planted(_times(_SUM, 1.5), "batch", "region"),
    "RegionHungrier": Planted(_times("gpu_profile_region_energy_joules_total", 1.5), "batch", "region"),
    "RegionOtherRegime": Planted(_regime("MEMORY_BOUND"), "batch", "region"),
    "RegionMostlyOverhead": Planted(_regime("OVERHEAD_BOUND"), "batch", "region"),
    "RegionMostlyWaitsForHost": Planted(_regime("HOST_BOUND"), "batch", "region"),
    "RegionMostlyUncertain": Planted(_times(_UNCERTAIN, 300), "batch", "region"),
    "RankStraggles": Planted(_times(_SUM, 1.4, ranks=1), "training", "region"),
}


def planted() -> tuple[list[SimulatedNode], set[tuple[str, str, str]]]:
    """Nodes with the faults, and each alert with its GPU, its node, or its job and region.

    Six faults of GPUs share a node, and those of the exporter another one. A region's fault has its own program.
    """
    fleet: dict[tuple[str, str], SimulatedNode] = {}
    expected = set()
    of_gpus = [name for name, fault in FAULTS.items() if fault.where == "gpu"]
    for name, fault in FAULTS.items():
        index, group = 0, name
        if fault.where == "gpu":
            index, group = of_gpus.index(name) % _SHARED, f"gpu {of_gpus.index(name) // _SHARED}"
        elif fault.kind == "serving":
            group = "exporter"
        key = (fault.kind, group)
        if key not in fleet:
            fleet[key] = SimulatedNode(KINDS.index(fault.kind) + len(KINDS) * len(fleet), seed=2)
        node = fleet[key]
        fault.fault(node, index)
        job = node.job if fault.where == "region" else ""
        where = {"gpu": f"GPU-{node.job}-{index}", "node": node.instance, "region": "step"}[fault.where]
        expected.add((name, job, where))
    for (_, group), node in fleet.items():
        if group in FAULTS and FAULTS[group].where == "region":
            node.series = {name: values for name, values in node.series.items() if f'job="{node.job}"' in name}
    return [*fleet.values()], expected
