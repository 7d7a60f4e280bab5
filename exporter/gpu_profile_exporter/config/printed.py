"""Settings as text: the settings in force."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_profile_exporter import version
from gpu_profile_exporter.config.model import SETTINGS, TITLES
from gpu_profile_exporter.config.setting import Setting
from gpu_profile_exporter.config.sources import Loaded


def in_force(loaded: Loaded) -> str:
    """The settings in force as a TOML file, each with its source. Of secrets only the names are shown."""
    lines = [f"# gpu-profile-exporter {version()}: the settings in force, and where each comes from."]
    if loaded.file is not None:
        lines.append(f"# The file that was read: {_comment(str(loaded.file))}")
    for topic, rows in by_topic():
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


def by_topic() -> Iterator[tuple[str, list[Setting]]]:
    """The topics, each with its settings in their order."""
    for topic in TITLES:
        yield topic, [row for row in SETTINGS if row.topic == topic]
