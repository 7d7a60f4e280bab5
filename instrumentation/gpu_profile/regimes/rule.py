"""What a regime is, and what one row of the rules says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gpu_profile.regimes.scores import Scores
from gpu_profile.regimes.thresholds import Thresholds
from gpu_profile.summary import Basis


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
