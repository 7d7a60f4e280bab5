"""A report as one JSON object; null for unknown values. `docs/kernels.md` describes the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from gpu_profile.kernels.activity import Activity, evidence
from gpu_profile.kernels.counters.sums import Matched
from gpu_profile.kernels.joining.idle import Idle
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.counters import counters_object
from gpu_profile.kernels.report import ReportData
from gpu_profile.kernels.sums import CopySum, KernelSum, TimeSums, longest_first
from gpu_profile.regimes import Regime, Verdict, classify
from gpu_profile.units import seconds

#: It changes if a key is removed or changes its meaning, not when one is added.
SCHEMA_VERSION: Final = 1

Object = dict[str, Any]


def document(report: ReportData, *, region: str | None = None, top: int = 10) -> Object:
    """A whole report, or one `region` of it (UsageError if there is none). `top` kernels by their time."""
    chosen = report.regions if region is None else (report.region(region),)
    causes = report.causes
    outside = report.outside
    return {
        "schema_version": SCHEMA_VERSION,
        "source": report.source or None,
        "on_host": report.on_host,
        **_whole(report.activity),
        "kernels": _kernels(report.kernels, top),
        "regions": [of_region(each, causes=causes, top=top) for each in chosen],
        "outside": None if outside is None else of_region(outside, causes=causes, top=top),
        "counted": None if report.counted is None else _counted(report.counted),
        "notes": dict(report.notes),
        "dropped": report.dropped,
        **({"problem": report.cut} if report.cut else {}),
    }


def _whole(a: Activity | None) -> Object:
    verdict = None if a is None else classify(evidence(a))
    if a is None:
        a = Activity(0, {}, (), 0, 0, 0, 0, 0, 0, 0, 0, None, 0, Idle(), ())
    there, causes = a.operations > 0, a.launches > 0
    return {
        "operations": a.operations,
        "devices": list(a.devices),
        "span_s": seconds(a.span_ns) if there else None,
        "busy_s": seconds(a.busy_ns) if there else None,
        "busy_ratio": _share(a.busy_ns, a.device_ns),
        "work_s": seconds(a.work_ns) if there else None,
        **_links(a, measured=there),
        "copy_s": seconds(a.copy_ns) if there else None,
        "mean_kernel_s": None if a.mean_kernel_ns is None else a.mean_kernel_ns / 1e9,
        "counts": {str(kind): count for kind, count in a.counts.items()},
        "idle": _idle(a.idle, causes=causes) if there else None,
        **_verdict(verdict),
        "streams": [
            {
                "device": s.device,
                "stream": s.stream,
                "operations": s.operations,
                "span_s": seconds(s.span_ns),
                "busy_s": seconds(s.busy_ns),
                "idle": _idle(s.idle, causes=causes),
            }
            for s in a.streams
        ],
    }


def of_region(r: RegionKernels, *, causes: bool, top: int) -> Object:
    """One region. `causes`: the recording has calls of the host, from which the causes of idle time follow."""
    on_gpu, ran = not r.on_host, bool(r.name)
    used = on_gpu and bool(r.devices)
    return {
        "name": r.name or None,
        "executions": r.executions if ran else None,
        "host_s": seconds(r.host_ns) if ran else None,
        "on_host": r.on_host,
        "devices": list(r.devices) if on_gpu else [],
        "span_s": seconds(r.span_ns) if used else None,
        "busy_s": seconds(r.busy_ns),
        "busy_ratio": r.busy_ratio if used else None,
        "others_s": seconds(r.others_ns) if used else None,
        "idle": _idle(r.idle, causes=causes) if used else None,
        "operations": r.operations,
        "own": r.own,
        "launches": r.launches if on_gpu else None,
        "kernels": _kernels(r.kernels, top),
        "copies": {direction: _copies(sums) for direction, sums in r.copies.items()},
        **_links(r, measured=on_gpu),
        "backward": {"operations": r.backward, "busy_s": seconds(r.backward_ns)} if on_gpu else None,
        "graph_operations": r.graph if on_gpu else None,
        "beside_s": seconds(r.beside_ns) if on_gpu and ran else None,
        "waits": {"count": r.waits, "total_s": seconds(r.wait_ns)} if on_gpu and ran else None,
        "occupancy": r.occupancy,
        "occupancy_of_s": None if r.occupancy is None else seconds(r.occupancy_of_ns),
        "breadth": r.breadth,
        "breadth_of_s": None if r.breadth is None else seconds(r.breadth_of_ns),
        "memory": [asdict(each) for each in r.memory],
        "counters": counters_object(r.counters),
        **_verdict(r.verdict()),
    }


def _links(sums: TimeSums, *, measured: bool) -> Object:
    return {
        "communication_s": seconds(sums.communication_ns) if measured else None,
        "overlap_s": seconds(sums.overlap_ns) if measured else None,
        "overlap_ratio": sums.overlap_ratio,
        "transfer_s": seconds(sums.transfer_ns) if measured else None,
        "exposed_transfer_s": seconds(sums.exposed_transfer_ns) if measured else None,
    }


def _kernels(kernels: Mapping[str, KernelSum], top: int) -> Object:
    count = sum(each.count for each in kernels.values())
    total = sum(each.total_ns for each in kernels.values())
    return {
        "count": count,
        "names": len(kernels),
        "total_s": seconds(total),
        "mean_s": total / count / 1e9 if count else None,
        "top": [
            {
                "name": name,
                "count": each.count,
                "total_s": seconds(each.total_ns),
                "mean_s": each.total_ns / each.count / 1e9 if each.count else None,
                "max_s": seconds(each.max_ns),
                "share": _share(each.total_ns, total),
            }
            for name, each in longest_first(kernels)[:top]
        ],
    }


def _copies(sums: CopySum) -> Object:
    return {
        "count": sums.count,
        "total_s": seconds(sums.total_ns),
        # Without any recorded size the bytes are unknown, not 0.
        "bytes": sums.bytes if sums.known_ns or sums.bytes else None,
        "bytes_per_s": sums.bytes_per_s,
    }


def _counted(matched: Matched) -> Object:
    return {
        "pairs": matched.pairs,
        "ranges": matched.ranges,
        "records_alone": dict(matched.records),
        "kernels_alone": dict(matched.kernels),
    }


def _idle(idle: Idle, *, causes: bool) -> Object:
    times = idle.by_cause(causes=causes)
    return {f"{cause}_s": None if ns is None else seconds(ns) for cause, ns in times.items()}


def _verdict(verdict: Verdict | None) -> Object:
    if verdict is None:
        keys = ("regime", "confidence", "basis", "coverage", "rule", "runner_up", "advice")
        return dict.fromkeys(keys) | {"regime": str(Regime.UNKNOWN)}
    unknown = verdict.regime is Regime.UNKNOWN
    return {
        "regime": str(verdict.regime),
        "confidence": None if unknown else verdict.confidence,
        "basis": verdict.basis,
        "coverage": verdict.coverage,
        "rule": verdict.rule,
        "runner_up": None if verdict.runner_up is None else str(verdict.runner_up),
        "advice": verdict.advice or None,
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
