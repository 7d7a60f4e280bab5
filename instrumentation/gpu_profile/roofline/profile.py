"""The profiler's result: a dict of JSON values, with GPURegimeProfiler's keys and units, and additional keys."""

from __future__ import annotations

from typing import Any, Final

from gpu_profile.regimes import Regime, Verdict
from gpu_profile.roofline import headroom
from gpu_profile.roofline.measurement import Measurement
from gpu_profile.roofline.position import Position
from gpu_profile.units import percent

#: The share of the time from which advice and plots mention a cost.
NOTABLE: Final = 0.2


def as_profile(measurement: Measurement) -> dict[str, Any]:
    """The measurement as a dict; `docs/roofline.md` has a table of its keys. Unknown values are None.

    Times end in `_ms`. `achieved_flops` is in FLOP/s, `achieved_bandwidth` in B/s, `compute_intensity` and `ridge` in
    FLOP/B. Ratios and utilisations are from 0 to 1. `reasons` gives the cause of each None.
    """
    position, times = measurement.position, measurement.position.times
    profile = {
        "operation": measurement.name,
        "device": measurement.machine,
        "runtime_ms": times.median_s * 1e3,
        "host_ms": None if measurement.host_s is None else measurement.host_s * 1e3,
        "runs": {
            "n": times.n,
            "median_ms": times.median_s * 1e3,
            "low_ms": times.low_s * 1e3,
            "high_ms": times.high_s * 1e3,
            "caches": measurement.caches,
        },
        **judged(position, measurement.verdict),
        "basis": measurement.verdict.basis,
        "ridge_ratio": _over(position.work.intensity, position.ridge),
        "roofline_ratio": _over(position.flops_per_s, position.attainable),
        "growth": position.growth,
        "memory": None if measurement.memory is None else headroom.as_profile(measurement.memory),
    }
    profile["counted"]["share_of_run"] = measurement.share_of_run
    if measurement.not_doubled:
        profile["reasons"]["growth"] = measurement.not_doubled
    if measurement.memory is None:
        profile["reasons"]["memory"] = "the framework does not report it"
    return profile


def judged(position: Position, verdict: Verdict) -> dict[str, Any]:
    """The keys that operations and modules of a model have in common: verdict, work, and achieved rates."""
    work, unknown = position.work, verdict.regime is Regime.UNKNOWN
    return {
        "regime": str(verdict.regime),
        "confidence": None if unknown else verdict.confidence,
        "runner_up": None if verdict.runner_up is None else str(verdict.runner_up),
        "reason": verdict.rule,
        "advice": advice(verdict, position) or None,
        "flops": work.flops,
        "flops_at_least": work.at_least,
        "bytes": work.bytes,
        "precision": None if work.precision is None else str(work.precision),
        "counted": {
            "method": work.method,
            "operations": work.operations,
            "coverage": work.coverage,
            "without_formula": dict(work.unknown),
        },
        "achieved_flops": position.flops_per_s,
        "achieved_bandwidth": position.bytes_per_s,
        "flops_utilization": position.compute,
        "bandwidth_utilization": position.bandwidth,
        "first_touch_ratio": position.first_touch,
        "overhead_ratio": position.overhead,
        "compute_intensity": work.intensity,
        "ridge": position.ridge,
        "attainable_flops": position.attainable,
        "residency": position.residency,
        "reasons": {**position.reasons, **({"regime": verdict.rule} if unknown else {})},
    }


def _over(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def advice(verdict: Verdict, position: Position) -> str:
    """The next step of the verdict, after a remark on first touches of memory if they take a notable share."""
    first_touch = position.first_touch or 0.0
    if not verdict.advice or first_touch < NOTABLE:
        return verdict.advice
    return (
        f"{percent(first_touch, 0)} of the time goes to memory that is touched for the first time: write into memory"
        f" that is there (out=), or keep it; {verdict.advice}"
    )
