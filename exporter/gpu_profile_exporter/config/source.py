"""Values as the sources of settings give them: what was found, and the place to name when it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.setting import Alias, Setting


class Found(NamedTuple):
    """A value and where it stood: `--interval`, `GPU_PROFILE_EXPORTER_INTERVAL`, `exporter.toml:3`, `default`."""

    value: Any
    place: str


#: What one source says, by the names of settings.
Layer = Mapping[str, Found]


def from_text(row: Setting, place: str, text: str, alias: Alias | None = None) -> Found | None:
    """What a flag or a variable says, in an alias's words or ours; None if it says nothing of the setting.

    UsageError, which names the place, for what the setting cannot be.
    """
    try:
        ours = alias.ours(text) if alias is not None else text
        if ours is None:
            return None
        value = row.spec.kind.read(ours)
        row.spec.kind.check(value)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from error
    return Found(value, place)


def from_toml(row: Setting, place: str, found: object) -> Found:
    """What a file says; UsageError, which names the place, for what the setting cannot be."""
    try:
        value = row.spec.kind.take(found)
        row.spec.kind.check(value)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from error
    return Found(value, place)
