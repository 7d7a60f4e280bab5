"""dcgm-exporter's CSV files, which say what to publish: a line is `FIELD, type, help`, `#` begins a comment."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.naming.dcgm_fields import LABEL_FIELDS, SOURCES, Field, FieldSelection, measured

_METRIC_TYPES: Final = ("gauge", "counter")
#: What dcgm-exporter takes; a single number is no histogram and no summary, whatever the file says.
_TYPES: Final = (*_METRIC_TYPES, "histogram", "summary", "label")
#: A file of more is no list of fields: dcgm has some hundreds.
_MOST_BYTES: Final = 1 << 18


def read_counters(path: Path) -> FieldSelection:
    """The selection that a file makes, with one warning for each line that cannot be followed.

    UsageError, naming file and line, for a file that is no such list: not readable, not three columns, an open quote,
    a type that Prometheus does not have, or nothing that can be published.
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
        if reason := _refusal(field, kind, known={*fields, *labels}):
            warnings.append(f"{name}:{number}: {_shown(field)} is left out: {reason}")
        elif kind == "label":
            labels.append(field)
        else:
            fields[field] = Field(field, kind, brief)
    if not fields:
        raise UsageError(f"{name}: no line of it names a metric that can be published" + _first(warnings))
    return FieldSelection(tuple(fields.values()), tuple(labels), tuple(warnings))


def _shown(text: str) -> str:
    """Enough of a cell for a line of a log, without what would not be text there."""
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
    """The records that are neither empty nor comments, with the number of the line on which each begins."""
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


def _refusal(field: str, kind: str, known: set[str]) -> str:
    """Why a line cannot be followed; empty if it can."""
    if field in known:
        return "it is listed above already"
    if kind == "label":
        return (
            "" if field in LABEL_FIELDS else f"it cannot be a label here; these can: {', '.join(sorted(LABEL_FIELDS))}"
        )
    if field in LABEL_FIELDS:
        return "it is a text, which can only be a label"
    if not measured(field):
        close = get_close_matches(field, [name for name in SOURCES if measured(name)], n=1, cutoff=0.9)
        return "it is not measured here" + (f"; did you mean {close[0]}?" if close else "")
    return "" if kind in _METRIC_TYPES else f"a single number is no {kind}"
