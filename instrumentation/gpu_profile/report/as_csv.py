"""Rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Final, TypeVar

from gpu_profile.report.table import printable

Cell = str | int | float | None
_T = TypeVar("_T")
#: The characters that begin a formula in spreadsheets.
_FORMULA: Final = ("=", "+", "-", "@")


def csv_text(columns: Mapping[str, Callable[[_T], Cell]], rows: Iterable[_T]) -> str:
    """A header, and for each row the values that the columns read from it. Lines end in line feeds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    for row in rows:
        writer.writerow([_cell(read(row)) for read in columns.values()])
    return out.getvalue()


def _cell(value: Cell) -> str | int | float:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
