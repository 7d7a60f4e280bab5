"""An analysis as JSON. `docs/analysis.md` describes the keys. Unknown values are null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.ranks.data import of_clocks, of_ranks
from gpu_profile.analysis.views.text import reasons
from gpu_profile.join.region_watch import RegionChange
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.kernel_work import QUANTITIES, KernelWorks
from gpu_profile.regimes.operation import RegionOperations
from gpu_profile.report.as_json import Value
from gpu_profile.units import NS_PER_S

#: The version of all JSON output. A new key leaves it as it is. Removing a key or changing its meaning raises it.
SCHEMA_VERSION: Final = 1


def of_analysis(analysis: Analysis) -> Value:
    """All of an analysis."""
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": analysis.simulated,
        "start_ns": analysis.start_ns,
        "end_ns": analysis.end_ns,
        "lost_bytes": analysis.lost_bytes,
        "processes": [
            {
                "host": p.host,
                "pid": p.pid,
                "start_ns": p.start_ns,
                "end_ns": p.end_ns,
                "driver": p.driver or None,
                "driver_version": p.driver_version or None,
                "version": p.version,
                "rank": p.rank,
                "local_rank": p.local_rank,
                "world_size": p.world_size,
            }
            for p in analysis.processes
        ],
        "devices": [_device(use) for use in analysis.devices],
        "regions": [of_region(use) for use in analysis.regions],
        "ranks": [of_ranks(each) for each in analysis.ranks],
        "clocks": of_clocks(analysis.clocks),
        "events": [
            {"device": e.device, "t_ns": e.t_ns, "kind": e.kind, "code": e.code, "message": e.message}
            for e in analysis.events
        ],
        "changes": [_change(each) for each in analysis.changes],
        "untold": reasons(analysis),
    }


def _change(change: RegionChange) -> Value:
    now = change.change
    return {
        "region": change.region,
        "device": change.device or None,
        "t_ns": now.t_ns,
        "before": None if now.before is None else str(now.before),
        "after": str(now.after),
        "parts": [str(part) for part in now.parts],
        "confidence": now.confidence,
        "basis": now.basis,
        "rule": now.reason,
    }


def _device(use: DeviceUse) -> Value:
    device = use.device
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name or None,
        "kind": str(device.kind),
        "parent": device.parent,
        "start_ns": use.start_ns,
        "end_ns": use.end_ns,
        "utilization": use.utilization,
        "utilization_source": use.utilization_source or None,
        "coverage": use.coverage,
        "energy_j": use.energy_j,
        "energy_source": use.energy_source or None,
        "energy_coverage": use.energy_coverage,
        "power_w": use.power_w,
        "unattributed_j": use.unattributed_j,
        "unattributed_half_width_j": use.unattributed_half_width_j,
    }


def of_region(use: RegionUse) -> Mapping[str, Value]:
    """One region on one device."""
    summary, durations = use.summary, use.summary.durations
    mean = durations.total_s / durations.calls if durations.calls else None
    return {
        "region": summary.region,
        "device": summary.device.uuid or None,
        "calls": durations.calls,
        "executions": summary.executions,
        "failures": use.failures,
        "total_s": durations.total_s,
        "mean_s": mean,
        "p50_s": durations.p50_s,
        "p95_s": durations.p95_s,
        "max_s": durations.max_s,
        "items": durations.items,
        "items_per_s": use.items_per_s,
        "item_energy_j": use.item_energy_j,
        "interval_source": summary.interval_source,
        "interval_s": summary.interval_s,
        "busy": summary.busy,
        "busy_half_width": summary.busy_half_width,
        "busy_source": summary.busy_source or None,
        "busy_s": summary.busy_s,
        "busy_half_width_s": summary.busy_s_half_width,
        "power_w": summary.power_w,
        "power_half_width_w": summary.power_half_width,
        "energy_source": summary.energy_source or None,
        "energy_j": summary.energy_j,
        "energy_half_width_j": summary.energy_half_width,
        "call_energy_j": summary.call_energy_j,
        "metered_executions": 0 if summary.metered is None else summary.metered.executions,
        "metered_power_w": None if summary.metered is None else summary.metered.power_w,
        "metered_power_half_width_w": None if summary.metered is None else summary.metered.power_half_width_w,
        "memory_max_bytes": summary.memory_max,
        "throttled": dict(summary.throttled),
        "operations": None if use.operations is None else _operations(use.operations),
        "kernels": None if use.kernels is None else of_kernels(use.kernels),
        "verdict": _verdict(use.verdict),
        "reasons": list(use.reasons),
    }


def _operations(operations: RegionOperations) -> Value:
    evidence = operations.evidence()
    return {
        "n": operations.n,
        "flops": operations.flops,
        "flops_at_least": operations.at_least,
        "bytes": operations.bytes,
        "flops_per_s": operations.flops_per_s,
        "bytes_per_s": operations.bytes_per_s,
        "intensity": operations.intensity,
        "utilization": operations.utilization,
        "ceiling_flops_per_s": operations.ceiling,
        "precision": operations.precision or None,
        "coverage": evidence.coverage,
        **{key: evidence.get(key) for key in ("busy", "compute", "memory", "growth")},
    }


def of_kernels(kernels: KernelWorks) -> dict[str, Value]:
    """A profiler's records of a region. Each ratio follows the quantities that it is made of."""
    evidence, mean_ns = kernels.evidence(), kernels.mean_kernel_ns
    ratios: dict[str, dict[str, Value]] = {
        "kernel_ns": {"mean_kernel_s": None if mean_ns is None else mean_ns / NS_PER_S},
        "overlap_ns": {"overlap_ratio": kernels.overlap_ratio, "occupancy": kernels.occupancy},
    }
    values: dict[str, Value] = {"executions": kernels.executions, "operations": evidence.n}
    for each in QUANTITIES:
        values |= {each.key: each.of(kernels), **ratios.get(each.name, {})}
    shares = ("busy", "work", "communication", "transfer", "host_wait", "launch", "other_wait")
    return values | {
        "coverage": evidence.coverage,
        "shares": {key: evidence.get(key) for key in shares},
        "top": [{"name": name, "count": count, "total_s": ns / NS_PER_S} for name, count, ns in kernels.top],
    }


def _verdict(verdict: Verdict) -> Value:
    unknown = verdict.regime is Regime.UNKNOWN
    return {
        "regime": str(verdict.regime),
        "confidence": None if unknown else verdict.confidence,
        "basis": verdict.basis,
        "rule": verdict.rule,
        "margin": None if unknown else verdict.margin,
        "n": verdict.n,
        "coverage": verdict.coverage,
        "runner_up": None if verdict.runner_up is None else str(verdict.runner_up),
        "advice": verdict.advice or None,
    }


def of_verdicts(before: Analysis, after: Sequence[Verdict]) -> Value:
    """The verdicts by default and by other thresholds."""
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated": before.simulated,
        "regions": [
            {
                "region": use.summary.region,
                "device": use.summary.device.uuid or None,
                "by_default": _verdict(use.verdict),
                "by_rules": _verdict(verdict),
                "changed": verdict.regime is not use.verdict.regime,
            }
            for use, verdict in zip(before.regions, after, strict=True)
        ],
    }
