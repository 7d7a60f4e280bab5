"""A comparison of two recordings as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Final

from gpu_profile.analysis.comparison.differences import Comparison, Difference
from gpu_profile.analysis.comparison.gate import Gate, Outcome
from gpu_profile.analysis.views.text import MORE, SIMULATED, listed, quantity, section
from gpu_profile.join.remedies import remedy
from gpu_profile.report.table import UNKNOWN, fitted_table, folded, signed
from gpu_profile.units import percent, si

COLUMNS: Final = ("region", "per call", "A", "B", "change", "interval", "difference")
#: A narrow terminal omits the change, which follows from A and B, and then the difference: the interval shows it.
_SPARE: Final = ((4,), (6,))
#: Names in a line of the summary; the table has all.
_MOST_NAMES: Final = 4
_SAME: Final = "none shown"
#: A condition of `--fail-on` with its difference and outcome.
Judged = tuple[Gate, Difference, Outcome]


def render_comparison(comparison: Comparison, judged: Sequence[Judged], *, width: int | None = None) -> str:
    """A summary, every difference, the regions of one side only, and the outcomes of the conditions."""
    parts = [folded("\n".join([*simulated(comparison), *summary(comparison)]), width)]
    rows = map(difference_row, shown(comparison))
    parts.append(fitted_table(COLUMNS, rows, _SPARE, width=width, left=2, more=MORE))
    parts += [folded(certainty(comparison), width)] if comparison.intervals else []
    parts += section("Missing results", gaps(comparison), width)
    if judged:
        parts.append(folded("\n".join(judgement(*each) for each in judged), width))
    return "\n\n".join(parts)


def simulated(comparison: Comparison) -> list[str]:
    """The line that names the sides with simulated GPUs, if there are any."""
    sides = [side for side, on in (("A", comparison.simulated_a), ("B", comparison.simulated_b)) if on]
    return [f"{SIMULATED} in {' and '.join(sides)}"] if sides else []


def shown(comparison: Comparison) -> list[Difference]:
    """The differences without shares of failures that are 0 on both sides."""
    return [each for each in comparison.differences if each.unit != "1" or each.a or each.b]


def summary(comparison: Comparison) -> list[str]:
    """Proven changes, unproven ones with their largest possible size, and missing results: up to three lines."""
    differences = shown(comparison)
    changed = sorted((each for each in differences if direction(each) in ("more", "less")), key=_size, reverse=True)
    same = [each for each in differences if direction(each) == "same"]
    unknown = [each for each in differences if not direction(each)]
    names = [f"{_name(each)} {direction(each)} ({_shown(each)})" for each in changed]
    lines = [f"Changed: {listed(names, _MOST_NAMES)}" if changed else "Changed: nothing for certain"]
    if same:
        ratios = [each for each in same if each.relative_interval is not None]
        wide = sorted(ratios, key=_reach)
        span = [f"{_name(each)} by up to {_at_most(each)}" for each in wide[:1] + wide[1:][-1:]]
        # Without a ratio there is no order among them.
        span += [f"{_name(each)} by up to {_at_most(each)}" for each in same if each.relative_interval is None]
        may = f": {listed(span, _MOST_NAMES)} may have changed unseen" if span else ""
        lines.append(f"No difference shown: {_many(len(same))}{may}")
    only = [f"region {name} is only in {side}" for side, of in _sides(comparison) for name in of]
    if unknown or only:
        names = [*only, *map(_name, unknown)]
        lines.append(f"Not to be judged: {listed(names, _MOST_NAMES)}; the reasons are under Missing results")
    return lines


def gaps(comparison: Comparison) -> list[str]:
    """Missing results with their reasons, one line for each reason."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for each in shown(comparison):
        if each.refusals:
            alike.setdefault(each.refusals, []).append(_name(each))
    only = [f"only in {side}: {name}" for side, of in _sides(comparison) for name in of]
    lines = (f"{listed(names)}: {'; '.join(map(_refusal, refusals))}" for refusals, names in alike.items())
    return [*only, *comparison.notes, *lines]


