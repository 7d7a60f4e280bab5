"""What a regime is, and what one row of the rules says."""

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
    """What bounds a region. `str()` gives the bare name."""

    IDLE = "The GPU has nothing to do, here or elsewhere"
    HOST_BOUND = "The GPU waits for input or for Python"
    TRANSFER_BOUND = "The GPU waits for copies over PCIe"
    COMMUNICATION_BOUND = "The GPU waits for other GPUs"
    OVERHEAD_BOUND = "The GPU's work comes in pieces too small to fill it"
    LATENCY_BOUND = "Work is resident, but neither the pipes nor the memory are near a ceiling"
    MEMORY_BOUND = "Device-memory bandwidth limits the work"
    COMPUTE_BOUND = "A compute pipe limits the work"
    BALANCED = "A compute pipe and the memory are both near their ceilings"
    UNKNOWN = "The evidence does not tell"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: if `margin(scores, thresholds)` is a number >= 0, the regime holds, by that margin.

    A negative margin says how far it is from holding; None, that the evidence for it is missing. `widest` is the
    largest margin that there can be, for rules that have less room than a sure verdict asks for elsewhere. `hint` is
    the share of what the basis allows that the rule's evidence is good for: 1 unless it suits other causes as well.
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
    known = [margin for margin in margins if margin is not None and not math.isnan(margin)]
    return min(known) if len(known) == len(margins) else None


def below(score: float | None, limits: Thresholds) -> float | None:
    """How far a score is from taking half of the time: above that, something else is no larger cause."""
    return None if score is None else limits.half - score


def above(score: float | None, other: float | None, limits: Thresholds) -> float | None:
    """How far `score` is above its ceiling and above the other; unknown if either is: what is absent is not 0."""
    if score is None or other is None:
        return None
    return min(score - limits.ceiling, score - other - limits.balanced)


def both_near(s: Scores, limits: Thresholds) -> float | None:
    """How far both scores are above the ceiling, and closer together than what tells them apart."""
    if s.compute is None or s.memory is None:
        return None
    apart = abs(s.compute - s.memory)
    return min(s.compute - limits.ceiling, s.memory - limits.ceiling, limits.balanced - apart)


def of_ceiling(score: float | None) -> str:
    """A score in per cent; what noise takes over the ceiling is at it."""
    return percent(min(1.0, score or 0.0), 0)
