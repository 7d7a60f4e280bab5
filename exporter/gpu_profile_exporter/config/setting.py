"""A setting: a field of the configuration as an option of click's, with its names and other programs' words for it.

click decides which source wins: the command line, the environment, the file (its `default_map`), the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import click

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.kinds import Headers, Switch, Text, Words, shown

#: The first part of the name of each environment variable of ours. With it as `auto_envvar_prefix` a context reads the
#: environment; one without it sees the command line alone.
ENVIRONMENT: Final = "GPU_PROFILE_EXPORTER"
DEFAULT: Final = "default"


def milliseconds(text: str) -> str:
    """Whole milliseconds as seconds: how many programs have their times."""
    if not re.fullmatch(r"\s*\d{1,12}\s*", text, re.ASCII):
        raise ValueError(f"{shown(text)} is not a whole number of milliseconds")
    return f"{int(text) / 1000:.15g}"


def places(ctx: click.Context) -> dict[str, str]:
    """The place of each setting's value, by click's name of the setting; a default has none."""
    found: dict[str, str] = ctx.meta.setdefault(f"{__name__}.places", {})
    return found


def read(kind: Text, found: Any, place: str, *, toml: bool = False) -> Any:
    """A value from text, from TOML or from a value; UsageError, which names the place, for what cannot be."""
    try:
        if toml:
            kind.of_toml(found)
        return kind.convert(found, None, None)
    except (ValueError, click.BadParameter) as error:
        raise UsageError(f"{place}: {error}") from error


@dataclass(frozen=True, slots=True)
class Alias:
    """Another program's words for a setting: its flags and variables, and how its text reads in ours.

    With `says`, the flags take no value and stand for that text; a variable that is false then says nothing.
    The variables count only where `counts` says so.
    """

    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    read: Callable[[str], str] = str
    says: str = ""
    word: str = ""
    counts: Callable[[click.Context], bool] = lambda _: True

    @property
    def flag(self) -> str:
        """How a message names it; empty without flags."""
        return max(self.flags, key=len, default="")

    @property
    def parameter(self) -> str:
        """click's name for the option with these flags."""
        return re.sub(r"\W+", "_", f"by{self.flag}")

    def ours(self, text: str, place: str) -> str | None:
        """`text` in our words; None if it says nothing. UsageError, which names the place, for what cannot be read."""
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
        #: The field's name without its unit, and the same with its topic: `otlp.endpoint`.
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
            multiple=isinstance(kind, Words | Headers),
            help=help_,
        )

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """As click, with other programs' flags put into our words first. UsageError if two flags say the same."""
        given = {self.flag: opts[self.name]} if self.name in opts else {}
        for alias in self.aliases:
            if alias.parameter in opts:
                given[alias.flag] = alias.ours(str(opts[alias.parameter]), alias.flag)
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} say the same thing twice; leave one out")
        for flag, value in given.items():
            places(ctx)[self.name] = flag
            opts = {**opts, self.name: ",".join(value) if isinstance(value, list | tuple) else value}
        return super().handle_parse_result(ctx, opts, args)

    def value_from_envvar(self, ctx: click.Context) -> str | None:
        """The text of our variable, else of another program's in our words. An empty one says nothing."""
        if ctx.auto_envvar_prefix is None:
            return None
        if text := self.resolve_envvar_value(ctx):
            places(ctx)[self.name] = self.variable
            return text
        for name, alias in self.foreign_variables():
            text = os.environ.get(name, "")
            said = alias.ours(text, name) if text and alias.counts(ctx) else None
            if said is not None:
                places(ctx)[self.name] = name
                return said
        return None

    def of(self, config: Any) -> Any:
        """The value in a configuration."""
        return getattr(getattr(config, self.topic) if self.topic else config, self.field)

    def foreign_variables(self) -> Iterator[tuple[str, Alias]]:
        """Other programs' variables for this setting."""
        return ((name, alias) for alias in self.aliases for name in alias.variables)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value for the configuration; UsageError, which names its place, for what cannot be."""
        place = places(ctx).get(self.name)
        return value if place is None else read(self.type, value, place)


def flag_of(topic: str, name: str) -> str:
    """The flag for a field under a topic."""
    return "--" + f"{topic}_{name}".strip("_").removesuffix("_s").replace("_", "-")


def setting(default: Any, kind: Text, help_: str, *aliases: Alias, secret: bool = False) -> Any:
    """A dataclass field that is a setting."""
    spec = {"kind": kind, "help_": help_, "aliases": aliases, "secret": secret}
    return field(default=default, metadata=spec, repr=not secret)


def settings_of(owner: type[Any], topic: str = "") -> Iterator[Setting]:
    """The settings of a dataclass, its topics' after its own, in the order in which they are written down."""
    rows = [row for row in fields(owner) if row.metadata]
    yield from (Setting(topic, row.name, row.default, **row.metadata) for row in rows)
    for row in fields(owner):
        if isinstance(row.default_factory, type):
            yield from settings_of(row.default_factory, row.name)


def check(owner: Any, topic: str) -> None:
    """Read every field by its kind; UsageError, which names the flag, for the first whose value cannot be."""
    for row in fields(owner):
        if row.metadata:
            value = read(row.metadata["kind"], getattr(owner, row.name), flag_of(topic, row.name))
            object.__setattr__(owner, row.name, value)
