"""A comparison as JSON. `docs/analysis.md` describes the keys."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_profile.analysis.comparison.differences import Comparison, Difference
from gpu_profile.analysis.comparison.gate import Gate, Outcome
from gpu_profile.analysis.comparison.text import summary
from gpu_profile.analysis.views.data import SCHEMA_VERSION
from gpu_profile.report.as_json import Value


def of_comparison(comparison: Comparison, judged: Sequence[tuple[Gate, Difference, Outcome]]) -> Value:
    """All of a comparison."""
    return {
        "schema_version": SCHEMA_VERSION,
        "simulated_a": comparison.simulated_a,
        "simulated_b": comparison.simulated_b,
        "summary": summary(comparison),
        "differences": [_difference(each) for each in comparison.differences],
        "intervals": comparison.intervals,
        "run_to_run": comparison.run_to_run,
        "runs": comparison.runs,
        "only_a": list(comparison.only_a),
        "only_b": list(comparison.only_b),
        "fail_on": [
            {"condition": gate.text, "outcome": outcome.name.lower(), "reason": gate.reason(difference) or None}
            for gate, difference, outcome in judged
        ],
        "untold": list(comparison.notes),
    }


def _difference(difference: Difference) -> Value:
    return {
        "region": difference.region,
        "quantity": difference.quantity,
        "unit": difference.unit,
        "a": difference.a,
        "b": difference.b,
        "change": difference.change,
        "change_interval": difference.interval,
        "relative": difference.relative,
        "relative_interval": difference.relative_interval,
        "reason": difference.reason or difference.no_ratio or None,
    }
