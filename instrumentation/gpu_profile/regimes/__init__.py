"""Regimes: rules that judge what bounds a region, from evidence to verdict. Pure.

Rules are rows, tried in order: the first that fires gives the verdict. Thresholds are data, each with its source.
`classify` is total: it always returns a verdict, which may be `UNKNOWN` with a reason.

Read in this order:

- `evidence`: the evidence behind a verdict, from any source, as named ratios. All of it has `busy`.
- `operation`, `kernel_work`: the results of the profiler of operations, and of a trace, for one execution and for a
  region. They are in this package because executions, spans and recordings carry them.
- `scores`: evidence in the form that the rules read. `thresholds`: the numbers that they compare with.
- `rule`: the regimes, and the fields of a rule.
- `sensor_conditions`: the conditions in the rules for sensors. `sensor_rules`, `trace_rules`, `operation_rules`: the
  rows, by their evidence.
- `verdict`: `classify`, from evidence to verdict. `regime_watch`: from verdicts over time to changes of regime.
- `palette`: the colours of the regimes, wherever they are shown.

Imports the catalogue and the modules of the ground floor. To add a rule, add a row to one of the three tables and a
line to `docs/regimes.md`. A new number in it is a field of `Thresholds` with its source.
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
