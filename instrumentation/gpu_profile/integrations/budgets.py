"""Budgets of a test: bounds such as `<=12 J`, and their judgement of a measurement. Pure, and cheap to import."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

#: Units, with their size in the quantity's base unit.
_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
_JOULES: Final = {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "Wh": 3600.0}
_WATTS: Final = {"W": 1.0, "mW": 1e-3, "kW": 1e3}
_BYTES: Final = {
    "B": 1.0,
    **{f"{prefix}B": 1000.0 ** (i + 1) for i, prefix in enumerate("kMG")},
    **{f"{prefix}iB": 1024.0 ** (i + 1) for i, prefix in enumerate("KMG")},
}
_RATIOS: Final = {"%": 0.01, "": 1.0}

#: The quantities of budgets with their units. Values are printed in the first unit.
QUANTITIES: Final[Mapping[str, Mapping[str, float]]] = {
    "energy": _JOULES,
    "busy": _RATIOS,
    "busy_time": _SECONDS,
    "duration": _SECONDS,
    "power": _WATTS,
    "memory": {"MiB": 1024.0**2, **_BYTES},
    "coverage": _RATIOS,
    "energy_per_token": {"J/token": 1.0, "mJ/token": 1e-3},
    "energy_per_request": {"J/request": 1.0, "mJ/request": 1e-3, "kJ/request": 1e3},
    "busy_time_per_request": {"GPU-s/request": 1.0, "GPU-ms/request": 1e-3},
}
#: Quantities per unit of work: the quantity that is divided, and the attribute of `GpuWork` that divides it.
_PER: Final = {
    "energy_per_token": ("energy", "tokens"),
    "energy_per_request": ("energy", "requests"),
    "busy_time_per_request": ("busy_time", "requests"),
}
_HOLDS: Final[Mapping[str, Any]] = {
    "<=": lambda value, bound: value <= bound,
    ">=": lambda value, bound: value >= bound,
    "<": lambda value, bound: value < bound,
    ">": lambda value, bound: value > bound,
}
_BOUND: Final = re.compile(r"\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([^\s\d]*)\s*")


class BudgetError(ValueError):
    """An invalid budget. The message is one line."""


class Measured(NamedTuple):
    """One measured quantity of a test, in its base unit; `value` is None for `reason`.

    `source` is the origin of the value, `off` its uncertainty.
    """

    value: float | None
    source: str = ""
    off: float = 0.0
    reason: str = ""


@dataclass(slots=True)
class GpuWork:
    """The work of a test as it states it, for budgets per token and per request. 0: not stated."""

    tokens: float = 0
    requests: float = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """One bound on one quantity, in its base unit (s, J, W, B, a ratio of 0-1); `text` is the user's text."""

    quantity: str
    sign: str
    bound: float
    text: str

    def holds(self, value: float) -> bool:
        """Whether a measured value is within the bound."""
        kept: bool = _HOLDS[self.sign](value, self.bound)
        return kept


def budgets(arguments: Mapping[str, Any]) -> list[Budget]:
    """The budgets of `quantity="bound"` arguments. Raises BudgetError."""
    return [_budget(quantity, text) for quantity, text in arguments.items()]


def _budget(quantity: str, text: Any) -> Budget:
    units = QUANTITIES.get(quantity)
    if units is None:
        close = get_close_matches(quantity, QUANTITIES, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise BudgetError(f"{quantity!r} is no quantity of a budget: choose among {', '.join(QUANTITIES)}{meant}")
    example = f'{quantity}="{EXAMPLES[quantity]}"'
    if not isinstance(text, str):
        raise BudgetError(f"{quantity}={text!r}: a budget is a text with a bound and a unit, such as {example}")
    parts = _BOUND.fullmatch(text)
    if parts is None:
        raise BudgetError(f"{quantity}={text!r}: not a bound; write <=, >=, < or >, a number and a unit: {example}")
    sign, number, unit = parts.groups()
    if unit not in units:
        choices = ", ".join(name or "none" for name in units)
        problem = f"unknown unit {unit!r}" if unit else "no unit"
        raise BudgetError(f"{quantity}={text!r}: {problem}; one of {choices}: {example}")
    bound = float(number) * units[unit]
    if units is _RATIOS and bound > 1:
        raise BudgetError(f"{quantity}={text!r}: a share is at most 100 %, and a number without % at most 1")
    return Budget(quantity, sign, bound, text.strip())


EXAMPLES: Final[Mapping[str, str]] = {
    "energy": "<=12 J",
    "busy": ">=60%",
    "busy_time": "<=500 ms",
    "duration": "<=2 s",
    "power": "<=300 W",
    "memory": "<=2 GB",
    "coverage": ">=90%",
    "energy_per_token": "<=0.5 J/token",
    "energy_per_request": "<=80 J/request",
    "busy_time_per_request": "<=0.2 GPU-s/request",
}


def show(quantity: str, value: float) -> str:
    """A value with the first unit of its quantity."""
    unit, scale = next(iter(QUANTITIES[quantity].items()))
    shown = value / scale
    return f"{shown:.1f} %" if unit == "%" else f"{shown:.4g} {unit}" if abs(shown) < 1000 else f"{shown:,.0f} {unit}"


def per_unit(measured: Mapping[str, Measured], work: GpuWork | None) -> dict[str, Measured]:
    """The quantities per unit of work, from those of a whole test."""
    result: dict[str, Measured] = {}
    for quantity, (whole, unit) in _PER.items():
        value, source, off, reason = measured.get(whole, Measured(None, reason="it was not measured"))
        number = getattr(work, unit, 0)
        if not number > 0:
            value, reason = None, f"the test states no {unit}: it sets gpu_work.{unit}, with the fixture gpu_work"
        unknown = Measured(None, reason=reason)
        result[quantity] = unknown if value is None else Measured(value / number, source, off / number)
    return result


def judge(asked: list[Budget], measured: Mapping[str, Measured]) -> tuple[list[str], list[str]]:
    """Two lists of messages: one line for each broken budget, one for each that cannot be decided.

    A budget cannot be decided if its quantity was not measured, or the bound is within the uncertainty of the value.
    """
    broken, untold = [], []
    for budget in asked:
        measurement = measured.get(budget.quantity, Measured(None, reason="it was not measured"))
        value, off = measurement.value, measurement.off
        words = f"{budget.quantity} {budget.text}"
        if value is None:
            untold.append(f"{words}: not measured: {measurement.reason}")
            continue
        kept = budget.holds(max(0.0, value - off)), budget.holds(value + off)
        doubt = f" ± {show(budget.quantity, off)}" if off else ""
        source = f", from {measurement.source}" if measurement.source else ""
        result = f"it was {show(budget.quantity, value)}{doubt}{source}"
        if not any(kept):
            broken.append(f"{words}: {result}")
        elif not all(kept):
            untold.append(f"{words}: too close to decide: {result}")
    return broken, untold
