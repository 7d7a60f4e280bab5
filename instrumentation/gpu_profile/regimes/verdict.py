"""From evidence to a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gpu_profile.regimes.evidence import Basis, Evidence
from gpu_profile.regimes.operation_rules import OPERATION_RULES
from gpu_profile.regimes.rule import Regime, Rule
from gpu_profile.regimes.scores import Scores, sound
from gpu_profile.regimes.sensor_rules import COUNTERS, SENSOR_RULES
from gpu_profile.regimes.thresholds import BEST_CONFIDENCE, DEFAULT_THRESHOLDS, FIRM, SCALES, Thresholds, moved
from gpu_profile.regimes.trace_rules import TRACE_RULES, unfit
from gpu_profile.units import percent

#: The bases that sensors supply. Their gains and rates are a little off.
_SENSORS: Final[frozenset[Basis]] = frozenset({"counters", "coarse"})
#: From this many times `least_n` GPU operations on, their number no longer reduces a trace's confidence; ours.
_MANY: Final = 10
#: A margin without any near answer: no share of the time is further away.
_FAR: Final = -1.0
_NO_SAMPLES: Final = "no samples cover the region"
#: Values are rounded before it is examined whether a verdict hangs on a threshold.
_DIGITS: Final = 2
#: The ways out of `UNKNOWN`.
_LONGER: Final = "run it longer, or more often: a sensor's windows take 100 ms or more"
_TRACE: Final = "a trace of its kernels decides it: torch.profiler's by gpu-profile kernels"
_DOUBLE: Final = "profile it alone with growth=True, which also times twice the work"
#: The scores that sensors measure, in words, for the list of missing ones. The others follow from these.
_MEASURED: Final[Mapping[str, str]] = {
    "device_busy": "the busy share of the whole device",
    "compute": "activity of pipes",
    "memory": "activity of memory",
    "sm": "multiprocessors in use",
    "pcie": "PCIe traffic",
    "nvlink": "NVLink traffic",
    "warps": "resident warps",
    "power": "power",
    "controller": "use of the memory controller",
    "clock": "clock",
    "throttled": "throttling",
}
#: THE table: the first rule that fires gives the verdict.
RULES: Final[tuple[Rule, ...]] = (*SENSOR_RULES, *TRACE_RULES, *OPERATION_RULES)
_RULES: Final[Mapping[Basis, tuple[Rule, ...]]] = {
    basis: tuple(rule for rule in RULES if basis in rule.bases) for basis in BEST_CONFIDENCE
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A regime with its evidence. `confidence` is 0-1; `advice` is one next step in plain words.

    `margin` is the distance of the evidence from another answer: from this rule's thresholds, or from the thresholds
    of an earlier rule. `runner_up` is that other answer. For `UNKNOWN` it is the most likely regime.
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

    It is above `FIRM` only if no threshold, moved by `MOVED`, changes the regime. Total: impossible values count as
    unknown, and every evidence gets a verdict.
    """
    verdict = first_verdict(evidence, thresholds)
    if verdict.confidence <= FIRM or evidence.basis not in _SENSORS:
        return verdict
    for each in (evidence, *_at_highest(evidence)):
        rounded = tuple(sorted((key, round(value, _DIGITS)) for key, value in sound(each).values.items()))
        if not _is_firm(each.basis, rounded, verdict.regime, thresholds):
            return replace(verdict, confidence=FIRM)
    return verdict


def _at_highest(evidence: Evidence) -> Iterator[Evidence]:
    """The same with all pipes without a value as active as possible; nothing without such pipes."""
    if evidence.highest:
        yield replace(evidence, values={**evidence.values, **evidence.highest}, highest={})


@lru_cache(maxsize=512)
def _is_firm(basis: Basis, values: tuple[tuple[str, float], ...], regime: Regime, thresholds: Thresholds) -> bool:
    """Whether the regime stays if one threshold moves. Results are kept: the rates of a region hardly change."""
    evidence = Evidence(basis, dict(values), thresholds.least_n, 1.0)
    scores = Scores.of(evidence, thresholds)
    for name, other in moved(thresholds):
        rule, margin = _first(basis, Scores.of(evidence, other) if name in SCALES else scores, other)
        if rule is None or rule.regime is not regime or _is_close(rule, basis, margin, other):
            return False
    return True


