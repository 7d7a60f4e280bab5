"""Reads settings from a TOML file, rejects unknown keys, and finds the line of each key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.kinds import nearest, shown
from gpu_profile_exporter.config.model import BY_NAME, TOPICS
from gpu_profile_exporter.config.setting import read

#: Read if no other file is named and this one exists.
DEFAULT_FILE: Final = Path("/etc/gpu-profile/exporter.toml")
_MOST_BYTES: Final = 1 << 20
_AT: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")
_AT_END: Final = " (at end of document)"
_TABLE: Final = re.compile(r"\s*\[\s*([\w-]+)\s*\]\s*(#.*)?")
_KEY: Final = re.compile(r"\s*([\w-]+)\s*=")


class Written(NamedTuple):
    """The values of a file and their places, by click's names for settings."""

    values: dict[str, Any]
    places: dict[str, str]


def read_file(path: Path) -> Written:
    """The settings of a file. Raises UsageError with file, line and reason if it is invalid."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read the configuration {ascii(str(path))[1:-1]}: {reason}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path}: larger than 1 MiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: not UTF-8") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Written:
    """The settings of a file's text. `name` is the file's name in error messages."""
    import tomllib  # for a file alone

    try:
        tree = tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{name}: nested too deeply") from error
    except ValueError as error:  # also a number or a date that Python cannot hold
        reason = str(error).removesuffix(_AT_END)
        at = _AT.search(reason)
        line = int(at[1]) if at else text.count("\n") + 1 if reason != str(error) else None
        place = name if line is None else f"{name}:{line}"
        raise UsageError(f"{place}: not TOML: {' '.join(_AT.sub('', reason).split())}") from error
    places = {key: f"{name}:{line}" for key, line in _lines(text).items() if line}
    written = Written({}, {})
    for key, raw in _leaves(tree, name, places).items():
        row, place = BY_NAME[key], places.get(key, name)
        read(row.type, raw, f"{place}: {key}", toml=True)
        written.values[row.name], written.places[row.name] = raw, place
    return written


def _leaves(tree: Mapping[str, Any], name: str, places: Mapping[str, str]) -> dict[str, object]:
    """The settings in the tree, by dotted name, with their TOML values. Raises UsageError for an unknown name."""
    leaves: dict[str, object] = {}
    for key, value in tree.items():
        if key not in TOPICS:
            leaves[key] = value
        elif isinstance(value, Mapping):
            leaves |= {f"{key}.{inner}": leaf for inner, leaf in value.items()}
        else:
            raise UsageError(f"{places.get(key, name)}: {key}: is a table of settings; write it as [{key}]")
    for key in leaves:
        if key not in BY_NAME:
            raise UsageError(f"{places.get(key, name)}: there is no such setting as {shown(key)}{_meant(key)}")
    return leaves


def _meant(key: str) -> str:
    """A suggestion: the only setting with the same last part, else the most similar name."""
    last = key.rpartition(".")[2]
    same = [name for name in BY_NAME if name.rpartition(".")[2] == last]
    if len(same) == 1:
        return f"; did you mean {same[0]!r}?"
    return nearest(key, [*BY_NAME, *TOPICS])


def _lines(text: str) -> dict[str, int | None]:
    """The line of each key, by a search in the text. None if several lines match."""
    lines: dict[str, int | None] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _TABLE.fullmatch(line.rstrip("\r")):
            table = f"{header[1]}."
            key = header[1]
        elif line.lstrip().startswith("["):  # a nested table or a list: the owner of the next keys is uncertain
            table = "?."
            continue
        elif match := _KEY.match(line):
            key = f"{table}{match[1]}"
        else:
            continue
        lines[key] = None if key in lines else number
    return lines
