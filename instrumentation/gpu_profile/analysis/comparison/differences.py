"""Compares two recordings region by region: the change of each quantity, with a confidence interval.

All intervals of a comparison contain the truth together in 95 of 100 comparisons (Bonferroni). So of 20 comparisons of
a program with itself, at most about one shows any difference. An interval has three parts:

- Chance among executions, which depend on one another within a run (`chance.correlation_time`). Means: Student's t.
  Quantiles: order statistics, for any distribution. Failures: Wilson's interval.
- For GPU-busy time and energy, the half-width of the recovered rate.
- The difference between whole runs of one program: clocks, temperature, placement. Two recordings cannot separate it
  from a change of the program, so it is an assumption, `RUN_TO_RUN`.

The intervals of the difference and of the ratio follow by recovery of variance estimates (Zou and Donner, *Statistics
in Medicine* 27, 2008; Donner and Zou, *Stat. Methods Med. Res.* 21, 2012). For shares that is method 10 of Newcombe
(*Statistics in Medicine* 17, 1998). Either both exclude "no change" or neither does. No quantity is negative, and so
no ratio is below -100 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Final, NamedTuple

from gpu_profile.analysis.account import Analysis
from gpu_profile.analysis.chance import Edges, normal_quantile
from gpu_profile.analysis.comparison.quantities import QUANTITIES, UNITS, CallEstimate, quantities_of
from gpu_profile.errors import UsageError, few

#: The probability that any interval of a comparison misses the truth.
ALPHA: Final = 0.05
#: The standard deviation between whole runs of one program, as a share of each value: our choice. Clocks that follow
#: the temperature and the power limit make it 1 to 2 % on a GPU without other users.
RUN_TO_RUN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of a region in both recordings, `a` and `b` per call (or per item), in `unit`.

    `interval` is that of `b - a`, `relative_interval` that of `b / a - 1`. None: unknown. Then `refusals` has the sides
    ("A", "B" or "A and B") that allow no interval, each with its reason.
    """

    region: str
    quantity: str
    unit: str
    a: float | None
    b: float | None
    interval: Edges | None = None
    relative_interval: Edges | None = None
    refusals: tuple[tuple[str, str], ...] = ()

    @property
    def reason(self) -> str:
        """Why there is no interval, side by side; empty if there is one."""
        return "; ".join(f"{sides}: {why}" for sides, why in self.refusals)

    @property
    def change(self) -> float | None:
        """`b - a`."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """`b / a - 1`."""
        return None if self.a is None or self.b is None or self.a <= 0 else self.b / self.a - 1

    @property
    def no_ratio(self) -> str:
        """Why the difference has an interval and its ratio has none. Empty if both have one, or neither."""
        if self.interval is None or self.relative_interval is not None:
            return ""
        return "A may be 0: the ratio has no interval" if self.a else "A is 0: there is no ratio"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences, region by region, and the regions that only one recording has.

    The true values lie in all `intervals` in 95 of 100 comparisons, if runs of one program differ by `run_to_run`, a
    standard deviation as a share. `simulated_a`, `simulated_b`: that side's GPUs are simulated. `runs` has the numbers
    of runs of a benchmark, None for recordings.
    """

    differences: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]
    run_to_run: float = RUN_TO_RUN
    simulated_a: bool = False
    simulated_b: bool = False
    runs: tuple[int, int] | None = None

    @property
    def intervals(self) -> int:
        """The number of differences with an interval."""
        return sum(each.interval is not None for each in self.differences)


class Pair(NamedTuple):
    """One quantity of a region, or of a part of runs' costs, on both sides."""

    region: str
    quantity: str
    a: CallEstimate
    b: CallEstimate

    @property
    def time(self) -> float:
        """The correlation time of the region's executions, one for both sides: a program rarely changes it."""
        a, b = self.a, self.b
        return (a.calls * a.time + b.calls * b.time) / max(1, a.calls + b.calls)

    @property
    def may_differ(self) -> bool:
        """Whether a difference could show: not with a missing interval, nor if both values are 0."""
        return bool(self.a.value or self.b.value) and all(self.edges(ALPHA, 0.0))

    def edges(self, alpha: float, run_to_run: float) -> tuple[Edges | None, Edges | None]:
        """The interval of each side, widened by the difference between whole runs. Nothing is below 0."""
        widen = 0.0 if UNITS[self.quantity] == "1" else normal_quantile(alpha) * run_to_run
        left, right = (_widened(side.value, side.interval(alpha, self.time), widen) for side in (self.a, self.b))
        return left, right

    def difference(self, alpha: float, run_to_run: float) -> Difference:
        """The difference with its intervals, or the reasons for their absence."""
        unit, a, b = UNITS[self.quantity], self.a.value, self.b.value
        sides = self.edges(alpha, run_to_run)
        refused: dict[str, list[str]] = {}
        for side, estimate, edges in zip("AB", (self.a, self.b), sides, strict=True):
            if edges is None:
                why = estimate.why_not(self.time) or f"too few executions for an interval of {self.quantity}"
                refused.setdefault(why, []).append(side)
        refusals = tuple((" and ".join(each), why) for why, each in refused.items())
        interval = ratio = None
        if sides[0] is not None and sides[1] is not None and a is not None and b is not None:
            interval, ratio = of_sides(a, sides[0], b, sides[1])
        relative = None if unit == "1" else ratio
        return Difference(self.region, self.quantity, unit, a, b, interval, relative, refusals)


