"""The rules for one operation with known FLOPs and bytes: its shares of the measured ceilings. Tried in order.

In the roofline model, the intensity of an operation decides its ceiling: the nearer one. An operation that reaches only
a part of it is still bound by it, with less confidence in proportion. If it reaches next to nothing of both, neither
FLOPs nor bytes explain the time.
"""

from __future__ import annotations

from typing import Final

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.rule import Regime, Rule, least, of_ceiling
from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.units import percent

_OPERATION: Final[frozenset[Basis]] = frozenset({"operation"})


def _short(s: Scores, limits: Thresholds) -> float | None:
    return None if s.growth is None else least(limits.grows - s.growth, limits.ceiling - _nearest(s))


def _nearest(s: Scores) -> float:
    return max(s.compute or 0.0, s.memory or 0.0)


def _apart(s: Scores, limits: Thresholds) -> float:
    """The largest difference of two scores that count as equal. It is smaller if both are far below the ceiling."""
    return limits.balanced * min(1.0, _nearest(s) / limits.ceiling)


def _alike(s: Scores, limits: Thresholds) -> float | None:
    if s.compute is None or s.memory is None:
        return None
    return min(_nearest(s) - limits.part, _apart(s, limits) - abs(s.compute - s.memory))


def _ahead(score: float | None, other: float | None, s: Scores, limits: Thresholds) -> float | None:
    if score is None or other is None:
        return None
    return min(score - limits.part, score - other - _apart(s, limits))


def _far(s: Scores, limits: Thresholds) -> float | None:
    """The distance from either ceiling. Only a run of twice the size separates launching from latency."""
    if s.compute is None or s.memory is None or s.growth is None:
        return None
    return min(limits.part - _nearest(s), s.growth - limits.grows)


def _explained(s: Scores, limits: Thresholds) -> float:
    return min(1.0, _nearest(s) / limits.ceiling)


def _reached(s: Scores) -> str:
    return f"{of_ceiling(s.compute)} of the compute and {of_ceiling(s.memory)} of the memory ceiling"


def _rest(s: Scores) -> str:
    """The unexplained share of the time, if it is large."""
    return "" if _nearest(s) >= 0.5 else f"; {percent(1 - _nearest(s), 0)} of the time is not explained by it"


OPERATION_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "launching takes longer than the operation's work",
        Regime.OVERHEAD_BOUND,
        lambda s, t: t.starved_busy - s.busy,
        lambda s: f"launching takes {percent(s.waiting, 0)} of the time: batch more, fuse it, or capture a CUDA graph",
        _OPERATION,
    ),
    Rule(
        "twice the size takes hardly longer, and no ceiling is reached",
        Regime.OVERHEAD_BOUND,
        _short,
        lambda s: f"twice the size takes {percent(s.growth or 0, 0)} longer: batch more, or fuse it",
        _OPERATION,
    ),
    Rule(
        "FLOPs and bytes per second are alike near their ceilings",
        Regime.BALANCED,
        _alike,
        lambda s: f"{_reached(s)} are reached: only less work, or another precision, makes this faster{_rest(s)}",
        _OPERATION,
        widest=lambda t: t.balanced,
        hint=_explained,
    ),
    Rule(
        "bytes per second are nearer to their ceiling than FLOPs",
        Regime.MEMORY_BOUND,
        lambda s, t: _ahead(s.memory, s.compute, s, t),
        lambda s: f"{_reached(s)} are reached: fuse it with its neighbours, or use a smaller data type{_rest(s)}",
        _OPERATION,
        hint=_explained,
    ),
    Rule(
        "FLOPs per second are nearer to their ceiling than bytes",
        Regime.COMPUTE_BOUND,
        lambda s, t: _ahead(s.compute, s.memory, s, t),
        lambda s: f"{_reached(s)} are reached: a lower precision or fewer FLOPs help{_rest(s)}",
        _OPERATION,
        hint=_explained,
    ),
    Rule(
        "neither FLOPs nor bytes explain the time, and twice the size takes longer",
        Regime.LATENCY_BOUND,
        _far,
        lambda s: (
            f"{_reached(s)} are reached: the time goes to slow functions (cos, exp), dependent steps or too little"
            " parallelism"
        ),
        _OPERATION,
    ),
)
