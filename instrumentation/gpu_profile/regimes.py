"""THE table of regimes: what bounds a region, by which rule, on which evidence. Pure.

Rules are rows, tried in order; the first that fires gives the verdict. Thresholds are data (`Thresholds`), each with
its source. `classify` is total: it always answers, and `UNKNOWN` with a reason is an answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from gpu_profile.summary import Basis, Evidence
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
class Thresholds:
    """The numbers in the rules. All are ratios unless they say otherwise.

    `idle_busy`: KempnerPulse's idle class, all activities below 5 %. `starved_busy`: below it the larger part of the
    region is a wait; the half is ours. `ceiling`, `balanced`: Nsight Compute's speed-of-light rule (latency bound
    below 60 %, balanced within 10 points). `dram_ceiling`: DCGM documents about 80 % of the DRAM activity as the
    practical maximum. `tensor_ceiling`: dcgmproftester saturates the tensor pipe at about 93 %. `broad_sm`: DCGM, SM
    activity of 80 % is necessary for effective use. `narrow_sm`: KempnerPulse's "busy, low SM". `link_busy`: a copy
    needs most of a link to be what one waits for; the 40 % is KempnerPulse's I/O class. `hot_power`: half of a power
    limit is more than a stalled GPU draws; ours, coarse. `least_n`: windows below which nothing is said.
    `sure_margin`: the distance from a threshold at which a verdict is as sure as its basis allows.
    """

    idle_busy: float = 0.05
    starved_busy: float = 0.5
    ceiling: float = 0.6
    balanced: float = 0.1
    dram_ceiling: float = 0.8
    tensor_ceiling: float = 0.93
    broad_sm: float = 0.8
    narrow_sm: float = 0.25
    link_busy: float = 0.4
    hot_power: float = 0.5
    least_n: int = 4
    sure_margin: float = 0.2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} must be positive, not {value}")


#: How sure a verdict can be at most, by what it rests on: counters can miss a cause, utilisation nearly always does.
BEST_CONFIDENCE: Final[dict[Basis, float]] = {"kernels": 0.95, "operation": 0.95, "counters": 0.9, "coarse": 0.6}


@dataclass(frozen=True, slots=True)
class Scores:
    """Evidence as the rules read it; None where it is unknown.

    `compute` is the busiest pipe over its ceiling times the clock ratio (pipe activity is counted per cycle: at half
    the clock, half of the peak), `memory` the DRAM activity over its practical ceiling, both while the GPU is busy.
    """

    busy: float
    device_busy: float | None
    compute: float | None
    memory: float | None
    sm: float | None
    pcie: float | None
    nvlink: float | None
    power: float | None
    controller: float | None

    @staticmethod
    def of(evidence: Evidence, limits: Thresholds) -> Scores:
        """The scores of evidence that knows `busy`."""
        busy = evidence.values["busy"]
        scale = max(busy, 0.01)
        pipes = [evidence.get("fp32"), evidence.get("fp64"), evidence.get("fp16")]
        tensor = evidence.get("tensor")
        if tensor is not None:
            pipes.append(tensor / limits.tensor_ceiling)
        known = [pipe for pipe in pipes if pipe is not None]
        clock = evidence.get("clock")
        dram = evidence.get("dram")
        compute = max(known) * (1.0 if clock is None else clock) / scale if known else None
        return Scores(
            busy=busy,
            device_busy=evidence.get("device_busy"),
            compute=compute,
            memory=None if dram is None else dram / limits.dram_ceiling / scale,
            sm=_over(evidence.get("sm"), scale),
            pcie=evidence.get("pcie"),
            nvlink=evidence.get("nvlink"),
            power=evidence.get("power"),
            controller=_over(evidence.get("memory_controller"), scale),
        )


def _over(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: if `margin(scores, thresholds)` is a number >= 0, the regime holds, by that margin.

    A negative margin says how far it is from holding; None, that the evidence for it is missing. `widest` is the
    largest margin that there can be, for rules that have less room than a sure verdict asks for elsewhere.
    """

    name: str
    regime: Regime
    margin: Callable[[Scores, Thresholds], float | None]
    advice: Callable[[Scores], str]
    bases: frozenset[Basis]
    widest: Callable[[Thresholds], float] = lambda _: math.inf


