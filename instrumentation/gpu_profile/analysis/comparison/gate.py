"""Conditions under which a comparison fails: `decode.energy > +5%`.

condition = region "." quantity (">" | "<") change
region    = a name without dots, spaces and quotes, or any name in single or double quotes
quantity  = "duration" | "p50" | "p95" | "busy" | "energy" | "failures" | "duration/item" | "busy/item" | "energy/item"
            of runs of a benchmark: "energy/token" | "energy/request" | "gpu_time/request"
change    = a signed number with "%", or with s or J (prefixes n, u, µ, m, k, M); of failures with "pp", points in %
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final

from gpu_profile.analysis.comparison.differences import Comparison, Difference
from gpu_profile.analysis.comparison.quantities import RUN_QUANTITIES, UNITS
from gpu_profile.errors import UsageError, few

_PREFIXES: Final = {"": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6}
_EXAMPLE: Final = "write it like 'decode.energy > +5%'"
_REGION: Final = re.compile(r"""\s*(?:"([^"]+)"|'([^']+)'|([^\s."'<>]+))""")
_QUANTITY: Final = re.compile(r"\s*\.\s*([^\s<>.]+)")
_RELATION: Final = re.compile(r"\s*([<>])(?!=)")
_NUMBER: Final = re.compile(r"\s*([+\-−]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15}))", re.ASCII)
_UNIT: Final = re.compile(r"\s*(\S+)\s*$")


class Outcome(StrEnum):
    """Whether a condition holds."""

    HOLDS = "holds"
    NOT = "does not hold"
    UNTOLD = "cannot be judged"


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition on how a quantity of a region changed: `sign` 1 for more than `bound`, -1 for less.

    `bound` is in `unit`, s, J or 1 (a share); with no unit it is a ratio, such as 0.05.
    """

    text: str
    region: str
    quantity: str
    sign: int
    bound: float
    unit: str

    def judge(self, difference: Difference) -> Outcome:
        """It holds if the whole interval of the change lies beyond the bound."""
        interval = difference.relative_interval if not self.unit else difference.interval
        if interval is None:
            return Outcome.UNTOLD
        low, high = interval
        beyond = low > self.bound if self.sign > 0 else high < self.bound
        return Outcome.HOLDS if beyond else Outcome.NOT

    def reason(self, difference: Difference) -> str:
        """Why it cannot be judged, and what to do; empty if it can."""
        if self.judge(difference) is not Outcome.UNTOLD:
            return ""
        if difference.interval is not None:
            return f"{difference.no_ratio}; write the change in {difference.unit}, not in %"
        return difference.reason or "there is no interval"

    def find(self, comparison: Comparison) -> Difference:
        """The difference that the condition names. UsageError if the region is not in both recordings."""
        for difference in comparison.differences:
            if (difference.region, difference.quantity) == (self.region, self.quantity):
                return difference
        for side, regions in (("first", comparison.only_a), ("second", comparison.only_b)):
            if self.region in regions:
                raise UsageError(f"--fail-on {self.text!r}: only the {side} recording has the region {self.region!r}")
        both = tuple(dict.fromkeys(each.region for each in comparison.differences))
        if self.region in both:
            has = [each.quantity for each in comparison.differences if each.region == self.region]
            why = f"{self.region} has no such quantity; it has {few(has, 80)}"
            if self.quantity.endswith("/item") and not RUN_QUANTITIES.keys() & set(has):
                why = "no execution reported its items"
            return Difference(
                self.region, self.quantity, UNITS[self.quantity], None, None, refusals=(("A and B", why),)
            )
        raise UsageError(f"--fail-on {self.text!r}: no region {self.region!r}; {_near(self.region, both)}")


def _near(word: str, names: Sequence[str]) -> str:
    close = get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there is {few(names, 80)}"


def parse_gate(text: str) -> Gate:
    """Read a condition. UsageError with the column (from 1) and the reason."""

    def read(part: re.Pattern[str], at: int, wanted: str) -> re.Match[str]:
        match = part.match(text, at)
        if match is None:
            raise _error(text, at, wanted)
        return match

    region = read(_REGION, 0, f"no name of a region; {_EXAMPLE}")
    missing = f"'.' and a quantity expected; {_EXAMPLE} (quote a name that has dots)"
    quantity = read(_QUANTITY, region.end(), missing)
    if quantity[1] not in UNITS:
        hint = _near(quantity[1], tuple(UNITS))
        raise _error(
            text, quantity.start(1), f"no quantity {quantity[1]!r}; {hint} (quote a region's name that has dots)"
        )
    relation = read(_RELATION, quantity.end(), f"'>' or '<' expected; {_EXAMPLE}")
    number = read(_NUMBER, relation.end(), f"a signed number expected; {_EXAMPLE}")
    unit = read(_UNIT, number.end(), f"'%' or one unit expected; {_EXAMPLE}")
    scale, base = _unit(text, unit, UNITS[quantity[1]])
    name = region[1] or region[2] or region[3]
    bound = float(number[1].replace("−", "-")) * scale
    return Gate(text, name, quantity[1], 1 if relation[1] == ">" else -1, bound, base)


def _unit(text: str, match: re.Match[str], base: str) -> tuple[float, str]:
    unit = match[1]
    if base == "1":
        if unit == "pp":
            return 0.01, base
        raise _error(text, match.start(1), f"no unit {unit!r} here; it is pp (points in %)")
    if unit == "%":
        return 0.01, ""
    prefix = unit.removesuffix(base)
    if prefix != unit and prefix in _PREFIXES:
        return _PREFIXES[prefix], base
    raise _error(text, match.start(1), f"no unit {unit!r} here; it is % or {base} (m{base}, k{base}, ...)")


def _error(text: str, at: int, reason: str) -> UsageError:
    at += len(text[at:]) - len(text[at:].lstrip())
    return UsageError(f"--fail-on {text!r}: column {at + 1}: {reason}")
