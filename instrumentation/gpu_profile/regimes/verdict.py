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
_NO_SAMPLES: Final = "no samples cover the region"
#: The ways out of `UNKNOWN`.
_LONGER: Final = "run it longer, or more often: a sensor's windows take 100 ms or more"
_TRACE: Final = "a trace of its kernels decides it: torch.profiler's by gpu-profile kernels"
_DOUBLE: Final = "profile it alone with growth=True, which also times twice the work"
#: The scores of sensors, for the list of missing ones.
_MEASURED: Final = tuple(field.name for field in fields(Scores) if field.name not in ("trace", "growth"))
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

    @property
    def explanation(self) -> str:
        """The advice. For `UNKNOWN` the reason, and the advice if there is one."""
        if self.regime is not Regime.UNKNOWN:
            return self.advice or self.rule
        return "; ".join(part for part in (self.rule, self.advice) if part)


def classify(evidence: Evidence, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Verdict:
    """Judge a region by the first rule that fires. Confidence grows with the margin, up to the limit of the basis.

    Total: impossible values count as unknown, and every evidence gets a verdict.
    """
    given, evidence = evidence, sound(evidence)
    if evidence.get("busy") is None or not evidence.coverage > 0:
        nonsense = evidence.get("busy") is None and "busy" in given.values
        reason = f"the busy share cannot be {given.values['busy']:g}" if nonsense else evidence.reason
        return _unknown(evidence, reason) if reason else _unknown(evidence, _NO_SAMPLES, advice=_LONGER)
    # One timed run of an operation is a measurement; one window of a sensor is not.
    if evidence.basis != "operation" and evidence.n < thresholds.least_n:
        unit = "GPU operation" if evidence.basis == "kernels" else "sensor window"
        many = "s" if evidence.n != 1 else ""
        step = "trace more executions of it" if evidence.basis == "kernels" else _LONGER
        return _unknown(evidence, f"only {evidence.n} {unit}{many}, {thresholds.least_n} are needed", advice=step)
    scores = Scores.of(evidence, thresholds)
    margins = [(rule, rule.margin(scores, thresholds)) for rule in RULES if evidence.basis in rule.bases]
    first = next((i for i, (_, margin) in enumerate(margins) if margin is not None and margin >= 0), None)
    if first is None:
        near = ((margin, rule.regime) for rule, margin in margins if margin is not None and margin > _FAR)
        nearest = max(near, key=lambda each: each[0], default=None)
        reason, step = _unfit(scores, evidence, thresholds)
        return _unknown(evidence, reason, scores, nearest[1] if nearest else None, step)
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
        reason = f"too close to call: {rule.regime}, or {runner_up or 'another'}"
        return _unknown(evidence, reason, scores, rule.regime, _TRACE)
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


def _unfit(scores: Scores, evidence: Evidence, limits: Thresholds) -> tuple[str, str]:
    """Why no rule fits, and the next step."""
    if evidence.basis == "operation":
        unknown = [name for name, score in (("FLOPs", scores.compute), ("bytes", scores.memory)) if score is None]
        if unknown:
            missing = " and ".join(unknown)
            return (
                evidence.reason or f"not known of it: {missing}",
                f"state its {missing}: flops=…, bytes=…, or register_formula",
            )
        if scores.growth is None:
            return "neither FLOPs nor bytes explain the time: launching may, or latency", _DOUBLE
        return (
            f"neither FLOPs nor bytes explain the time, and twice the size takes {percent(scores.growth, 0)} longer",
            "",
        )
    if scores.trace is not None:
        return unfit(scores.trace, limits), ""
    missing = ", ".join(name for name in _MEASURED if getattr(scores, name) is None)
    step = (
        _TRACE if evidence.basis == "counters" else f"{_TRACE}; a GPU with activity counters (Hopper or newer) does too"
    )
    return "no rule fits the evidence" + (f" (unknown: {missing})" if missing else ""), step


def _unknown(
    evidence: Evidence, reason: str, scores: Scores | None = None, runner_up: Regime | None = None, advice: str = ""
) -> Verdict:
    return Verdict(
        regime=Regime.UNKNOWN,
        confidence=0.0,
        basis=evidence.basis,
        rule=reason,
        margin=0.0,
        n=evidence.n,
        coverage=evidence.coverage,
        advice=advice,
        runner_up=runner_up,
        scores=scores,
    )
