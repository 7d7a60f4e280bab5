"""What the profiler returns: a dict with GPURegimeProfiler's keys and units, and more of our own; all JSON values."""

from __future__ import annotations

from typing import Any, Final

from gpu_profile.regimes import Regime, Verdict
from gpu_profile.roofline import headroom
from gpu_profile.roofline.measurement import Measurement
from gpu_profile.roofline.position import Position
from gpu_profile.units import percent

#: Of the time, a share that is worth a word.
NOTABLE: Final = 0.2


def as_profile(found: Measurement) -> dict[str, Any]:
    """The measurement as a dict; `docs/roofline.md` has a table of its keys. What is not known is None.

    Times end in `_ms`; `achieved_flops` is in FLOP/s, `achieved_bandwidth` in B/s, `compute_intensity` and `ridge` in
    FLOP/B, ratios and utilisations 0-1. `reasons` says of what is None why.
    """
    work, position, verdict, times = found.work, found.position, found.verdict, found.times
    unknown = verdict.regime is Regime.UNKNOWN
    reasons = dict(position.reasons)
    if found.memory is None:
        reasons["memory"] = "the framework does not tell"
    if unknown:
        reasons["regime"] = verdict.rule
    return {
        "operation": found.name,
        "device": found.machine,
        "runtime_ms": times.median_s * 1e3,
        "host_ms": None if found.host_s is None else found.host_s * 1e3,
        "runs": {
            "n": times.n,
            "median_ms": times.median_s * 1e3,
            "low_ms": times.low_s * 1e3,
            "high_ms": times.high_s * 1e3,
            "caches": found.caches,
        },
        "regime": str(verdict.regime),
        "confidence": None if unknown else verdict.confidence,
        "runner_up": None if verdict.runner_up is None else str(verdict.runner_up),
        "reason": verdict.rule,
        "advice": advice(verdict, position) or None,
        "basis": verdict.basis,
        "flops": work.flops,
        "bytes": work.bytes,
        "precision": None if work.precision is None else str(work.precision),
        "counted": {
            "method": work.method,
            "operations": work.operations,
            "coverage": work.coverage,
            "without_formula": dict(work.unknown),
            "share_of_run": found.counting_share,
        },
        "achieved_flops": position.flops_per_s,
        "achieved_bandwidth": position.bytes_per_s,
        "flops_utilization": position.compute,
        "bandwidth_utilization": position.bandwidth,
        "compute_intensity": work.intensity,
        "ridge": position.ridge,
        "ridge_ratio": _over(work.intensity, position.ridge),
        "attainable_flops": position.attainable,
        "roofline_ratio": _over(position.flops_per_s, position.attainable),
        "overhead_ratio": position.overhead,
        "first_touch_ratio": position.fresh,
        "growth": found.growth,
        "residency": position.level,
        "memory": None if found.memory is None else headroom.as_profile(found.memory),
        "reasons": reasons,
    }


def _over(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def advice(verdict: Verdict, position: Position) -> str:
    """The next step, and first what goes to memory that is touched for the first time, where that is much."""
    fresh = position.fresh or 0.0
    if not verdict.advice or fresh < NOTABLE:
        return verdict.advice
    return (
        f"{percent(fresh, 0)} of the time goes to memory that is touched for the first time: write into memory that is"
        f" there (out=), or keep it; {verdict.advice}"
    )
