"""Settings as text: the settings in force, an example file with every default, and the documentation's table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpu_profile.catalogue import DEFAULT_GROUPS, GROUPS
from gpu_profile_exporter import version
from gpu_profile_exporter.config.model import SETTINGS, TITLES
from gpu_profile_exporter.config.setting import Setting
from gpu_profile_exporter.config.sources import Loaded


def in_force(loaded: Loaded) -> str:
    """The settings in force as a TOML file, each with its source. Of secrets only the names are shown."""
    lines = [f"# gpu-profile-exporter {version()}: the settings in force, and where each comes from."]
    if loaded.file is not None:
        lines.append(f"# The file that was read: {_comment(str(loaded.file))}")
    for topic, rows in _by_topic():
        if topic:
            lines += ["", f"[{topic}]"]
        for row in rows:
            value, place = row.of(loaded.config), loaded.places[row.name]
            if row.secret and value:
                lines.append(f"# {row.key}: {', '.join(name for name, _ in value)}; not shown  # {_comment(place)}")
            else:
                lines.append(f"{row.key} = {row.type.toml(value)}  # {_comment(place)}")
        if topic == "otlp" and (endpoints := loaded.config.otlp.endpoints) is not None:
            for what, endpoint in (("Metrics", endpoints.metrics), ("Events", endpoints.logs)):
                where = f"pushed to {endpoint.url} by {endpoint.protocol}" if endpoint else "not pushed"
                lines.append(f"# {what} are {where}.")
    return "\n".join(lines) + "\n"


def _comment(place: str) -> str:
    """`place` with unprintable characters replaced, which a comment in TOML must not contain."""
    return "".join(letter if letter.isprintable() else "?" for letter in place)


def example() -> str:
    """A TOML file with every setting at its default."""
    lines = [
        "# Settings of gpu-profile-exporter. This file states every default, so it changes nothing as it is.",
        "# It is read from /etc/gpu-profile/exporter.toml, or from where --config or GPU_PROFILE_EXPORTER_CONFIG says.",
        "# Flags win over the environment, the environment over this file.",
        "# Times are in seconds. Text that is empty is no value.",
    ]
    for topic, rows in _by_topic():
        lines += ["", f"# {TITLES[topic]}.", *([f"[{topic}]"] if topic else [])]
        for row in rows:
            lines += ["", *_wrapped(row.help), *_wrapped(row.type.bounds), f"{row.key} = {row.type.toml(row.default)}"]
    return "\n".join(lines) + "\n"


def _wrapped(sentence: str) -> list[str]:
    """A sentence as comment lines."""
    text = sentence.replace("`", "")
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
            "| key | flag | variable | default | description |",
            "|---|---|---|---|---|",
            *map(_row, rows),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(row: Setting) -> str:
    flags = [row.flag, *(flag for alias in row.aliases for flag in alias.flags)]
    variables = [row.variable, *(name for alias in row.aliases for name in alias.variables)]
    cells = (
        f"`{row.key}`",
        ", ".join(f"`{flag}`" for flag in flags),
        ", ".join(f"`{name}`" for name in variables),
        f"`{row.type.toml(row.default)}`",
        f"{row.help} {row.type.bounds}".strip(),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _by_topic() -> Iterator[tuple[str, list[Setting]]]:
    for topic in TITLES:
        yield topic, [row for row in SETTINGS if row.topic == topic]


def groups() -> str:
    """The groups that `collect` takes, in Markdown."""
    lines = ["| group | by default | description |", "|---|---|---|"]
    lines += [
        f"| `{group}` | {'yes' if group in DEFAULT_GROUPS else ''} | {brief} |" for group, brief in GROUPS.items()
    ]
    return "\n".join(lines)
