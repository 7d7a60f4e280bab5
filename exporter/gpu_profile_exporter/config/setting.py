"""A setting: a field of the configuration as a click option, with the flags and variables of other programs for it.

click chooses the source: the command line, then the environment, the file (its `default_map`), the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import click

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.kinds import Switch, Text, shown

#: The prefix of this exporter's environment variables. A context with this `auto_envvar_prefix` reads the environment;
#: a context without it reads the command line alone.
ENVIRONMENT: Final = "GPU_PROFILE_EXPORTER"
DEFAULT: Final = "default"


def milliseconds(text: str) -> str:
    """Whole milliseconds, the unit of many programs, as seconds."""
    if not re.fullmatch(r"\s*\d{1,12}\s*", text, re.ASCII):
        raise ValueError(f"{shown(text)} is not a whole number of milliseconds")
    return f"{int(text) / 1000:.15g}"


def places(ctx: click.Context) -> dict[str, str]:
    """The place of each setting's value, by click's name of the setting. Defaults are missing."""
    by_name: dict[str, str] = ctx.meta.setdefault(f"{__name__}.places", {})
    return by_name


def read(kind: Text, raw: Any, place: str, *, toml: bool = False) -> Any:
    """The value of text, of a TOML value or of a converted value. Raises UsageError with the place if invalid."""
    try:
        if toml:
            kind.of_toml(raw)
        return kind.convert(raw, None, None)
    except (ValueError, click.BadParameter) as error:
        raise UsageError(f"{place}: {error}") from error


@dataclass(frozen=True, slots=True)
class Alias:
    """Another program's flags and variables for a setting, and the conversion `read` of their text.

    With `says`, the flags take no value and mean that text. A variable with a false value is then ignored.
    The variables are ignored if `counts` returns False.
    """

    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    read: Callable[[str], str] = str
    says: str = ""
    word: str = ""
    counts: Callable[[click.Context], bool] = lambda _: True

    @property
    def flag(self) -> str:
        """The longest flag, for messages; "" without flags."""
        return max(self.flags, key=len, default="")

    @property
    def parameter(self) -> str:
        """click's name for the option with these flags."""
        return re.sub(r"\W+", "_", f"by{self.flag}")

    def ours(self, text: str, place: str) -> str | None:
        """`text` converted for this exporter, None if it is ignored. Raises UsageError with the place if invalid."""
        try:
            if not self.says:
                return self.read(text)
            return self.says if Switch().read(text) else None
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error


class Setting(click.Option):
    """One setting: `key` under `[topic]` in TOML (at the top without a topic), `field` in the dataclass."""

    type: Text
    name: str
    help: str

    def __init__(
        self, topic: str, name: str, default: Any, *, kind: Text, help_: str, aliases: tuple[Alias, ...], secret: bool
    ) -> None:
        self.topic, self.field, self.aliases, self.secret = topic, name, aliases, secret
        #: The field's name without its unit, alone and with its topic: `otlp.endpoint`.
        self.key = name.removesuffix("_s")
        self.dotted = f"{topic}.{self.key}".lstrip(".")
        #: `--otlp-endpoint` and `GPU_PROFILE_EXPORTER_OTLP_ENDPOINT`.
        self.flag = flag_of(topic, name)
        self.variable = f"{ENVIRONMENT}{self.flag[1:].replace('-', '_').upper()}"
        self.switch = isinstance(kind, Switch)
        super().__init__(
            [f"{self.flag}/--no-{self.flag[2:]}" if self.switch else self.flag],
            type=kind,
            default=default,
            is_flag=self.switch,
            multiple=kind.several,
            help=help_,
        )

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """As click, after converting other programs' flags. Raises UsageError if two flags set the same setting."""
        given = {self.flag: _joined(opts[self.name])} if self.name in opts else {}
        for alias in self.aliases:
            if alias.parameter in opts:
                given[alias.flag] = alias.ours(str(_joined(opts[alias.parameter])), alias.flag)
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} set the same setting; leave one out")
        for flag, value in given.items():
            places(ctx)[self.name] = flag
            opts = {**opts, self.name: value}
        return super().handle_parse_result(ctx, opts, args)

    def value_from_envvar(self, ctx: click.Context) -> str | None:
        """The text of the setting's own variable, else of another program's, converted. Empty variables are ignored."""
        if ctx.auto_envvar_prefix is None:
            return None
        if text := self.resolve_envvar_value(ctx):
            places(ctx)[self.name] = self.variable
            return text
        for name, alias in self.foreign_variables():
            text = os.environ.get(name, "")
            converted = alias.ours(text, name) if text and alias.counts(ctx) else None
            if converted is not None:
                places(ctx)[self.name] = name
                return converted
        return None

    def of(self, config: Any) -> Any:
        """The value in a configuration."""
        return getattr(getattr(config, self.topic) if self.topic else config, self.field)

    def foreign_variables(self) -> Iterator[tuple[str, Alias]]:
        """Other programs' variables for this setting."""
        return ((name, alias) for alias in self.aliases for name in alias.variables)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value for the configuration. Raises UsageError with the place if it is invalid."""
        place = places(ctx).get(self.name)
        return value if place is None else read(self.type, value, place)


def _joined(value: Any) -> Any:
    """The value of a flag. The parts of one that may be repeated become one text."""
    return ",".join(value) if isinstance(value, list | tuple) else value


def flag_of(topic: str, name: str) -> str:
    """The flag for a field under a topic."""
    return "--" + f"{topic}_{name}".strip("_").removesuffix("_s").replace("_", "-")


def setting(default: Any, kind: Text, help_: str, *aliases: Alias, secret: bool = False) -> Any:
    """A dataclass field that is a setting."""
    spec = {"kind": kind, "help_": help_, "aliases": aliases, "secret": secret}
    return field(default=default, metadata=spec, repr=not secret)


def settings_of(owner: type[Any], topic: str = "") -> Iterator[Setting]:
    """The settings of a dataclass in the order of its fields, followed by the settings of its topics."""
    rows = [row for row in fields(owner) if row.metadata]
    yield from (Setting(topic, row.name, row.default, **row.metadata) for row in rows)
    for row in fields(owner):
        if isinstance(row.default_factory, type):
            yield from settings_of(row.default_factory, row.name)


def check(owner: Any, topic: str) -> None:
    """Convert every field by its type. Raises UsageError with the flag at the first invalid value."""
    for row in fields(owner):
        if row.metadata:
            value = read(row.metadata["kind"], getattr(owner, row.name), flag_of(topic, row.name))
            object.__setattr__(owner, row.name, value)
