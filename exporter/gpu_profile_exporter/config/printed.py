"""Settings as text: those in force, an example file with every default, and the table of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpu_profile.catalogue import DEFAULT_GROUPS, GROUPS
from gpu_profile_exporter import version
from gpu_profile_exporter.config.kinds import Choice, Number, Text, Words
from gpu_profile_exporter.config.model import SETTINGS, TOPICS, Config
from gpu_profile_exporter.config.setting import Setting
from gpu_profile_exporter.config.sources import Loaded

#: What each part of the settings is about.
TITLES: Final[Mapping[str, str]] = {
    "": "What is read and served",
    **{topic: (owner.__doc__ or topic).partition(".")[0] for topic, owner in TOPICS.items()},
}


def value_of(config: Config, row: Setting) -> Any:
    """A setting's value."""
    return getattr(getattr(config, row.topic) if row.topic else config, row.field)


def in_force(loaded: Loaded) -> str:
    """The settings in force as a TOML file, each with where it comes from. Secrets are named, not shown."""
    lines = [f"# gpu-profile-exporter {version()}: the settings in force, and where each comes from."]
    if loaded.file is not None:
        lines.append(f"# The file that was read: {_comment(str(loaded.file))}")
    for topic, rows in _by_topic():
        if topic:
            lines += ["", f"[{topic}]"]
        for row in rows:
            value, place = value_of(loaded.config, row), loaded.places[row.name]
            if row.spec.secret and value:
                lines.append(f"# {row.key}: {', '.join(name for name, _ in value)}; not shown  # {_comment(place)}")
            else:
                lines.append(f"{row.key} = {row.spec.kind.toml(value)}  # {_comment(place)}")
        if topic == "otlp" and (endpoints := loaded.config.otlp.endpoints) is not None:
            for what, endpoint in (("Metrics", endpoints.metrics), ("Events", endpoints.logs)):
                where = f"pushed to {endpoint.url} by {endpoint.protocol}" if endpoint else "not pushed"
                lines.append(f"# {what} are {where}.")
    return "\n".join(lines) + "\n"


def _comment(place: str) -> str:
    """What a comment in TOML can hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in place)


def example() -> str:
    """A file that says what is so without it: every setting with its default."""
    lines = [
        "# Settings of gpu-profile-exporter. This file states every default, so it changes nothing as it is.",
        "# It is read from /etc/gpu-profile/exporter.toml, or from where --config or GPU_PROFILE_EXPORTER_CONFIG says.",
        "# Flags win over the environment, the environment over this file.",
        "# Times are in seconds. Text that is empty is no value.",
    ]
    for topic, rows in _by_topic():
        lines += ["", f"# {TITLES[topic]}.", *([f"[{topic}]"] if topic else [])]
        for row in rows:
            lines += [
                "",
                *_wrapped(row.spec.help),
                *_wrapped(bounds(row)),
                f"{row.key} = {row.spec.kind.toml(row.default)}",
            ]
    return "\n".join(lines) + "\n"


def _wrapped(said: str) -> list[str]:
    """A sentence as comments."""
    text = said.replace("`", "")
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def table() -> str:
    """Every setting in Markdown, a table for each topic."""
    parts = []
    for topic, rows in _by_topic():
        where = f"under `[{topic}]`" if topic else "at the top of the file"
        lines = [
            f"### {TITLES[topic]}",
            "",
            f"In TOML {where}.",
            "",
            "| key | flag | variable | default | what it says |",
            "|---|---|---|---|---|",
            *map(_row, rows),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(row: Setting) -> str:
    flags = [row.flag, *(flag for alias in row.spec.aliases for flag in alias.flags)]
    variables = [row.variable, *(name for alias in row.spec.aliases for name in alias.variables)]
    cells = (
        f"`{row.key}`",
        ", ".join(f"`{flag}`" for flag in flags),
        ", ".join(f"`{name}`" for name in variables),
        f"`{row.spec.kind.toml(row.default)}`",
        f"{row.spec.help} {bounds(row)}".strip(),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def bounds(row: Setting) -> str:
    """What values there are, in a sentence; empty if any will do."""
    kind = row.spec.kind
    if isinstance(kind, Text) and not isinstance(kind, Choice) and "|" in kind.word:
        return f"One of {_listed(kind.word.split('|'))}."
    if isinstance(kind, Number):
        return f"From {kind.low:.10g} to {kind.high:.10g}."
    if isinstance(kind, Words):
        return f"Any of {_listed(kind.known())}."
    return f"One of {_listed(kind.words)}." if isinstance(kind, Choice) else ""


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _by_topic() -> Iterator[tuple[str, list[Setting]]]:
    for topic in TITLES:
        yield topic, [row for row in SETTINGS if row.topic == topic]


def groups() -> str:
    """The groups that `collect` takes, in Markdown."""
    lines = ["| group | by default | what it is |", "|---|---|---|"]
    lines += [
        f"| `{group}` | {'yes' if group in DEFAULT_GROUPS else ''} | {brief} |" for group, brief in GROUPS.items()
    ]
    return "\n".join(lines)
