"""`python tests/laboratory/search.py [--examples N] [--seed N]`: hypothesis looks for confident errors.

It composes cases like `mixes`, but hypothesis chooses every size and prefers cases with answers that are many
half-widths off (`hypothesis.target`). It prints the worst cases as Python. A case to keep goes into `found.FOUND` and
so becomes a row of the table. The search is no test of the suite yet, because it still finds errors.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from laboratory.mixes import Mixed, compose
from laboratory.run import line
from laboratory.score import Outcome

_PRINTED: Final = 5
#: Larger errors count as equal.
_FAR: Final = 1000.0


class Chooser:
    """Replaces a random generator by choices of hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def random(self) -> float:
        """Between 0 and 1."""
        return self.uniform(0.0, 1.0)

    def uniform(self, low: float, high: float) -> float:
        """Between two numbers."""
        return float(self._data.draw(st.floats(low, high)))

    def integers(self, low: int, high: int | None = None, *, size: int | None = None) -> Any:
        """From `low` to below `high`, or from 0 to below `low`."""
        one = st.integers(0, low - 1) if high is None else st.integers(low, high - 1)
        return self._data.draw(one) if size is None else np.array([self._data.draw(one) for _ in range(size)])

    def choice(self, among: int | Sequence[float], *, p: Sequence[float] = ()) -> Any:
        """One of several. Hypothesis ignores `p`."""
        return self._data.draw(st.sampled_from(range(among) if isinstance(among, int) else list(among)))

    def permutation(self, count: int) -> list[int]:
        """The numbers below `count`, in any order."""
        return list(self._data.draw(st.permutations(range(count))))


def worst(outcomes: Sequence[Outcome]) -> float:
    """The largest error in half-widths. Without a half-width, the error in tenths of the reference."""
    errors = [0.0]
    for outcome in outcomes:
        if outcome.answer.value is not None and not outcome.answer.flagged:
            off = outcome.half_widths
            errors.append(outcome.error * 10 if off is None else off)
    return min(max(errors), _FAR)


def search(examples: int, seed: int) -> list[tuple[float, Mixed, list[Outcome]]]:
    """The tried cases, the worst first."""
    tried: list[tuple[float, Mixed, list[Outcome]]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.target],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(st.data(), st.integers(0, 1 << 20))
    def one(data: st.DataObject, number: int) -> None:
        case = compose(cast("np.random.Generator", Chooser(data)), number)
        outcomes = case.outcomes()
        off = worst(outcomes)
        hypothesis.target(math.log(1 + off), label="half-widths off")
        tried.append((off, case, outcomes))

    one()
    return sorted(tried, key=lambda each: -each[0])


def as_python(value: object) -> str:
    """The expression that makes a description, without arguments at their defaults."""
    if isinstance(value, tuple):
        return f"({', '.join(map(as_python, value))}{',' if len(value) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    pairs = ((each, getattr(value, each.name)) for each in fields(value))
    given = (f"{each.name}={as_python(argument)}" for each, argument in pairs if argument != each.default)
    return f"{type(value).__name__}({', '.join(given)})"


def main(arguments: list[str]) -> int:
    """Search, and print the worst cases of different violations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    tried = search(options.examples, options.seed)
    print(f"{sum(off > 3 for off, _, _ in tried)} of {len(tried)} cases have an answer beyond three half-widths")
    shown: set[tuple[str, ...]] = set()
    for off, case, outcomes in tried:
        if off <= 3 or len(shown) == _PRINTED:
            break
        if case.violations not in shown:
            shown.add(case.violations)
            print(
                f"\n{off:.0f} half-widths off; {', '.join(case.violations) or 'no violation'}:\n{as_python(case.case)}"
            )
            print(*(line(outcome) for outcome in outcomes if outcome.confidently_wrong), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
