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
    position, times = found.position, found.position.times
    profile = {
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
        **judged(position, found.verdict),
        "basis": found.verdict.basis,
        "ridge_ratio": _over(position.work.intensity, position.ridge),
        "roofline_ratio": _over(position.flops_per_s, position.attainable),
        "growth": position.growth,
        "memory": None if found.memory is None else headroom.as_profile(found.memory),
    }
    profile["counted"]["share_of_run"] = found.share_of_run
    if found.not_doubled:
        profile["reasons"]["growth"] = found.not_doubled
    if found.memory is None:
        profile["reasons"]["memory"] = "the framework does not tell"
    return profile


def judged(position: Position, verdict: Verdict) -> dict[str, Any]:
    """What profiles of operations and of a model's modules share: the verdict, the work, and what it reached."""
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
    """The next step, and first what goes to memory that is touched for the first time, where that is much."""
    first_touch = position.first_touch or 0.0
    if not verdict.advice or first_touch < NOTABLE:
        return verdict.advice
    return (
        f"{percent(first_touch, 0)} of the time goes to memory that is touched for the first time: write into memory"
        f" that is there (out=), or keep it; {verdict.advice}"
    )