def _first(basis: Basis, scores: Scores, limits: Thresholds) -> tuple[Rule | None, float]:
    """The first rule that fires, and its margin; 0 without a rule.

    The margin is no larger than the distance of an earlier rule of another regime that nearly fired."""
    missed: list[tuple[Rule, float]] = []
    for rule in _RULES[basis]:
        margin = rule.margin(scores, limits)
        if margin is not None and margin >= 0:
            room = limits.sure_margin
            near = [-m * room / min(room, r.widest(limits)) for r, m in missed if r.regime is not rule.regime]
            return rule, min([margin, *near])
        if margin is not None:
            missed.append((rule, margin))
    return None, 0.0


def _is_close(rule: Rule, basis: Basis, margin: float, limits: Thresholds) -> bool:
    """Whether the errors of sensors allow another answer."""
    return basis in _SENSORS and margin < limits.least_margin and rule.regime is not Regime.IDLE


def first_verdict(evidence: Evidence, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Verdict:
    """The verdict of `classify`, before it is examined whether it hangs on a threshold: that takes longest.

    It is the same for every activity that the pipes without a value may have, else `UNKNOWN`.
    """
    verdict = _by_values(evidence, thresholds)
    for other in _at_highest(evidence):
        if verdict.regime not in {Regime.UNKNOWN, _by_values(other, thresholds).regime}:
            pipes = ", ".join(f"{key} up to {percent(value, 0)}" for key, value in evidence.highest.items())
            reason = f"{verdict.regime}, unless pipes without a rate are active: {pipes}"
            return _unknown(evidence, reason, verdict.scores, verdict.regime, _LONGER)
    return verdict


def _by_values(evidence: Evidence, thresholds: Thresholds) -> Verdict:
    """The verdict by the values alone."""
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
    rule, margin = _first(evidence.basis, scores, thresholds)
    margins = [(m, r.regime) for r in _RULES[evidence.basis] if (m := r.margin(scores, thresholds)) is not None]
    if rule is None:
        near = ((m, regime) for m, regime in margins if m > _FAR and regime is not Regime.UNKNOWN)
        nearest = max(near, key=lambda each: each[0], default=None)
        reason, step = _unfit(scores, evidence, thresholds)
        return _unknown(evidence, reason, scores, nearest[1] if nearest else None, step)
    others = [(m, regime) for m, regime in margins if regime is not rule.regime and regime is not Regime.UNKNOWN]
    # The nearest other answer: the verdict if the numbers were a little different.
    runner_up = max(others, key=lambda other: min(other[0], 0.0), default=(0.0, None))[1]
    enough = min(thresholds.sure_margin, rule.widest(thresholds))
    if rule.regime is Regime.UNKNOWN:
        return _unknown(evidence, rule.name, scores, runner_up, rule.advice(scores))
    if _is_close(rule, evidence.basis, margin, thresholds):
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
    """Three quarters of the basis's limit at a threshold, all of it `enough` away; less if values are uncertain.

    Times in a trace are exact, but few operations say little about others: `least_n` of them are a threshold, too.
    """
    sure, least = min(1.0, margin / enough), 0.75 if evidence.basis in _SENSORS else 0.5
    if evidence.basis == "kernels":
        sure = min(sure, (evidence.n / limits.least_n - 1.0) / (_MANY - 1.0))
    doubt = min(1.0, max(0.0, evidence.half_width or 0.0) / limits.sure_margin)
    best = BEST_CONFIDENCE[evidence.basis]
    return best * (least + (1.0 - least) * sure) * (1.0 - 0.5 * doubt) * min(1.0, max(0.0, evidence.coverage))


def _modifiers(scores: Scores, limits: Thresholds) -> str:
    share = scores.throttled
    return (
        ""
        if share is None or share < limits.idle_busy
        else f"; it was throttled for {percent(min(1.0, share), 0)} of the time"
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
    missing = ", ".join(words for name, words in _MEASURED.items() if getattr(scores, name) is None)
    step = _TRACE if evidence.basis == "counters" else f"{_TRACE}; so do {COUNTERS}"
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
