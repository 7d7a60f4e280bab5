"""The comparison of repeated runs of a benchmark before and after a change: the spread between runs is the chance.

A run is one observation: its requests share clocks, temperature and placement. So a run counts by its length up to the
median run of both sides, and no more beyond: one long run would hide the spread between runs. The standard deviation is
taken as one share of the value on both sides, because a release rarely changes it (Student's pooled variance). So few
runs suffice: six in all, one of them on the other side at least. The half-width of the costs of a phase is added. It is
common to all runs of a side, so that repeating them does not lower it.

A machine that warms up or slows down makes all later runs differ. Where the costs rise or fall with the order of a
side's runs, a note says so: the difference between the sides may then be no effect of the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import hypot, sqrt
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.analysis.chance import Edges, normal_quantile, student_quantile
from gpu_profile.analysis.comparison.differences import Comparison, Pair, differences_of
from gpu_profile.analysis.comparison.quantities import CallEstimate
from gpu_profile.analysis.costs.run import DECODE, GPU_TIME, PARTS, PREFILL, REQUESTS, RunCosts
from gpu_profile.history.timeline import Floats
from gpu_profile.join.unmixing.solving.rate import Z95
from gpu_profile.report.table import signed

#: Runs of both sides together that an interval needs: four degrees of freedom.
LEAST_RUNS: Final = 6
#: A slope over the order of runs as high as this is chance in one of so many comparisons.
_DRIFT_ALPHA: Final = 0.01
#: Lengths of requests that differ by more than this share are pointed out.
_ALIKE: Final = 0.02


class RunEstimate(CallEstimate):
    """An estimate from independent runs: their number has been checked."""

    def why_not(self, time: float) -> str:  # noqa: ARG002 - runs do not depend on one another
        """Why there is no interval; empty if there is one."""
        return self.reason


class _Side(NamedTuple):
    """Runs: values per unit (tokens or requests), units, and the mean half-width. Runs without a value are left out."""

    values: Floats
    units: Floats
    half_width: float
    reason: str

    def weights(self, most: float) -> Floats:
        """The weights of the runs, which add up to 1. A run with more than `most` units counts like one with these."""
        capped = np.minimum(self.units, most)
        return np.asarray(capped / capped.sum())

    def value(self, most: float) -> float | None:
        """The mean value per unit. None without any."""
        return float(self.weights(most) @ self.values) if len(self.values) else None

    def deviations(self, most: float) -> Floats:
        """The distances of the runs from the value, as shares of it."""
        value = self.value(most)
        return np.zeros(0) if not value else self.values / value - 1.0


def compare_runs(a: Sequence[RunCosts], b: Sequence[RunCosts], *, run_to_run: float = 0.0) -> Comparison:
    """Compare the runs of both sides, at least one each. `run_to_run` is a further standard deviation of each side, as
    a share, for differences that the spread between its runs does not show."""
    pairs = [*_pairs(a, b)]
    simulated_a, simulated_b = (any(run.simulated for run in side) for side in (a, b))
    differences, notes = differences_of(pairs, run_to_run), tuple(_notes(a, b))
    return Comparison(differences, (), (), notes, run_to_run, simulated_a, simulated_b, (len(a), len(b)))


def _pairs(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> Iterator[Pair]:
    def tokens(part: str, runs: Sequence[RunCosts]) -> _Side:
        return _side(runs, part, *_tokens(part, runs))

    def requests(runs: Sequence[RunCosts], quantity: str) -> _Side:
        timed = quantity == "gpu_time/request"
        values = [run.device_s if timed else run.energy_j.get(REQUESTS) for run in runs]
        return _side(runs, GPU_TIME if timed else REQUESTS, values, [run.requests for run in runs])

    for part in PARTS:
        yield Pair(part, "energy/token", *_estimates(tokens(part, a), tokens(part, b)))
    for quantity in ("energy/request", "gpu_time/request"):
        yield Pair(REQUESTS, quantity, *_estimates(requests(a, quantity), requests(b, quantity)))


def _side(runs: Sequence[RunCosts], part: str, values: Sequence[float | None], units: Sequence[int | None]) -> _Side:
    good = [(value, unit) for value, unit in zip(values, units, strict=True) if value is not None and unit]
    widths = [run.half_widths.get(part) or 0.0 for run in runs]
    reasons = [run.reasons.get(part) or run.reasons.get("tokens") or "not measured" for run in runs]
    missing = [reason for reason, value, unit in zip(reasons, values, units, strict=True) if value is None or not unit]
    # A run without a value is no smaller sample: it may be the dear one.
    reason = f"{len(missing)} of {len(runs)} runs: {missing[0]}" if missing else ""
    measured = np.array(good, np.float64).reshape(-1, 2)
    return _Side(measured[:, 0] / measured[:, 1], measured[:, 1], float(np.mean(widths)), reason)


def _estimates(a: _Side, b: _Side) -> tuple[RunEstimate, RunEstimate]:
    degrees = len(a.values) + len(b.values) - 2
    reason = ""
    if degrees + 2 < LEAST_RUNS:
        reason = f"only {degrees + 2} runs in both have a value; {LEAST_RUNS} give an interval"
    most = _median_units(a, b)
    squares, expected = 0.0, 0.0
    for side in (a, b):
        if len(side.values):
            weights = side.weights(most)
            squares += float((side.deviations(most) ** 2).sum())
            # Of runs with one variance, the squares from their weighted mean add up to so many times it.
            expected += len(weights) - 2 + len(weights) * float(weights @ weights)
    spread = sqrt(squares / expected) if expected > 0 else 0.0
    first, second = (
        RunEstimate(
            side.value(most), len(side.values), 1.0, partial(_edges, side, most, spread, degrees), side.reason or reason
        )
        for side in (a, b)
    )
    return first, second


def _median_units(*sides: _Side) -> float:
    units = np.concatenate([side.units for side in sides])
    return float(np.median(units)) if len(units) else 1.0


def _edges(side: _Side, most: float, spread: float, degrees: int, alpha: float, worth: float) -> Edges | None:  # noqa: ARG001 - runs have weights instead
    value = side.value(most)
    if value is None or degrees < LEAST_RUNS - 2:
        return None
    weights = side.weights(most)
    chance = student_quantile(alpha, degrees) * spread * sqrt(float(weights @ weights))
    half = value * hypot(chance, side.half_width * normal_quantile(alpha) / Z95)
    return value - half, value + half


def _notes(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> Iterator[str]:
    """Differences of the load between the sides, or within one: the cost of a token depends on it."""
    for name in dict.fromkeys(key for run in (*a, *b) for key in run.settings):
        left, right = ({str(run.settings.get(name, "unknown")) for run in side} for side in (a, b))
        if left != right or len(left) > 1:
            yield f"different {name}: {_listed(left)} in A, {_listed(right)} in B: tokens cost more or less"
    for part, words in ((PREFILL, "prompts"), (DECODE, "answers")):
        lengths = [_length(side, part) for side in (a, b)]
        if lengths[0] and lengths[1] and abs(lengths[1] / lengths[0] - 1) > _ALIKE:
            yield (
                f"different lengths of {words}: {lengths[0]:,.0f} tokens in A, {lengths[1]:,.0f} in B: tokens "
                "of longer requests cost more"
            )
    if len({bool(run.engine) for run in (*a, *b)}) > 1:
        yield "some runs are of an engine and some of whole GPUs: their costs cannot be compared"
    if drift := _drift(a, b):
        change = f"the costs change by {signed(drift)} from run to run"
        yield f"{change}: the machine drifts; alternate the runs of A and B"
    if not any(run.settings for run in (*a, *b)):
        yield "the settings of both sides are unknown: --result gives them, and the cost of a token depends on them"
    for side, runs in (("A", a), ("B", b)):
        noted = [note for run in runs for note in run.notes]
        if noted:
            yield f"{side}: {noted[0]}" + (f" (and {len(noted) - 1} more notes)" if len(noted) > 1 else "")


def _drift(a: Sequence[RunCosts], b: Sequence[RunCosts]) -> float:
    """The change of the energy of an answer's token from run to run, as a share; 0 if it may be chance.

    One slope over the order of the runs of each side, by least squares. 0 also if the runs of the sides alternate: then
    drift widens intervals and moves neither side.
    """
    starts, others = ([run.start_ns for run in runs] for runs in (a, b))
    if min(starts) <= max(others) and min(others) <= max(starts):
        return 0.0
    orders, deviations = [], []
    for runs in (a, b):
        side = _side(runs, REQUESTS, *_tokens(REQUESTS, sorted(runs, key=lambda run: run.start_ns)))
        deviations.append(side.deviations(_median_units(side)))
        orders.append(np.arange(len(side.values)) - (len(side.values) - 1) / 2)
    order, deviation = np.concatenate(orders), np.concatenate(deviations)
    degrees, squares = len(order) - 3, float(order @ order)
    if degrees < 1 or not squares:
        return 0.0
    slope = float(order @ deviation) / squares
    error = sqrt(float(((deviation - slope * order) ** 2).sum()) / degrees / squares)
    return slope if abs(slope) > student_quantile(_DRIFT_ALPHA, degrees) * error else 0.0


def _tokens(part: str, runs: Sequence[RunCosts]) -> tuple[list[float | None], list[int | None]]:
    """The energies and the tokens of a part."""
    return [run.energy_j.get(part) for run in runs], [run.tokens.get(part) for run in runs]


def _length(runs: Sequence[RunCosts], part: str) -> float | None:
    """Tokens of a part per request."""
    tokens = sum(run.tokens.get(part) or 0 for run in runs)
    requests = sum(run.requests or 0 for run in runs)
    return tokens / requests if requests else None


def _listed(values: set[str]) -> str:
    return ", ".join(sorted(values))