def compare(a: Analysis, b: Analysis, *, run_to_run: float = RUN_TO_RUN) -> Comparison:
    """Compare the regions of both recordings. UsageError if they have none in common.

    `run_to_run` is the standard deviation between whole runs of one program, as a share of each value.
    """
    common = [region for region in a.runs if region in b.runs]
    if not common:
        raise UsageError(
            "the recordings have no region in common: "
            f"the first has {few(a.runs, 60) or 'none'}, the second {few(b.runs, 60) or 'none'}"
        )
    pairs = [pair for region in common for pair in _pairs(region, a, b)]
    return Comparison(
        differences_of(pairs, run_to_run),
        tuple(region for region in a.runs if region not in b.runs),
        tuple(region for region in b.runs if region not in a.runs),
        _notes(a, b, common),
        run_to_run,
        a.simulated,
        b.simulated,
    )


def differences_of(pairs: Sequence[Pair], run_to_run: float) -> tuple[Difference, ...]:
    """The differences, whose intervals contain the truth together with probability 1 - `ALPHA`."""
    alpha = ALPHA / max(1, sum(pair.may_differ for pair in pairs))
    return tuple(pair.difference(alpha, run_to_run) for pair in pairs)


def _notes(a: Analysis, b: Analysis, common: list[str]) -> tuple[str, ...]:
    notes = [f"{side}: {note}" for side, analysis in (("A", a), ("B", b)) for note in analysis.notes]
    properties: dict[str, Callable[[Analysis], set[str]]] = {
        "drivers": lambda side: {process.driver.partition(":")[0] for process in side.processes},
        "devices": lambda side: {use.device.name for use in side.devices},
        "sources of energy": lambda side: {u.summary.energy_source for u in side.regions if u.summary.region in common},
    }
    for name, of in properties.items():
        left, right = (", ".join(sorted(of(side) - {""})) or "none" for side in (a, b))
        if left != right:
            notes.append(f"different {name}: {left} in A, {right} in B")
    return tuple(notes)


def _pairs(region: str, a: Analysis, b: Analysis) -> Iterator[Pair]:
    left, right = quantities_of(a, region), quantities_of(b, region)
    for quantity in QUANTITIES:
        pair = Pair(region, quantity, left[quantity], right[quantity])
        if not quantity.endswith("/item") or any(side.value is not None or side.reason for side in pair[2:]):
            yield pair


def _widened(value: float | None, edges: Edges | None, widen: float) -> Edges | None:
    """Edges with a further uncertainty, as a share of the value."""
    if edges is None or value is None:
        return None
    low, high = (hypot(edge - value, widen * value) for edge in edges)
    return max(0.0, value - low), value + high


def of_sides(a: float, a_edges: Edges, b: float, b_edges: Edges) -> tuple[Edges, Edges | None]:
    """The intervals of `b - a`, and of `b / a - 1`; None if `a` may be 0."""
    (a_low, a_high), (b_low, b_high) = a_edges, b_edges
    interval = b - a - hypot(b - b_low, a_high - a), b - a + hypot(b_high - b, a - a_low)
    if a_low <= 0.0:
        return interval, None
    # The ratios r at which the interval of b - r a has an edge at 0.
    least, most = a_high * (2 * a - a_high), a_low * (2 * a - a_low)
    low = _root(b * a, b_low * (2 * b - b_low), least)
    high = (b * a + sqrt(max(0.0, (b * a) ** 2 - most * b_high * (2 * b - b_high)))) / most
    return interval, (low - 1.0, high - 1.0)


def _root(product: float, b: float, a: float) -> float:
    """The smaller solution of a r² - 2 product r + b = 0, at least 0. Exact also where `a` is near 0 or below."""
    return max(0.0, b / (product + sqrt(max(0.0, product**2 - a * b)))) if product > 0 else 0.0
