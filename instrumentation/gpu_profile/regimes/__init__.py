"""What bounds a region, by which rule, on which evidence. Pure.

Rules are rows, tried in order; the first that fires gives the verdict. Thresholds are data, each with its source.
`classify` is total: it always answers, and `UNKNOWN` with a reason is an answer.

Read in this order:

- `evidence`: what a verdict rests on, whoever gathered it, as named ratios; `busy` is in all of it.
- `operation`, `kernel_work`: what the profiler of operations and a trace say of one execution and of a region's. They
  are here, not with those who make them, because executions, spans and recordings carry them.
- `scores`: evidence as the rules read it. `thresholds`: the numbers that they compare with.
- `rule`: what a regime is, and what a row of the rules says.
- `sensor_rules`, `trace_rules`, `operation_rules`: the rows, by what they rest on.
- `verdict`: `classify`, from evidence to verdict.

Imports the catalogue and the modules of the ground floor. A new rule is a row in one of the three tables, its line in
`docs/regimes.md`, and, if it compares with a new number, a field of `Thresholds` with its source.
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
