"""Parses dcgm-exporter's CSV files of fields to publish: `FIELD, type, help` per line, `#` begins a comment."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.naming.dcgm_fields import LABEL_FIELDS, SOURCES, Field, FieldSelection, measured

_METRIC_TYPES: Final = ("gauge", "counter")
#: The types that dcgm-exporter accepts. `histogram` and `summary` lines are skipped: a field is one number.
_TYPES: Final = (*_METRIC_TYPES, "histogram", "summary", "label")
#: A larger file cannot be a list of fields: dcgm has some hundreds of them.
_MOST_BYTES: Final = 1 << 18


def read_counters(path: Path) -> FieldSelection:
    """The selection of a file, with one warning for each line that is skipped.

    Raises UsageError with file and line if the file is not readable, a line does not have three columns, a quote is
    not closed, a type is not a Prometheus type, or no line can be published.
    """
    return parse_counters(_text(path), str(path))


def parse_counters(text: str, name: str) -> FieldSelection:
    """`read_counters` for the text of a file called `name`."""
    fields: dict[str, Field] = {}
    labels: list[str] = []
    warnings: list[str] = []
    for number, record in _records(text, name):
        if len(record) != 3:
            raise UsageError(
                f"{name}:{number}: {len(record)} columns instead of 3 (FIELD, type, help); quote a help text that "
                "contains commas"
            )
        field, kind, brief = record
        if kind not in _TYPES:
            raise UsageError(
                f"{name}:{number}: {_shown(field)} has the type {_shown(kind)!r}; there are {', '.join(_TYPES)}"
            )
        if reason := _refusal(field, kind, listed={*fields, *labels}):
            warnings.append(f"{name}:{number}: {_shown(field)} is left out: {reason}")
        elif kind == "label":
            labels.append(field)
        else:
            fields[field] = Field(field, kind, brief)
    if not fields:
        raise UsageError(f"{name}: no line of it names a metric that can be published" + _first(warnings))
    return FieldSelection(tuple(fields.values()), tuple(labels), tuple(warnings))


def _shown(text: str) -> str:
    """The first 64 characters of a cell, with `?` for each that is not printable."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:64])


def _first(warnings: list[str]) -> str:
    return f" (the first: {warnings[0]})" if warnings else ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > _MOST_BYTES:
        raise UsageError(f"{path}: larger than {_MOST_BYTES >> 10} KiB, which no list of fields is")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text") from error


def _records(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """The records except empty lines and comments, each with the number of its first line."""
    # Not splitlines(), which would also break a line at a form feed or a Unicode separator.
    lines = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue

        def record(first: str = line) -> Iterator[str]:
            yield first + "\n"
            yield from (following + "\n" for _, following in lines)

        try:
            cells = next(csv.reader(record(), strict=True, skipinitialspace=True))
        except csv.Error as error:
            raise UsageError(f"{name}:{number}: not CSV: {error}") from error
        yield number, [" ".join(cell.split()) for cell in cells]


def _refusal(field: str, kind: str, listed: set[str]) -> str:
    """The reason to skip a line. Empty if the line is valid."""
    if field in listed:
        return "it is listed above already"
    if kind == "label":
        return (
            "" if field in LABEL_FIELDS else f"it cannot be a label here; these can: {', '.join(sorted(LABEL_FIELDS))}"
        )
    if field in LABEL_FIELDS:
        return "it is a text, which can only be a label"
    if not measured(field):
        close = get_close_matches(field, [name for name in SOURCES if measured(name)], n=1, cutoff=0.95)
        return "it is not measured here" + (f"; did you mean {close[0]}?" if close else "")
    return "" if kind in _METRIC_TYPES else f"a single number is no {kind}"
