"""The rules for one operation whose FLOPs and bytes are known: what it reaches of measured ceilings. Tried in order."""

from __future__ import annotations

from typing import Final

from gpu_profile.regimes.rule import Regime, Rule, above, below, both_near, least, of_ceiling
from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.summary import Basis
from gpu_profile.units import percent

_OPERATION: Final[frozenset[Basis]] = frozenset({"operation"})

OPERATION_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "an operation that keeps the GPU waiting for longer than busy",
        Regime.OVERHEAD_BOUND,
        lambda s, t: t.starved_busy - s.busy,
        lambda s: f"the GPU waits {percent(s.waiting, 0)} of the operation: fuse it, or capture a CUDA graph",
        _OPERATION,
    ),
    Rule(
        "FLOPs and bytes per second >= ceiling, close together",
        Regime.BALANCED,
        both_near,
        lambda s: f"{_reached(s)} are reached: only less work, or another precision, makes this faster",
        _OPERATION,
    ),
    Rule(
        "bytes per second >= ceiling, above FLOPs",
        Regime.MEMORY_BOUND,
        lambda s, t: above(s.memory, s.compute, t),
        lambda s: f"{_reached(s)} are reached: fuse it with its neighbours, or use a smaller data type",
        _OPERATION,
    ),
    Rule(
        "FLOPs per second >= ceiling, above bytes",
        Regime.COMPUTE_BOUND,
        lambda s, t: above(s.compute, s.memory, t),
        lambda s: f"{_reached(s)} are reached: a lower precision or fewer FLOPs help",
        _OPERATION,
    ),
    Rule(
        "no ceiling near, and twice the size takes hardly longer",
        Regime.OVERHEAD_BOUND,
        lambda s, t: least(_short(s, t), below(s.compute, t), below(s.memory, t)),
        lambda s: f"twice the size takes {percent(s.growth or 0, 0)} longer: batch more, or fuse it",
        _OPERATION,
    ),
    Rule(
        "no ceiling near, though twice the size takes longer",
        Regime.LATENCY_BOUND,
        lambda s, t: least(None if s.growth is None else s.growth - t.grows, below(s.compute, t), below(s.memory, t)),
        lambda s: f"{_reached(s)} are reached: more parallelism within it, fewer dependent steps",
        _OPERATION,
    ),
)


def _short(s: Scores, limits: Thresholds) -> float | None:
    return None if s.growth is None else limits.grows - s.growth


def _reached(s: Scores) -> str:
    return f"{of_ceiling(s.compute)} of the compute and {of_ceiling(s.memory)} of the memory ceiling"
