"""Compares answers with truth and oracle: figures by row and quantity, and a verdict with reasons.

**Coverage** is the share of answers with a half-width that lie within it. Answers of one seed fail together, so its
95 % interval is the interval of a ratio of sums over seeds. With `c_s` covered of `n_s` and `p = sum c / sum n`, the
variance is `S / (S - 1) · sum (c_s - p·n_s)² / (sum n)²` (Cochran, "Sampling Techniques", 6.3), at least binomial.

A row falls short if

- the coverage interval does not reach 90 % (rows of unmarked work are exempt, because unmarked work cannot be
  distinguished from the regions' own; only the next rule applies to them);
- significantly more than 1 % of answers are beyond three half-widths: a share of 1 % would give so many with a
  probability below 5 % (binomial, for independent answers);
- fewer than 60 % of the answerable quantities are answered. So a row that only refuses falls short, unless the oracle
  refuses too;
- of numbers without a half-width and without a flag, more than 1 % (tested as above) are off by more than 10 % of
  their reference (`oracle.Target`);
- a clean row answers less than 95 % of the answerable quantities, or its median error exceeds 2 %;
- a replayed row gives numbers that differ from the analysis of the same recording.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal, NamedTuple

from laboratory.oracle import Target
from laboratory.recordings import Answer

Kind = Literal["clean", "violated", "unmarked", "replay"]

LEAST_COVERAGE: Final = 0.90
LEAST_ANSWERED: Final = 0.60
LEAST_ANSWERED_CLEAN: Final = 0.95
MOST_BEYOND: Final = 0.01
LARGEST_MEDIAN: Final = 0.02
#: Larger relative errors of numbers without half-width and flag are confident errors.
OFF: Final = 0.10
#: Largest relative difference by rounding between two runs of one estimator over the same numbers.
SAME: Final = 1e-6
_Z95: Final = 1.959964
_CHANCE: Final = 0.05


class Outcome(NamedTuple):
    """One quantity of one region in one case. `live`: the answer of a replay, None without one."""

    row: str
    seed: int
    region: str
    quantity: str
    target: Target
    answer: Answer
    live: Answer | None = None

    @property
    def error(self) -> float:
        """The error relative to the reference; inf without an answer."""
        value, target = self.answer.value, self.target
        return math.inf if value is None else abs(value - target.truth) / target.reference

    @property
    def half_widths(self) -> float | None:
        """The error in half-widths. None without an answer or a half-width."""
        value, half_width = self.answer.value, self.answer.half_width
        if value is None or half_width is None:
            return None
        # Differences by rounding do not count.
        miss = max(0.0, abs(value - self.target.truth) - 1e-6 * self.target.reference)
        return 0.0 if miss == 0 else miss / half_width if half_width > 0 else math.inf

    @property
    def confidently_wrong(self) -> bool:
        """Beyond three half-widths, or off by more than a tenth with neither half-width nor flag."""
        distance = self.half_widths
        if distance is not None:
            return distance > 3
        return self.answer.value is not None and not self.answer.flagged and self.error > OFF

    @property
    def differs(self) -> bool:
        """Whether the replay and the analysis give different answers."""
        if self.live is None:
            return False
        pairs = (self.live.value, self.answer.value), (self.live.half_width, self.answer.half_width)
        most = SAME * self.target.reference
        return any(a is not b if a is None or b is None else abs(a - b) > most for a, b in pairs)


@dataclass(frozen=True)
class Score:
    """The figures of one quantity in one row.

    `bare`: numbers without a half-width or flag. `off`: bare numbers with an error above a tenth.
    """

    quantity: str
    n: int
    answerable: int
    answered: int
    given: int
    covered: int
    interval: tuple[float, float]
    with_half_width: int
    beyond: int
    median_error: float
    worst: float
    refusals: dict[str, int]
    bare: int
    off: int
    differ: int
    covered_answerable: int

    @property
    def coverage(self) -> float:
        """Share of answers with the truth within their half-width; 1 without such answers."""
        return self.covered / self.with_half_width if self.with_half_width else 1.0

    @property
    def cost(self) -> tuple[int, int]:
        """(answerable quantities without a right answer, answerable quantities)."""
        return self.answerable - self.covered_answerable, self.answerable

    def faults(self, kind: Kind) -> list[str]:
        """The reasons why the row falls short by this quantity."""
        faults = []
        if self.with_half_width and kind != "unmarked" and self.interval[1] < LEAST_COVERAGE:
            faults.append(f"{self.quantity}: cover {self.coverage:.0%}")
        if too_many(self.beyond, self.with_half_width):
            faults.append(f"{self.quantity}: {self.beyond} of {self.with_half_width} beyond three half-widths")
        if too_many(self.off, self.bare):
            faults.append(f"{self.quantity}: {self.off} of {self.bare} unflagged numbers off by over {OFF:.0%}")
        least = LEAST_ANSWERED_CLEAN if kind == "clean" else LEAST_ANSWERED
        if self.answered < least * self.answerable:
            faults.append(f"{self.quantity}: answered {self.answered} of {self.answerable}")
        if kind == "clean" and self.given and self.median_error > LARGEST_MEDIAN:
            faults.append(f"{self.quantity}: median error {self.median_error:.1%}")
        if self.differ:
            faults.append(f"{self.quantity}: {self.differ} of {self.n} differ live")
        return faults

    def __str__(self) -> str:
        answered = f"{self.quantity}: answered {_share(self.answered, self.answerable)} of {self.answerable}"
        if not self.given:
            return f"{answered}, none given"
        errors = f"median {self.median_error:.2%}, worst {self.worst:.0%}"
        if not self.with_half_width:
            return f"{answered}, {errors}, off {_share(self.off, self.bare)}"
        low, high = self.interval
        return (
            f"{answered}, cover {self.coverage:.0%} [{low:.0%}, {high:.0%}], "
            f"beyond 3 {_share(self.beyond, self.with_half_width)}, {errors}"
        )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def score(outcomes: Sequence[Outcome]) -> Score:
    """The figures of outcomes of one quantity."""
    given = [each for each in outcomes if each.answer.value is not None]
    able = [each for each in outcomes if each.target.answerable]
    wide = [(each, distance) for each in given if (distance := each.half_widths) is not None]
    bare = [each for each in given if each.half_widths is None and not each.answer.flagged]
    errors = [each.error for each in given]
    return Score(
        quantity=outcomes[0].quantity,
        n=len(outcomes),
        answerable=len(able),
        answered=sum(each.answer.value is not None for each in able),
        given=len(given),
        covered=sum(distance <= 1 for _, distance in wide),
        interval=clustered([(each.seed, distance <= 1) for each, distance in wide]),
        with_half_width=len(wide),
        beyond=sum(distance > 3 for _, distance in wide),
        median_error=median(errors) if errors else math.nan,
        worst=max(errors, default=math.nan),
        refusals=dict(Counter(_first_words(e.answer.reason) for e in outcomes if e.answer.value is None)),
        bare=len(bare),
        off=sum(each.error > OFF for each in bare),
        differ=sum(each.differs for each in outcomes),
        covered_answerable=sum(_right(each) for each in able),
    )


def _right(outcome: Outcome) -> bool:
    distance = outcome.half_widths
    return outcome.answer.value is not None and (outcome.error <= OFF if distance is None else distance <= 1)


def _first_words(reason: str) -> str:
    return reason.split(": ", 1)[-1][:60] or "no reason"


def clustered(members: Iterable[tuple[int, bool]]) -> tuple[float, float]:
    """The 95 % interval of a share with members that fail together by seed; 0 to 1 without members."""
    seeds: dict[int, list[int]] = {}
    for seed, good in members:
        both = seeds.setdefault(seed, [0, 0])
        both[0] += good
        both[1] += 1
    total = sum(n for _, n in seeds.values())
    if not total:
        return 0.0, 1.0
    p = sum(c for c, _ in seeds.values()) / total
    spread = sum((c - p * n) ** 2 for c, n in seeds.values()) / total**2
    spread *= len(seeds) / max(1, len(seeds) - 1)
    error = _Z95 * math.sqrt(max(spread, p * (1 - p) / total))
    return max(0.0, p - error), min(1.0, p + error)


def too_many(count: int, n: int, share: float = MOST_BEYOND) -> bool:
    """Whether `count` of `n` is significantly more than the allowed share (probability by chance below 5 %)."""
    if count <= share * n:
        return False
    below = sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(min(count, 60)))
    return 1 - below < _CHANCE


@dataclass(frozen=True)
class Verdict:
    """The result of a row. `cost`: the share of answerable quantities without a right answer."""

    row: str
    kind: Kind
    scores: tuple[Score, ...]
    faults: tuple[str, ...]
    cost: float

    @property
    def ok(self) -> bool:
        """Whether the row has no faults."""
        return not self.faults


def verdict(row: str, kind: Kind, outcomes: Sequence[Outcome]) -> Verdict:
    """Score every quantity of a row."""
    quantities = list(dict.fromkeys(each.quantity for each in outcomes))
    scores = tuple(score([each for each in outcomes if each.quantity == quantity]) for quantity in quantities)
    main = [each.cost for each in scores if each.quantity in {"power", "busy"}]
    missed, able = (sum(column) for column in zip(*main, strict=True)) if main else (0, 0)
    if not able:  # then only numbers with a half-width can be wrong
        missed = sum(each.with_half_width - each.covered for each in scores)
        able = max(1, sum(each.with_half_width for each in scores))
    faults = tuple(fault for each in scores for fault in each.faults(kind))
    return Verdict(row, kind, scores, faults, missed / able)
