"""What bounds a region, by which rule, on which evidence. Pure.

Rules are rows, tried in order; the first that fires gives the verdict. Thresholds are data, each with its source.
`classify` is total: it always answers, and `UNKNOWN` with a reason is an answer.
"""

from gpu_profile.regimes.rule import Regime, Rule
from gpu_profile.regimes.scores import Scores, Waits
from gpu_profile.regimes.thresholds import BEST_CONFIDENCE, DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.regimes.verdict import RULES, Verdict, classify

__all__ = [
    "BEST_CONFIDENCE",
    "DEFAULT_THRESHOLDS",
    "RULES",
    "Regime",
    "Rule",
    "Scores",
    "Thresholds",
    "Verdict",
    "Waits",
    "classify",
]
