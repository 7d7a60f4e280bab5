"""The settings of the exporter: tables for the documentation, and the file docker/gpu-profile-exporter.toml."""

from __future__ import annotations

import textwrap

from docs.markdown_table import code, table

from gpu_profile_exporter.config.model import TITLES
from gpu_profile_exporter.config.printed import by_topic
from gpu_profile_exporter.config.setting import Setting


def exporter() -> str:
    """Every setting of the exporter, in a table for each topic."""
    columns = ("key", "flag", "variable", "default", "description")
    parts = []
    for topic, rows in by_topic():
        where = f"under `[{topic}]`" if topic else "at the top of the file"
        parts.append(f"### {TITLES[topic]}\n\nIn TOML {where}.\n\n{table(columns, map(_setting, rows))}")
    return "\n\n".join(parts)


def _setting(row: Setting) -> tuple[str, ...]:
    return (
        code(row.key),
        ", ".join(map(code, [row.flag, *(flag for alias in row.aliases for flag in alias.flags)])),
        ", ".join(map(code, [row.variable, *(name for alias in row.aliases for name in alias.variables)])),
        code(row.type.toml(row.default)),
        f"{row.help} {row.type.bounds}".strip(),
    )


def exporter_file() -> str:
    """A TOML file with every setting of the exporter at its default."""
    lines = [
        "# Settings of gpu-profile-exporter. This file states every default, so it changes nothing as it is.",
        "# It is read from /etc/gpu-profile/exporter.toml, or from where --config or GPU_PROFILE_EXPORTER_CONFIG says.",
        "# Flags win over the environment, the environment over this file.",
        "# Times are in seconds. Text that is empty is no value.",
    ]
    for topic, rows in by_topic():
        lines += ["", f"# {TITLES[topic]}.", *([f"[{topic}]"] if topic else [])]
        for row in rows:
            lines += ["", *_comment(row.help), *_comment(row.type.bounds), f"{row.key} = {row.type.toml(row.default)}"]
    return "\n".join(lines) + "\n"


def _comment(sentence: str) -> list[str]:
    text = sentence.replace("`", "")
    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