def _refusal(refusal: tuple[str, str]) -> str:
    """The sides without an interval, the reason, and the remedy for these sides."""
    sides, reason = refusal
    step = remedy(reason)
    return f"{sides}: {reason}{f' ({step})' if step else ''}"


def certainty(comparison: Comparison) -> str:
    """How often the intervals are right, and on which assumption."""
    shown = "The interval holds" if comparison.intervals == 1 else f"All {comparison.intervals} intervals hold"
    if comparison.runs is not None:
        a, b = comparison.runs
        return f"{shown} in 95 of 100 comparisons, by the spread between {a} runs in A and {b} in B"
    return (
        f"{shown} in 95 of 100 comparisons, if runs of one program differ by {percent(comparison.run_to_run)} "
        "(standard deviation, --run-to-run)"
    )


def judgement(gate: Gate, difference: Difference, outcome: Outcome) -> str:
    """The outcome of a condition, in one line."""
    return f"{outcome}: {gate.text} ({gate.reason(difference) or _shown(difference)})"


def difference_row(difference: Difference) -> tuple[str, ...]:
    """One difference, in the order of `COLUMNS`."""
    values = (
        percent(v) if difference.unit == "1" and v is not None else quantity(v, difference.unit)
        for v in (difference.a, difference.b)
    )
    change, interval = _change(difference), _interval(difference)
    word = {"same": _SAME, "": UNKNOWN}.get(direction(difference), direction(difference))
    return (difference.region, difference.quantity, *values, change, interval, word)


def direction(difference: Difference) -> str:
    """The change that the interval proves: "more", "less", or none ("same"). Empty without an interval."""
    edges = difference.relative_interval or difference.interval
    if edges is None:
        return ""
    return "more" if edges[0] > 0 else "less" if edges[1] < 0 else "same"


def _sides(comparison: Comparison) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("A", comparison.only_a), ("B", comparison.only_b)


def _name(difference: Difference) -> str:
    return f"{difference.region} {difference.quantity}"


def _many(number: int) -> str:
    return f"{number} quantit{'y' if number == 1 else 'ies'}"


def _size(difference: Difference) -> float:
    """The certain part of a change, as a share. Changes without a ratio come first."""
    edges = difference.relative_interval
    return float("inf") if edges is None else min(map(abs, edges))


def _reach(difference: Difference) -> float:
    """The largest change that the interval leaves possible: a share, or without a ratio in the quantity's unit."""
    return max(map(abs, difference.relative_interval or difference.interval or (0.0,)))


def _at_most(difference: Difference) -> str:
    """`_reach` in words, rounded up: a limit is never below the value."""
    reach = _reach(difference)
    if difference.relative_interval is not None:
        return percent(_up(reach, 0.01), 0)
    if difference.unit == "1":
        return f"{_up(reach, 0.001) * 100:.1f} pp"
    return si(_up(reach, 10.0 ** (floor(log10(reach)) - 1)), difference.unit, 2) if reach else si(0.0, difference.unit)


def _up(value: float, step: float) -> float:
    """The next multiple of `step` that is not below `value`, but for errors of arithmetic."""
    return ceil(value / step * (1.0 - 1e-9)) * step


def _change(difference: Difference) -> str:
    if difference.unit == "1":
        return UNKNOWN if difference.change is None else _points(difference.change)
    return UNKNOWN if difference.relative is None else signed(difference.relative)


def _interval(difference: Difference) -> str:
    """The interval of the ratio, else of the difference."""
    if difference.relative_interval is not None:
        low, high = difference.relative_interval
        return f"{signed(low)} to {signed(high)}"
    if difference.interval is not None:
        low, high = difference.interval
        if difference.unit == "1":
            return f"{_points(low)} to {_points(high)}"
        return f"{si(low, difference.unit)} to {si(high, difference.unit)}"
    return UNKNOWN


def _shown(difference: Difference) -> str:
    change = _change(difference)
    return _interval(difference) if change == UNKNOWN else f"{change}, {_interval(difference)}"


def _points(share: float) -> str:
    return f"{share * 100:+.1f} pp"
