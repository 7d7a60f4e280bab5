"""Loads the settings in force: click reads the command line, the environment and the file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config.kinds import nearest
from gpu_profile_exporter.config.model import OTLP, SETTINGS, SIGNALS, TOPICS, Config
from gpu_profile_exporter.config.options import FILE_VARIABLE, options
from gpu_profile_exporter.config.setting import DEFAULT, ENVIRONMENT, Setting, places, read

if TYPE_CHECKING:
    from gpu_profile_exporter.push.settings import Endpoints

#: Variables that Kubernetes sets in each pod of a namespace with a Service named gpu-profile-exporter[-…].
_SERVICE: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force, the source of each (by click's names), and the file that was read."""

    config: Config
    places: Mapping[str, str]
    file: Path | None = None


def load(arguments: Sequence[str] = ()) -> Loaded:
    """The settings from flags, environment and file. Raises UsageError for an invalid setting.

    The file is named by `--config`, else by GPU_PROFILE_EXPORTER_CONFIG. Without either, it is
    /etc/gpu-profile/exporter.toml if that exists.
    """
    _check_own()
    command = click.Command("gpu-profile-exporter", params=[*options()])
    ctx = command.make_context(None, list(arguments), auto_envvar_prefix=ENVIRONMENT)
    values, where = ctx.params, {row.name: DEFAULT for row in SETTINGS} | places(ctx)
    if where["names"] == DEFAULT and values["dcgm_csv"] is not None:
        values["names"], where["names"] = "both", f"default with dcgm.csv, from {where['dcgm_csv']}"
    by_topic: dict[str, dict[str, Any]] = {topic: {} for topic in ("", *TOPICS)}
    for row in SETTINGS:
        by_topic[row.topic][row.field] = values[row.name]
    by_topic["otlp"]["resolved"] = _endpoints(ctx)
    topics = {topic: owner(**by_topic[topic]) for topic, owner in TOPICS.items()}
    return Loaded(Config(**by_topic[""], **topics), where, values["config"])


def _endpoints(ctx: click.Context) -> Endpoints | None:
    """The endpoints of the signals. None if nothing is pushed."""
    rows = {row.field: row for row in SETTINGS if row.topic == "otlp"}
    addressed = [signal for signal in SIGNALS if _of_signal(ctx, rows["endpoint"], signal)[0]]
    if not addressed:
        return None
    # Imported late: an exporter that does not push saves the memory of these packages.
    from gpu_profile_exporter.push.settings import Endpoints, endpoint

    return Endpoints(
        **{
            signal: endpoint(signal, {name: _of_signal(ctx, row, signal) for name, row in rows.items()})
            for signal in addressed
            if os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() != "none"
        }
    )


def _of_signal(ctx: click.Context, row: Setting, signal: str) -> tuple[Any, str]:
    """A setting for one signal, and its name for messages. A variable of the signal overrides the general one."""
    place = places(ctx).get(row.name, DEFAULT)
    if place not in (row.flag, row.variable):
        for general, alias in row.foreign_variables():
            name = general.replace(OTLP, f"{OTLP}{signal.upper()}_")
            text = os.environ.get(name, "").strip()
            if text and name != general:
                return read(row.type, alias.ours(text, name), name), name
    in_file = ctx.get_parameter_source(row.name) is ParameterSource.DEFAULT_MAP
    return ctx.params[row.name], f"{place}: {row.dotted}" if in_file else place


def _check_own() -> None:
    """Raise UsageError for a variable `GPU_PROFILE_EXPORTER_…` without a setting or with an invalid value.

    A variable is checked even if a flag overrides it. An empty variable counts as unset.
    """
    rows = {row.variable: row for row in SETTINGS}
    for name, text in sorted(os.environ.items()):
        if not name.startswith(f"{ENVIRONMENT}_") or name == FILE_VARIABLE or _of_service(name, text):
            continue
        if name not in rows:
            meant = nearest(name, [*rows, FILE_VARIABLE])
            raise UsageError(f"{ascii(name)[1:-1][:99]}: there is no such setting{meant}")
        if text:
            read(rows[name].type, text, name)


def _of_service(name: str, text: str) -> bool:
    rest = name.removeprefix(ENVIRONMENT)
    if rest.endswith("_PORT") and _SERVICE_URL.match(text):
        return True
    return any(rest.endswith(match[0]) for match in _SERVICE.finditer(rest))