@dataclass(frozen=True, slots=True)
class Verdict:
    """A regime with what it rests on. `confidence` is 0-1; `advice` is one next step in plain words."""

    regime: Regime
    confidence: float
    basis: Basis
    rule: str
    margin: float
    n: int
    coverage: float
    advice: str = ""
    runner_up: Regime | None = None
    scores: Scores | None = None


def _least(*margins: float | None) -> float | None:
    known = [margin for margin in margins if margin is not None]
    return min(known) if len(known) == len(margins) else None


_ALL: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
_COUNTERS: Final[frozenset[Basis]] = frozenset({"counters"})
_COARSE: Final[frozenset[Basis]] = frozenset({"coarse"})

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "busy < idle, on a device that is idle as well",
        Regime.IDLE,
        lambda s, t: _least(t.idle_busy - s.busy, None if s.device_busy is None else t.idle_busy - s.device_busy),
        lambda _: "nothing runs on this GPU: give it work, or give it up",
        _ALL,
        lambda t: t.idle_busy,
    ),
    Rule(
        "busy < starved, PCIe >= link",
        Regime.TRANSFER_BOUND,
        lambda s, t: _least(t.starved_busy - s.busy, None if s.pcie is None else s.pcie - t.link_busy),
        lambda s: f"PCIe runs at {percent(s.pcie or 0, 0)} of the link: pin host memory, overlap or shrink the copies",
        _ALL,
    ),
    Rule(
        "busy < starved, NVLink >= link",
        Regime.COMMUNICATION_BOUND,
        lambda s, t: _least(t.starved_busy - s.busy, None if s.nvlink is None else s.nvlink - t.link_busy),
        lambda _: "the GPU waits for its peers: overlap communication with computation",
        _ALL,
    ),
    Rule(
        "busy < starved",
        Regime.HOST_BOUND,
        lambda s, t: t.starved_busy - s.busy,
        lambda s: f"the GPU waits {percent(1 - s.busy, 0)} of this region for the host: prefetch, or raise num_workers",
        _ALL,
    ),
    Rule(
        "memory and compute >= ceiling, close together",
        Regime.BALANCED,
        lambda s, t: (
            None
            if s.compute is None or s.memory is None
            else min(s.compute - t.ceiling, s.memory - t.ceiling, t.balanced - abs(s.compute - s.memory))
        ),
        lambda _: "both ceilings are near: only less work, or another precision, makes this faster",
        _COUNTERS,
        lambda t: t.balanced,
    ),
    Rule(
        "memory >= ceiling, above compute",
        Regime.MEMORY_BOUND,
        lambda s, t: _above(s.memory, s.compute, t),
        lambda s: (
            f"memory runs at {percent(s.memory or 0, 0)} of its ceiling: fuse kernels, or use a smaller data type"
        ),
        _COUNTERS,
    ),
    Rule(
        "compute >= ceiling, above memory",
        Regime.COMPUTE_BOUND,
        lambda s, t: _above(s.compute, s.memory, t),
        lambda s: f"a pipe runs at {percent(s.compute or 0, 0)} of its ceiling: a lower precision or fewer FLOPs help",
        _COUNTERS,
    ),
    Rule(
        "few multiprocessors busy, no ceiling near",
        Regime.OVERHEAD_BOUND,
        lambda s, t: _least(None if s.sm is None else t.narrow_sm - s.sm, _below(s.compute, t), _below(s.memory, t)),
        lambda s: f"kernels fill {percent(s.sm or 0, 0)} of the GPU: batch more, fuse, or capture a CUDA graph",
        _COUNTERS,
    ),
    Rule(
        "multiprocessors occupied, no ceiling near",
        Regime.LATENCY_BOUND,
        lambda s, t: _least(None if s.sm is None else s.sm - t.narrow_sm, _below(s.compute, t), _below(s.memory, t)),
        lambda _: "warps wait on latency: more parallelism per kernel, fewer dependent steps",
        _COUNTERS,
    ),
    Rule(
        "busy, high power, low memory-controller time",
        Regime.COMPUTE_BOUND,
        lambda s, t: _least(
            s.busy - t.broad_sm,
            None if s.power is None else s.power - t.hot_power,
            None if s.controller is None else t.ceiling - s.controller,
        ),
        lambda _: "it draws the power of arithmetic; GPM counters (Hopper or newer) or a trace would tell for sure",
        _COARSE,
    ),
    Rule(
        "busy, memory-controller time >= ceiling",
        Regime.MEMORY_BOUND,
        lambda s, t: _least(s.busy - t.broad_sm, None if s.controller is None else s.controller - t.ceiling),
        lambda _: "memory is touched most of the time; GPM counters (Hopper or newer) or a trace would tell for sure",
        _COARSE,
    ),
)


