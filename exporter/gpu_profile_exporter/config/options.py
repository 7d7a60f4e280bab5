"""The command line's options, made from the table of settings, and the help page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from gpu_profile_exporter.config import toml
from gpu_profile_exporter.config.model import SETTINGS, TITLES
from gpu_profile_exporter.config.setting import ENVIRONMENT, Alias, Setting, places

#: Names the file to read. click derives this name from `--config`.
FILE_VARIABLE: Final = f"{ENVIRONMENT}_CONFIG"


def options() -> Iterator[click.Option]:
    """All settings, a hidden option for each alias with flags, `--config` and `--print-config`."""
    for row in SETTINGS:
        yield row
        for alias in row.aliases:
            if alias.flags:
                names = [*alias.flags, alias.parameter]
                flag, several = bool(alias.says), row.type.several
                yield click.Option(names, is_flag=flag, multiple=several, expose_value=False, hidden=True)
    yield click.Option(
        ["--config"],
        type=click.Path(path_type=Path, readable=False),
        default=_default_file,
        is_eager=True,
        callback=_read_file,
        metavar="FILE",
        help=f"Settings in TOML. Without it: {FILE_VARIABLE}, else {toml.DEFAULT_FILE} if it is there.",
    )
    yield click.Option(
        ["--print-config"], is_flag=True, help="Print the settings in force and where each comes from, and end."
    )


def _default_file() -> Path | None:
    try:
        return toml.DEFAULT_FILE if toml.DEFAULT_FILE.exists() else None
    except OSError:  # the directory may not be searchable, as on hosts with a hardened /etc
        return None


def _read_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Pass the file's values to click before it processes the other options."""
    if path is not None and ctx.auto_envvar_prefix is not None:
        ctx.default_map, file_places = toml.read_file(path)
        places(ctx).update(file_places)
    return path


def write_help(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """All options, by topic."""
    own = [option for option in ctx.command.get_params(ctx) if not isinstance(option, Setting)]
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
    flags = f"{row.flag}, --no-{row.flag[2:]}" if row.switch else f"{row.flag} {row.type.word}"
    others = [_flags(row, alias) for alias in row.aliases if alias.flags]
    also = f" Also {', '.join(others)}." if others else ""
    default = "" if row.switch or not row.default else row.type.toml(row.default).strip('"')
    return flags, f"{row.help}{also}{f' [default: {default}]' if default else ''}"


def _flags(row: Setting, alias: Alias) -> str:
    value = f" ({alias.says})" if alias.says and not row.switch else ""
    return f"{'/'.join(alias.flags)} {alias.word}".rstrip() + value
