"""What is written down of each setting, and the words for it that follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.kinds import Kind, Switch, shown

#: The first part of the name of each environment variable of ours.
ENVIRONMENT: Final = "GPU_PROFILE_EXPORTER"
_KEY: Final = "setting"


def milliseconds(text: str) -> str:
    """Whole milliseconds as seconds: how many programs have their times."""
    if not re.fullmatch(r"\s*\d{1,12}\s*", text, re.ASCII):
        raise ValueError(f"{shown(text)} is not a whole number of milliseconds")
    return f"{int(text) / 1000:.15g}"


@dataclass(frozen=True, slots=True)
class Alias:
    """Another program's words for a setting: its flags and variables, and how its text reads in ours.

    With `says`, the flags take no value and stand for that text; a variable that is false then says nothing.
    """

    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    read: Callable[[str], str] = str
    says: str = ""
    word: str = ""

    def ours(self, text: str) -> str | None:
        """`text` in our words; None if it says nothing, ValueError for what cannot be read."""
        if not self.says:
            return self.read(text)
        return self.says if Switch().read(text) else None


@dataclass(frozen=True, slots=True)
class Spec:
    """What a field of the configuration says of itself."""

    kind: Kind
    help: str
    aliases: tuple[Alias, ...] = ()
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `key` under `[topic]` in TOML (at the top without a topic), `field` in the dataclass."""

    topic: str
    field: str
    default: Any
    spec: Spec

    @property
    def key(self) -> str:
        """The field's name without its unit."""
        return self.field.removesuffix("_s")

    @property
    def name(self) -> str:
        """`otlp.endpoint`."""
        return f"{self.topic}.{self.key}" if self.topic else self.key

    @property
    def flag(self) -> str:
        """`--otlp-endpoint`."""
        return f"--{self.name.replace('.', '-').replace('_', '-')}"

    @property
    def variable(self) -> str:
        """`GPU_PROFILE_EXPORTER_OTLP_ENDPOINT`."""
        return f"{ENVIRONMENT}_{self.name.replace('.', '_').upper()}"


def setting(default: Any, kind: Kind, help_: str, *aliases: Alias, secret: bool = False) -> Any:
    """A dataclass field that is a setting."""
    return field(default=default, metadata={_KEY: Spec(kind, help_, aliases, secret)}, repr=not secret)


def settings_of(owner: type[Any] | Any, topic: str = "") -> Iterator[Setting]:
    """The settings of a dataclass, its topics' after its own, in the order in which they are written down."""
    topics: list[Field[Any]] = []
    for row in fields(owner):
        spec = row.metadata.get(_KEY)
        if spec is None:
            topics.append(row)
        else:
            yield Setting(topic, row.name, row.default, spec)
    for row in topics:
        if row.default_factory is not MISSING:
            yield from settings_of(row.default_factory, row.name)


def check(owner: Any, topic: str) -> None:
    """UsageError for the first field of `owner` whose value cannot be."""
    for row in settings_of(owner, topic):
        if row.topic == topic:
            try:
                row.spec.kind.check(getattr(owner, row.field))
            except ValueError as error:
                raise UsageError(f"{row.flag}: {error}") from error
