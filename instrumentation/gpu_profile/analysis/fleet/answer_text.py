"""An answer as a table for the terminal, as CSV or as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gpu_profile.analysis.fleet.engine import FleetAnswer
from gpu_profile.analysis.fleet.questions import QUESTIONS
from gpu_profile.report.as_csv import csv_text
from gpu_profile.report.as_json import to_json
from gpu_profile.report.table import UNKNOWN, fitted_table, folded, printable

#: Significant digits of numbers in a table. CSV, JSON and files have all of them.
_DIGITS: Final = 4
#: A column that a narrow terminal omits while all of it is 0.
_USUALLY_0: Final = "unmeasured_executions"
#: Columns that a narrow terminal omits.
_SPARE: Final = ("unit", "runs_a", "runs_b", "uncertain_gpu_s", "uncertain_energy_j", "measured_s", "services")


def as_table(answer: FleetAnswer, width: int | None = None) -> str:
    """Aligned columns of at most `width` characters if possible. A dash is a missing value or an empty text."""
    if not answer.rows:
        return f"no rows ({', '.join(answer.columns)})"
    values = [[row[place] for row in answer.rows] for place in range(len(answer.columns))]
    text = [all(isinstance(value, str | None) for value in column) for column in values]
    # Text first, as in the answers to questions.
    left = next((place for place, is_text in enumerate(text) if not is_text), len(text))
    empty = {place for place, column in enumerate(values) if all(value in (None, "") for value in column)}
    empty |= {place for place, name in enumerate(answer.columns) if name == _USUALLY_0 and not any(values[place])}
    spare = [empty, {place for place, name in enumerate(answer.columns) if name in _SPARE} - empty]
    cells = [[_cell(value) for value in row] for row in answer.rows]
    names = [*map(printable, answer.columns)]
    return fitted_table(names, cells, spare, width=width, left=left, more="--format csv has them")


def _cell(value: object) -> str:
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return f"{value:,.0f}" if whole else f"{value:,.{_DIGITS}g}" if abs(value) < 10**_DIGITS else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def as_csv(answer: FleetAnswer) -> str:
    """A header and rows; a missing value is an empty cell."""

    def reader(place: int) -> Any:
        return lambda row: row[place]

    return csv_text({name: reader(place) for place, name in enumerate(answer.columns)}, answer.rows)


def as_json(answer: FleetAnswer) -> str:
    """A list of objects; a missing value is null."""
    return to_json([dict(zip(answer.columns, map(_json, row), strict=True)) for row in answer.rows])


def _json(value: object) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def listed(width: int | None) -> str:
    """The questions with their columns, for a terminal of this width."""
    return "\n\n".join("\n".join(_about(name, width)) for name in QUESTIONS)


def _about(name: str, width: int | None) -> Iterator[str]:
    question = QUESTIONS[name]
    yield f"{name}: {question.title}"
    widest = max(map(len, question.columns))
    for column, meaning in question.columns.items():
        yield folded(f"  {column.ljust(widest)}  {meaning}", width, " " * (widest + 4))
