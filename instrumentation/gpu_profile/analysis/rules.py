"""Thresholds of the regimes from a file: TOML with one table, `[thresholds]`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile.regimes import Thresholds

_TABLE: Final = "thresholds"
_NAMES: Final = tuple(field.name for field in fields(Thresholds))
#: The one threshold that is no ratio and no time.
_WHOLE: Final = "least_n"


def read_thresholds(path: Path) -> Thresholds:
    """The thresholds in a file, defaults for the missing ones. UsageError with file, place, reason."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start}: not UTF-8 text") from error
    return parse_thresholds(text, str(path))


def parse_thresholds(text: str, name: str = "thresholds") -> Thresholds:
    """The thresholds in TOML text. Errors call the text `name`. UsageError with place and reason."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # malformed; a number of too many digits; nested without end
        raise UsageError(f"{name}: not TOML: {error}") from error
    for key in document:
        if key != _TABLE:
            hint = f"write it below a line [{_TABLE}]" if key in _NAMES else f"there is only [{_TABLE}]"
            raise UsageError(f"{name}: {_place(text, key)}unknown key {key!r}; {hint}")
    table = document.get(_TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{name}: {_place(text, _TABLE)}{_TABLE!r} is no table; begin it with a line [{_TABLE}]")
    values: dict[str, float] = {}
    for key, value in table.items():
        place = f"{name}: {_place(text, key)}"
        if key not in _NAMES:
            close = get_close_matches(key, _NAMES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there is {', '.join(_NAMES)}"
            raise UsageError(f"{place}unknown threshold {key!r}; {hint}")
        values[key] = _number(place, key, value)
    return Thresholds(**values)  # type: ignore[arg-type]


def _place(text: str, key: str) -> str:
    """The first line that seems to set the key, by a search of the text; empty without one."""
    pattern = rf"""^\s*(?:\[+\s*)?(?:{_TABLE}\s*\.\s*)?["']?{re.escape(key)}["']?\s*[=.\]]"""
    match = re.search(pattern, text, re.MULTILINE)
    return "" if match is None else f"line {text.count(chr(10), 0, match.end()) + 1}: "


def _number(place: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{place}{key} is a number, not {_shown(value)}")
    if isinstance(value, float) and not isfinite(value):
        raise UsageError(f"{place}{key} is a number, not {value}")
    if value <= 0:
        raise UsageError(f"{place}{key} must be positive, not {_shown(value)}")
    if key == _WHOLE:
        if not isinstance(value, int):
            raise UsageError(f"{place}{key} is a whole number of windows, not {value}")
    elif value > 1:
        raise UsageError(f"{place}{key} lies between 0 and 1, not {_shown(value)} (60 % is 0.6)")
    return value


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of too many digits
        return "that"
    return text if len(text) <= 40 else f"{text[:37]}..."
