"""From evidence to a verdict."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from gpu_profile.regimes.evidence import Basis, Evidence
from gpu_profile.regimes.operation_rules import OPERATION_RULES
from gpu_profile.regimes.rule import Regime, Rule
from gpu_profile.regimes.scores import Scores, sound
from gpu_profile.regimes.sensor_rules import SENSOR_RULES
from gpu_profile.regimes.thresholds import BEST_CONFIDENCE, DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.regimes.trace_rules import TRACE_RULES, unfit
from gpu_profile.units import percent

#: The bases that sensors supply. Their gains and rates are a little off.
_SENSORS: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
#: From this many times `least_n` GPU operations on, their number no longer reduces a trace's confidence; ours.
_MANY: Final = 10
#: A margin without any near answer: no share of the time is further away.
_FAR: Final = -1.0
#: THE table: the first rule that fires gives the verdict.
RULES: Final[tuple[Rule, ...]] = (*SENSOR_RULES, *TRACE_RULES, *OPERATION_RULES)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A regime with its evidence. `confidence` is 0-1; `advice` is one next step in plain words.

    `margin` is the distance of the evidence from another answer: from this rule's thresholds, or from those of a rule
    that is tried before it. `runner_up` is that other answer. For `UNKNOWN` it is the most likely regime.
    """

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


def classify(evidence: Evidence, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Verdict:
    """Judge a region by the first rule that fires. Confidence grows with the margin, up to the limit of the basis.

    Total: impossible values count as unknown, and every evidence gets a verdict.
    """
    given, evidence = evidence, sound(evidence)
    if evidence.get("busy") is None or not evidence.coverage > 0:
        nonsense = evidence.get("busy") is None and "busy" in given.values
        reason = f"the busy share cannot be {given.values['busy']:g}" if nonsense else evidence.reason
        return _unknown(evidence, reason or "no samples cover the region")
    # One timed run of an operation is a measurement; one window of a sensor is not.
    if evidence.basis != "operation" and evidence.n < thresholds.least_n:
        unit = "GPU operation" if evidence.basis == "kernels" else "sensor window"
        many = "s" if evidence.n != 1 else ""
        return _unknown(evidence, f"only {evidence.n} {unit}{many}, {thresholds.least_n} are needed")
    scores = Scores.of(evidence, thresholds)
    margins = [(rule, rule.margin(scores, thresholds)) for rule in RULES if evidence.basis in rule.bases]
    first = next((i for i, (_, margin) in enumerate(margins) if margin is not None and margin >= 0), None)
    if first is None:
        near = ((margin, rule.regime) for rule, margin in margins if margin is not None and margin > _FAR)
        nearest = max(near, key=lambda each: each[0], default=None)
        return _unknown(evidence, _unfit(scores, evidence, thresholds), scores, nearest[1] if nearest else None)
    rule, own = margins[first]
    # An earlier rule that nearly fired is as near a threshold as the rule's own.
    missed = [
        -m * thresholds.sure_margin / min(thresholds.sure_margin, r.widest(thresholds))
        for r, m in margins[:first]
        if m is not None and r.regime is not rule.regime
    ]
    margin = min([own or 0.0, *missed])
    others = [(m, r.regime) for r, m in margins if m is not None and r.regime is not rule.regime]
    # The nearest other answer: the verdict if the numbers were a little different.
    runner_up = max(others, key=lambda other: min(other[0], 0.0), default=(0.0, None))[1]
    enough = min(thresholds.sure_margin, rule.widest(thresholds))
    if evidence.basis in _SENSORS and margin < thresholds.least_margin and rule.regime is not Regime.IDLE:
        return _unknown(evidence, f"too close to call: {rule.regime}, or {runner_up or 'another'}", scores, rule.regime)
    return Verdict(
        regime=rule.regime,
        confidence=rule.hint(scores, thresholds) * _confidence(evidence, margin, enough, thresholds),
        basis=evidence.basis,
        rule=rule.name,
        margin=margin,
        n=evidence.n,
        coverage=evidence.coverage,
        advice=rule.advice(scores) + _modifiers(scores, thresholds),
        runner_up=runner_up,
        scores=scores,
    )


def _confidence(evidence: Evidence, margin: float, enough: float, limits: Thresholds) -> float:
    """Half of the basis's limit at a threshold, all of it `enough` away; less if values are uncertain.

    Times in a trace are exact, but few operations say little about others: `least_n` of them are a threshold, too.
    """
    sure = min(1.0, margin / enough)
    if evidence.basis == "kernels":
        sure = min(sure, (evidence.n / limits.least_n - 1.0) / (_MANY - 1.0))
    doubt = min(1.0, max(0.0, evidence.half_width or 0.0) / limits.sure_margin)
    best = BEST_CONFIDENCE[evidence.basis]
    return best * (0.5 + 0.5 * sure * (1.0 - 0.5 * doubt)) * min(1.0, max(0.0, evidence.coverage))


def _modifiers(scores: Scores, limits: Thresholds) -> str:
    share = scores.throttled
    return (
        "" if share is None or share < limits.idle_busy else f"; it was throttled for {percent(share, 0)} of the time"
    )


def _unfit(scores: Scores, evidence: Evidence, limits: Thresholds) -> str:
    if evidence.basis == "operation":
        unknown = [name for name, score in (("FLOPs", scores.compute), ("bytes", scores.memory)) if score is None]
        if unknown:
            return evidence.reason or f"not known of it: {' and '.join(unknown)}"
        return "neither FLOPs nor bytes explain the time: a run of twice the size tells whether launching does"
    if scores.trace is not None:
        return unfit(scores.trace, limits)
    missing = [field.name for field in fields(scores) if getattr(scores, field.name) is None and field.name != "trace"]
    return "no rule fits the evidence" + (f" (unknown: {', '.join(missing)})" if missing else "")


def _unknown(evidence: Evidence, reason: str, scores: Scores | None = None, runner_up: Regime | None = None) -> Verdict:
    return Verdict(
        regime=Regime.UNKNOWN,
        confidence=0.0,
        basis=evidence.basis,
        rule=reason,
        margin=0.0,
        n=evidence.n,
        coverage=evidence.coverage,
        runner_up=runner_up,
        scores=scores,
    )
