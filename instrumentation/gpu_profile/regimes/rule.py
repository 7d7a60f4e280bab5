"""The regimes, and the fields of a rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.units import percent


class Regime(Enum):
    """The bound of a region. `str()` gives the bare name."""

    IDLE = "The GPU has nothing to do, here or elsewhere"
    SPINNING = "The GPU is busy and does nothing: a kernel waits for data, a lock or a peer that does not come"
    HOST_BOUND = "The GPU waits for input or for Python"
    MEDIA_BOUND = "The video engines limit the work"
    TRANSFER_BOUND = "The GPU waits for data over PCIe"
    COMMUNICATION_BOUND = "The GPU waits for other GPUs"
    OVERHEAD_BOUND = "The GPU's work comes in pieces too small to fill it"
    LATENCY_BOUND = "Work is resident, but neither the pipes nor the memory are near a ceiling"
    MEMORY_BOUND = "Device-memory bandwidth limits the work"
    COMPUTE_BOUND = "A compute pipe limits the work"
    MIXED = "Unlike kinds of work take turns, and none of them describes the region"
    BALANCED = "A compute pipe and the memory are both near their ceilings"
    UNKNOWN = "The evidence does not decide"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: if `margin(scores, thresholds)` is a number >= 0, the regime holds, by that margin.

    A negative margin is the distance from holding, None means missing evidence. `widest` is the largest possible
    margin, for rules with less room than a sure verdict needs elsewhere. `hint` multiplies the confidence that the
    basis allows: 1 unless the evidence suits other causes as well.
    """

    name: str
    regime: Regime
    margin: Callable[[Scores, Thresholds], float | None]
    advice: Callable[[Scores], str]
    bases: frozenset[Basis]
    widest: Callable[[Thresholds], float] = lambda _: math.inf
    hint: Callable[[Scores, Thresholds], float] = lambda _s, _t: 1.0


def least(*margins: float | None) -> float | None:
    """The smallest of some margins; None if one is missing."""
    numbers = [margin for margin in margins if margin is not None and not math.isnan(margin)]
    return min(numbers) if len(numbers) == len(margins) else None


def below(score: float | None, limits: Thresholds) -> float | None:
    """How far a score is below half of the time. Above that, no other cause is larger."""
    return None if score is None else limits.half - score


def above(score: float | None, other: float | None, limits: Thresholds) -> float | None:
    """How far `score` is above its ceiling and above the other. None if either is unknown: absent is not 0."""
    if score is None or other is None:
        return None
    return min(score - limits.ceiling, score - other - limits.balanced)


def both_near(s: Scores, limits: Thresholds) -> float | None:
    """How far both scores are above the ceiling, and closer together than the balanced distance."""
    if s.compute is None or s.memory is None:
        return None
    apart = abs(s.compute - s.memory)
    return min(s.compute - limits.ceiling, s.memory - limits.ceiling, limits.balanced - apart)


def of_ceiling(score: float | None) -> str:
    """A score in per cent, cut at 100 %: noise can lift it above the ceiling."""
    return percent(min(1.0, score or 0.0), 0)