def _below(score: float | None, limits: Thresholds) -> float | None:
    return None if score is None else limits.ceiling - score


def _above(score: float | None, other: float | None, limits: Thresholds) -> float | None:
    """How far `score` is above its ceiling and above the other; unknown if either is: what is absent is not 0."""
    if score is None or other is None:
        return None
    return min(score - limits.ceiling, score - other - limits.balanced)


DEFAULT_THRESHOLDS: Final = Thresholds()


def classify(evidence: Evidence, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Verdict:
    """Judge a region by the first rule that fires. Confidence grows with the margin up to what the basis allows."""
    busy = evidence.get("busy")
    if busy is None:
        return _unknown(evidence, evidence.reason or "no samples cover the region")
    if evidence.n < thresholds.least_n:
        return _unknown(evidence, f"only {evidence.n} sensor windows, {thresholds.least_n} are needed")
    scores = Scores.of(evidence, thresholds)
    margins = [(rule, rule.margin(scores, thresholds)) for rule in RULES if evidence.basis in rule.bases]
    fired = next(((rule, margin) for rule, margin in margins if margin is not None and margin >= 0), None)
    if fired is None:
        return _unknown(evidence, _unfit(scores), scores)
    rule, margin = fired
    others = [(m, r.regime) for r, m in margins if m is not None and r.regime is not rule.regime]
    # The nearest other answer: what it would be if the numbers were a little different.
    runner_up = max(others, key=lambda other: min(other[0], 0.0), default=(0.0, None))[1]
    return Verdict(
        regime=rule.regime,
        confidence=_confidence(evidence, margin, min(thresholds.sure_margin, rule.widest(thresholds)), thresholds),
        basis=evidence.basis,
        rule=rule.name,
        margin=margin,
        n=evidence.n,
        coverage=evidence.coverage,
        advice=rule.advice(scores),
        runner_up=runner_up,
        scores=scores,
    )


def _confidence(evidence: Evidence, margin: float, enough: float, limits: Thresholds) -> float:
    """Half at a threshold, all of what the basis allows `enough` away from it; less where values are uncertain."""
    sure = min(1.0, margin / enough)
    doubt = min(1.0, (evidence.half_width or 0.0) / limits.sure_margin)
    best = BEST_CONFIDENCE[evidence.basis]
    return best * (0.5 + 0.5 * sure * (1.0 - 0.5 * doubt)) * min(1.0, max(0.0, evidence.coverage))


def _unfit(scores: Scores) -> str:
    missing = [field.name for field in fields(scores) if getattr(scores, field.name) is None]
    return "no rule fits the evidence" + (f" (unknown: {', '.join(missing)})" if missing else "")


def _unknown(evidence: Evidence, reason: str, scores: Scores | None = None) -> Verdict:
    return Verdict(Regime.UNKNOWN, 0.0, evidence.basis, reason, 0.0, evidence.n, evidence.coverage, scores=scores)
