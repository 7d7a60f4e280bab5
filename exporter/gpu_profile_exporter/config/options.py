"""The command line's options, from the table of settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import toml
from gpu_profile_exporter.config.environment import FILE_VARIABLE
from gpu_profile_exporter.config.kinds import Headers, Switch, Words
from gpu_profile_exporter.config.model import SETTINGS
from gpu_profile_exporter.config.printed import TITLES
from gpu_profile_exporter.config.setting import Alias, Setting
from gpu_profile_exporter.config.source import Found, Layer, from_text


class SettingOption(click.Option):
    """An option that is a setting, in our words or an alias's. Its text is read by the table, not by click."""

    def __init__(self, row: Setting, alias: Alias | None) -> None:
        self.setting, self.alias = row, alias
        kind = row.spec.kind
        if alias is not None:
            flags = list(alias.flags)
            self.switch = bool(alias.says)
        else:
            self.switch = isinstance(kind, Switch)
            flags = [f"{row.flag}/--no-{row.flag[2:]}" if self.switch else row.flag]
        names = [_parameter(row, alias)]
        if self.switch:
            super().__init__([*flags, *names], is_flag=True, default=None)
        else:
            many = isinstance(kind, Words | Headers)
            super().__init__([*flags, *names], type=str, default=None, multiple=many, metavar=word(row, alias))

    @property
    def place(self) -> str:
        """How a message names it."""
        return max(self.opts, key=len)

    def found(self, ctx: click.Context) -> Found | None:
        """What the command line says by this option; None if nothing."""
        name = self.name or ""
        given: Any = ctx.params.get(name)
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE or given is None:
            return None
        text = ",".join(given) if isinstance(given, tuple) else str(given).lower() if self.switch else str(given)
        return from_text(self.setting, self.place, text, self.alias)


def _parameter(row: Setting, alias: Alias | None) -> str:
    name = row.name.replace(".", "_")
    return name if alias is None else f"{name}_by_{alias.flags[-1].strip('-').replace('-', '_').replace('.', '_')}"


def word(row: Setting, alias: Alias | None = None) -> str:
    """What stands for the value on the help page; empty for a switch."""
    if isinstance(row.spec.kind, Switch) or (alias is not None and alias.says):
        return ""
    return (alias.word if alias is not None else "") or row.spec.kind.word


def options() -> list[click.Option]:
    """Every setting's option, and an option for each of its aliases that has flags."""
    found: list[click.Option] = []
    for row in SETTINGS:
        found.append(SettingOption(row, None))
        found += [SettingOption(row, alias) for alias in row.spec.aliases if alias.flags]
    return found


def given(ctx: click.Context) -> Layer:
    """What the command line says; UsageError for what cannot be."""
    layer: dict[str, Found] = {}
    for option in ctx.command.params:
        if isinstance(option, SettingOption) and (said := option.found(ctx)) is not None:
            before = layer.get(option.setting.name)
            if before is not None:
                raise UsageError(f"{before.place} and {said.place} say the same thing twice; leave one out")
            layer[option.setting.name] = said
    return layer


def file_option() -> click.Option:
    """`--config`."""
    text = f"Settings in TOML. Without it: {FILE_VARIABLE}, else {toml.DEFAULT_FILE} if it is there."
    return click.Option(["--config", "file"], type=click.Path(path_type=Path), metavar="FILE", help=text)


def write_help(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """All options, by topic."""
    own = [option for option in ctx.command.get_params(ctx) if not isinstance(option, SettingOption)]
    for topic, title in TITLES.items():
        with formatter.section(title):
            _write(formatter, [_line(row) for row in SETTINGS if row.topic == topic])
    with formatter.section("The command"):
        _write(formatter, [record for option in own if (record := option.get_help_record(ctx)) is not None])


def _write(formatter: click.HelpFormatter, rows: Iterable[tuple[str, str]]) -> None:
    """Like click's definition lists, but a flag is never broken at its hyphens."""
    indent, column = " " * formatter.current_indent, 34
    for flags, text in rows:
        lines = textwrap.wrap(text, formatter.width - column, break_on_hyphens=False)
        first = f"{indent}{flags}"
        if len(first) + 2 > column:
            formatter.write(f"{first}\n")
            first = ""
        for line in lines:
            formatter.write(f"{first:<{column}}{line}\n")
            first = ""


def _line(row: Setting) -> tuple[str, str]:
    flags = f"{row.flag} {word(row)}".strip()
    if isinstance(row.spec.kind, Switch):
        flags = f"{row.flag}, --no-{row.flag[2:]}"
    others = [_flags(row, alias) for alias in row.spec.aliases if alias.flags]
    also = f" Also {', '.join(others)}." if others else ""
    default = _default(row)
    return flags, f"{row.spec.help}{also}{f' [default: {default}]' if default else ''}"


def _flags(row: Setting, alias: Alias) -> str:
    value = alias.word or ""
    meant = f" ({alias.says})" if alias.says and not isinstance(row.spec.kind, Switch) else ""
    return f"{'/'.join(alias.flags)}{f' {value}' if value else ''}{meant}"


def _default(row: Setting) -> str:
    """The default as one would type it; empty where there is none to speak of."""
    if not row.default or isinstance(row.spec.kind, Switch):
        return ""
    return row.spec.kind.toml(row.default).strip('"')
